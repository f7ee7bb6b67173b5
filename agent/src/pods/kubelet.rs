//! The pods of this node from its kubelet, for clusters that deny the watch. Each poll requests the whole list.
//!
//! The kubelet knows a pod before the API server reports it, but a container's id only once the id is in the status.
//! The kubelet does not report the last statuses of a deleted pod. So each unknown container
//! [pokes](super::Source::poke) the source.

use std::{sync::Arc, time::Duration};

use kube::{Client, api::ListParams, core::Request};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use super::{
    ask,
    credentials::Credentials,
    pace::Pace,
    prune::PruneRules,
    reporter::Reporter,
    request_failure::{Failure, Remedy, Server},
};
use crate::transport::backoff::Backoff;

/// The kubelet source.
#[derive(Debug)]
pub(super) struct Kubelet {
    pub(super) credentials: Credentials,
    pub(super) server: Server,
    pub(super) keep: PruneRules,
    pub(super) pace: Pace,
    pub(super) interval: Duration,
    pub(super) poke: Arc<Notify>,
    pub(super) reporter: Reporter,
}

impl Kubelet {
    pub(super) async fn run(mut self) {
        let mut client = None;
        let mut backoff = Backoff::new(self.pace.first, self.pace.most);
        loop {
            let began = Instant::now();
            match self.poll(&mut client).await {
                Ok(()) => {
                    backoff.reset();
                    let poked = async {
                        sleep_until(began + self.pace.polls).await;
                        self.poke.notified().await;
                    };
                    tokio::select! {
                        () = sleep_until(began + self.interval) => {}
                        () = poked => {}
                    }
                }
                Err(failure) => {
                    if failure.remedy == Remedy::Login {
                        client = None;
                    }
                    self.reporter.failed(&failure.text);
                    sleep(backoff.next().max(failure.wait)).await;
                }
            }
        }
    }

    async fn poll(&mut self, client: &mut Option<Client>) -> Result<(), Failure> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.credentials.login(&self.server).await?),
        };
        let (pods, all) = (Request::new("/pods"), ListParams::default());
        let list = ask::list(self.pace.open, &self.server, client, &pods, &all).await?;
        self.reporter.polled(list.items.into_iter().filter_map(|raw| self.keep.prune(raw)).collect());
        self.reporter.up();
        Ok(())
    }
}

#[cfg(test)]
#[path = "kubelet_tests.rs"]
mod tests;
