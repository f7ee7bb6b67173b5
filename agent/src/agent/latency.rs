//! Recordings of the length of a function's calls. They read the sensor `functions`: a function of the configuration is
//! measured anyway, and another one borrows a place of the sensor for the length of the recording.

use std::{
    io, mem,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until};

use super::Agent;
use crate::{
    attribution::Snapshot,
    collector::{Observation, Purpose},
    config::{Config, parts},
    model::{
        feature::Feature,
        functions::{Code, MOST, SENSOR},
        ids::PodRef,
        mode::Mode,
    },
    pods::Pod,
    recording::{
        Latency, RecordError, Registration, Selector, SubjectName, WantedLatency, blocking, calls_between,
        calls_of_node,
    },
    stacks::{
        Whom,
        lending::{Lent, Measured},
    },
};

/// The most calls of a borrowed function in a second, on all of the node, also such as are not counted: they cost up to
/// a quarter of a CPU. Each call of a function of a program takes two traps, up to 25 us together.
const MOST_OF_PROGRAM: u128 = 10_000;
/// The same for a function of the kernel, at up to 1 us each.
const MOST_OF_KERNEL: u128 = 250_000;
/// The time between two looks at the number of calls.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The time between two tries to get a reading that is new enough, and the number of tries.
const AGAIN: Duration = Duration::from_millis(100);
const TRIES: u32 = 50;
/// The reason why nothing is measured while the step `sensors` is given up.
const SHED: &str = "calls of functions are not counted for now, to cost less (see `overhead.maxPercent`)";

/// A function of a recording.
#[derive(Debug)]
struct Measure {
    /// Its number in the rows.
    function: usize,
    /// The borrowed place, and the code; `None` for a function that the configuration measures.
    borrowed: Option<(Lent, Code)>,
}

impl Agent {
    /// Records the length of calls of a function. Everything that this attaches is detached when it returns, and when
    /// it is dropped.
    ///
    /// # Errors
    ///
    /// Fails if there is no such subject, if the function cannot be measured or readers may not have it measured, or if
    /// no place is free.
    pub async fn measure(
        &self,
        mut registration: Registration,
        wanted: &WantedLatency,
    ) -> Result<Latency, RecordError> {
        let selector = self.find(&wanted.selector).await?;
        let Measure { function, borrowed } = self.find_function(&wanted.function)?;
        // The place may have counts of an earlier recording.
        let before = self.read_since(SystemTime::now()).await?;
        if is_shed(&before) {
            return Err(RecordError::NotTaken(SHED.into()));
        }
        let not = |why: String| RecordError::NotTaken(format!("`{}` is not measured: {why}", wanted.function));
        let mut begins = match borrowed {
            Some((lent, code)) => {
                let (most, whom) = (most_calls(&code), whom(&selector, &before.snapshot));
                let measured = blocking(move || lent.measure(&code, whom)).await.map_err(not)?;
                Some(Begins::of(measured, most).map_err(|error| not(error.to_string()))?)
            }
            None => None,
        };
        registration.began();
        let began = Instant::now();
        let first = calls_of_node(&before.snapshot, function);
        let mut watch = Watch { function, first, begins: begins.as_mut() };
        let ended = self.watch(&mut registration, began + wanted.duration, &mut watch).await?;
        let lasted = began.elapsed();
        let is_borrowed = begins.is_some();
        let lent = match begins {
            Some(Begins { measured, .. }) => blocking(move || measured.end()).await,
            None => None,
        };
        let after = self.read_since(SystemTime::now()).await?;
        drop(lent);
        let duration = if is_borrowed {
            lasted
        } else {
            after.snapshot.taken.duration_since(before.snapshot.taken).unwrap_or(lasted)
        };
        Ok(Latency {
            function: wanted.function.clone(),
            title: selector.to_string(),
            duration,
            calls: calls_between(&before.snapshot, &after.snapshot, &selector, function),
            ended,
        })
    }

    /// Finds a function among those of the configuration. For another one, borrows a place.
    fn find_function(&self, text: &str) -> Result<Measure, RecordError> {
        let config = self.lock_config();
        if !parts::sensors(&config).iter().any(|sensor| sensor.names.sensor == SENSOR) {
            let way = self.runner.measure_functions();
            let why = format!("the sensor `{SENSOR}` is off, which measures calls of functions ({way})");
            return Err(RecordError::NotTaken(why));
        }
        let functions = parts::functions(&config);
        if let Some(function) = functions.iter().position(|function| function.name == text) {
            return Ok(Measure { function, borrowed: None });
        }
        let code = may_measure(&config, text).map_err(RecordError::NotTaken)?;
        let spare = self.spare.as_ref().ok_or_else(|| {
            RecordError::NotTaken(format!("the programs of the sensor `{SENSOR}` do not run (see its part at /status)"))
        })?;
        if functions.len() == MOST {
            let why = format!("all {MOST} places have functions of the configuration (take one out of `functions`)");
            return Err(RecordError::NotTaken(why));
        }
        let lent = spare.lend().ok_or(RecordError::Places { most: MOST, configured: functions.len() })?;
        let function = usize::try_from(lent.function()).unwrap_or(usize::MAX);
        Ok(Measure { function, borrowed: Some((lent, code)) })
    }

    /// Returns a reading that began after this time.
    async fn read_since(&self, time: SystemTime) -> Result<Arc<Observation>, RecordError> {
        let mut tries = 1;
        loop {
            let observation = self.reader.read(Purpose::Look).await?;
            // The clock may have been set back, so there is an end.
            if observation.snapshot.taken >= time || tries == TRIES {
                return Ok(observation);
            }
            tries += 1;
            sleep(AGAIN).await;
        }
    }

    /// Waits for the end of a recording. Returns the reason if it must end early.
    async fn watch(
        &self,
        registration: &mut Registration,
        end: Instant,
        watch: &mut Watch<'_>,
    ) -> Result<Option<String>, RecordError> {
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = sleep_until(end) => return Ok(None),
                () = registration.wanted_to_end() => return Ok(None),
                _ = looks.tick() => {}
            }
            let now = self.reader.read(Purpose::Look).await?;
            if let Some(why) = watch.look(&now) {
                return Ok(Some(why));
            }
            registration.set_count(watch.count(&now));
        }
    }
}

/// A recording that goes on.
#[derive(Debug)]
struct Watch<'a> {
    function: usize,
    /// The number of calls of the node before the recording.
    first: u128,
    /// `None` for a function that the configuration measures.
    begins: Option<&'a mut Begins>,
}

impl Watch<'_> {
    /// Looks at the next reading. Returns the reason if the recording must end now.
    fn look(&mut self, now: &Observation) -> Option<String> {
        if is_shed(now) {
            return Some(SHED.into());
        }
        let begins = self.begins.as_mut()?;
        let number = match begins.measured.begun() {
            Ok(number) => number,
            Err(error) => return Some(format!("the number of calls cannot be read: {error}")),
        };
        let rate = begins.rate.advance(number, Instant::now());
        let most = begins.most;
        (rate > most).then(|| format!("the node calls it {rate} times a second, and at most {most} are measured"))
    }

    fn count(&self, now: &Observation) -> u64 {
        let calls = calls_of_node(&now.snapshot, self.function).saturating_sub(self.first);
        u64::try_from(calls).unwrap_or(u64::MAX)
    }
}

/// A borrowed function that is measured, with the begins of its calls. They have those of calls that are in no
/// histogram: calls within calls, calls in interrupts, and calls that never return.
#[derive(Debug)]
struct Begins {
    measured: Measured,
    /// The most in a second.
    most: u128,
    rate: Rate,
}

impl Begins {
    fn of(measured: Measured, most: u128) -> io::Result<Self> {
        let rate = Rate { number: measured.begun()?, at: Instant::now() };
        Ok(Self { measured, most, rate })
    }
}

/// A number that grows, and the time at which it was read.
#[derive(Debug)]
struct Rate {
    number: u64,
    at: Instant,
}

impl Rate {
    /// Takes the next number. Returns the growth in a second since the previous one.
    fn advance(&mut self, number: u64, at: Instant) -> u128 {
        let more = number.saturating_sub(mem::replace(&mut self.number, number));
        let over = at.duration_since(mem::replace(&mut self.at, at));
        u128::from(more) * 1_000_000_000 / over.as_nanos().max(1)
    }
}

/// Returns the code of a function that is not of the configuration, or the reason why readers may not have it measured.
fn may_measure(config: &Config, text: &str) -> Result<Code, String> {
    if !config.server.any_function {
        let names: Vec<String> = config.functions.iter().map(|keys| format!("`{}`", keys.name)).collect();
        let names = names.join(", ");
        return Err(format!(
            "`{text}` is none of the functions that readers may have measured ({names}; `server.anyFunction: true` \
             allows them all)"
        ));
    }
    let code = Code::of_text(text)?;
    if matches!(code, Code::Program { .. }) && parts::mode(config) != Mode::Profiles {
        return Err(format!(
            "`{text}` is not measured: the agent reads files of programs only for stacks with user frames (set \
             `stacks.enabled: true`, and `stacks.unwind` to `tables` or `frame-pointers`)"
        ));
    }
    Ok(code)
}

const fn most_calls(code: &Code) -> u128 {
    match code {
        Code::Kernel(_) => MOST_OF_KERNEL,
        Code::Program { .. } => MOST_OF_PROGRAM,
    }
}

fn is_shed(observation: &Observation) -> bool {
    observation.overhead.shed.contains(&Feature::Sensors)
}

/// Returns the processes in whose files a function is probed: those of the subject, which may share files with others.
fn whom(selector: &Selector, snapshot: &Snapshot) -> Whom {
    let pods = |is_it: &dyn Fn(&Pod) -> bool| {
        let pods = snapshot.pods.iter().filter(|pod| is_it(pod));
        let names = pods.flat_map(|pod| [pod.uid.map(PodRef::Uid), pod.config_hash.map(PodRef::Static)]);
        Whom::Pods(names.flatten().collect())
    };
    match selector {
        Selector::All => Whom::All,
        Selector::One(SubjectName::Cgroup(path)) | Selector::Below(path) => Whom::Below(path.clone()),
        Selector::One(SubjectName::Container { namespace, pod, .. }) | Selector::Pod { namespace, pod } => {
            pods(&|it| *it.namespace == **namespace && *it.name == **pod)
        }
        Selector::Workload { namespace, workload } => {
            pods(&|it| *it.namespace == **namespace && *it.workload.name == **workload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(yaml: &str, text: &str) -> Result<Code, String> {
        may_measure(&Config::parse(yaml).unwrap(), text)
    }

    #[test]
    fn readers_get_other_functions_only_where_the_configuration_allows_them() {
        let list = "functions: [{name: read, kernel: vfs_read}, {name: write, kernel: vfs_write}]";
        let refused = may(list, "vfs_fsync_range").unwrap_err();
        assert!(refused.contains("(`read`, `write`; `server.anyFunction: true`"), "{refused}");
        let any = "server: {anyFunction: true}";
        assert_eq!(may(any, "vfs_fsync_range"), Ok(Code::Kernel("vfs_fsync_range".into())));
        assert!(may(any, "a b").unwrap_err().contains("bad function `a b`"));
        assert!(matches!(may(any, "/bin/a:main"), Ok(Code::Program { .. })));
        let reasons = format!("{any}\nstacks: {{unwind: none}}");
        assert!(may(&reasons, "/bin/a:main").unwrap_err().contains("stacks with user frames"));
    }

    #[test]
    fn the_rate_of_begins_is_that_since_the_last_look() {
        let at = Instant::now();
        let mut rate = Rate { number: 100, at };
        assert_eq!(rate.advance(1100, at + LOOK_EVERY), 1000);
        assert_eq!(rate.advance(1400, at + 4 * LOOK_EVERY), 100);
    }

    #[test]
    fn a_function_is_probed_in_the_files_of_the_subject() {
        let snapshot =
            Snapshot { pods: vec![Arc::new(Pod::example())], ..Snapshot::of_rows(SystemTime::UNIX_EPOCH, Vec::new()) };
        let whom = |subject: &str| whom(&subject.parse().unwrap(), &snapshot);
        assert_eq!(whom("/a/"), Whom::Below("/a".into()));
        let pod = Whom::Pods(Pod::example().uid.map(PodRef::Uid).into_iter().collect());
        assert_eq!((whom("shop/web"), whom("shop/web/app")), (pod.clone(), pod));
        assert_eq!(whom("shop/other"), Whom::Pods([].into()));
    }
}
