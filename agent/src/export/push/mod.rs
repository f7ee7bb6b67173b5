//! Sends metrics to an OTLP receiver, at an interval: the counters of `/metrics` under OpenTelemetry's names.
//!
//! Metrics use the same sender as profiles, with one attempt an interval: the next push carries all values of a lost
//! one. A reading counts as an export of ended rows only once it was delivered, so that an outage loses no last value.

mod exporter;
mod histograms;
mod instruments;
mod names;
mod points;
mod split;

use crate::model::{facts::FactFamily, sensors::Sensor};
use std::time::{Duration, SystemTime};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at},
};

use super::otlp::{EndpointError, Health, Settings, one_line};
use crate::collector::{Purpose, Reader};

use exporter::Exporter;
use instruments::Instruments;

/// The settings of the push.
#[derive(Debug)]
pub struct PushSettings {
    /// The settings of the receiver. Only the resource attributes of its shape are used.
    pub receiver: Settings,
    /// The time between two pushes.
    pub interval: Duration,
    /// The node's name.
    pub node_name: String,
    /// The sensors that are on.
    pub sensors: Vec<&'static Sensor>,
    /// The families that need no PMU, updated when the configuration changes.
    pub facts: watch::Receiver<Vec<FactFamily>>,
}

/// A handle to the task that pushes.
#[derive(Debug)]
pub struct Push {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Push {
    /// Starts the task; the first push is an interval later. Must be called on a tokio runtime with time and I/O.
    ///
    /// # Errors
    ///
    /// When the endpoint, a header or a certificate cannot be used. A receiver that is down is not an error.
    pub fn start(settings: PushSettings, reader: Reader) -> Result<(Self, watch::Receiver<Health>), EndpointError> {
        let (health_sender, health) = watch::channel(Health::Healthy);
        let (stop, stopped) = watch::channel(false);
        let worker = Worker {
            exporter: Exporter::new(&settings.receiver)?,
            instruments: Instruments::new(&settings.node_name, &settings.receiver.shape.resource),
            reader,
            sensors: settings.sensors,
            facts: settings.facts,
            health: health_sender,
        };
        let task = tokio::spawn(worker.run(settings.interval, stopped));
        Ok((Self { stop, task }, health))
    }

    /// Pushes once more, for at most `deadline`.
    pub async fn shutdown(self, deadline: Duration) {
        let Self { stop, mut task } = self;
        stop.send_replace(true);
        if tokio::time::timeout(deadline, &mut task).await.is_err() {
            task.abort();
            tracing::warn!("metrics were not pushed before the shutdown deadline");
        }
    }
}

#[derive(Debug)]
struct Worker {
    exporter: Exporter,
    instruments: Instruments,
    reader: Reader,
    sensors: Vec<&'static Sensor>,
    facts: watch::Receiver<Vec<FactFamily>>,
    health: watch::Sender<Health>,
}

impl Worker {
    async fn run(mut self, interval: Duration, mut stopped: watch::Receiver<bool>) {
        let mut ticks = interval_at(Instant::now() + interval, interval);
        // After an outage one push is enough, since it carries all values.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let last = tokio::select! {
                _ = ticks.tick() => false,
                _ = stopped.changed() => true,
            };
            match self.push().await {
                Ok(()) => self.recover(),
                Err(error) => self.degrade(&error),
            }
            if last {
                return;
            }
        }
    }

    async fn push(&mut self) -> Result<(), String> {
        let observation = self.reader.read_for_itself(Purpose::Look).await.map_err(|error| error.to_string())?;
        let facts = self.facts.borrow().clone();
        let metrics = self.instruments.collect(points::observed(&observation, &facts, &self.sensors))?;
        let histograms = histograms::observed(&observation.snapshot, &self.sensors);
        let message = self.exporter.export(&metrics, histograms).await?;
        // This gets the reading of a moment ago, unless the receiver was slow. An error is ignored here: the collector
        // may have ended.
        self.reader.read_for_itself(Purpose::Export).await.ok();
        message.map_or(Ok(()), Err)
    }

    fn degrade(&self, error: &str) {
        let error = one_line(error);
        let since = match &*self.health.borrow() {
            Health::Degraded { since, .. } => Some(*since),
            Health::Healthy => None,
        };
        if since.is_none() {
            tracing::warn!(endpoint = %self.exporter.uri(), %error, state = "degraded", "failed to push metrics");
        }
        self.health.send_replace(Health::Degraded { since: since.unwrap_or_else(SystemTime::now), error });
    }

    fn recover(&self) {
        if self.health.send_replace(Health::Healthy) != Health::Healthy {
            tracing::info!(endpoint = %self.exporter.uri(), state = "healthy", "pushing metrics again");
        }
    }
}
