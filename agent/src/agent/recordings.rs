//! Recordings of the agent, and the check of their subjects.

use std::{collections::BTreeSet, time::Duration};

use tokio::sync::Semaphore;

use super::Agent;
use crate::{
    collector::{Observation, Purpose},
    config::{self, Runner, Settings, parts},
    model::{feature::Feature, lock::Lock, mode::Mode},
    recording::{self, LOST_WINDOW, Merged, RecordError, Registration, Selector, Side, SubjectName, Wanted},
};

/// Number of similar names that an error suggests for an unknown name.
const NEAREST: usize = 3;
/// The part of a text or a name that is compared, in bytes: the time to compare two grows with both.
const COMPARED: usize = 256;

impl Agent {
    /// Registers a recording, under an id by which other requests may end it.
    ///
    /// # Errors
    ///
    /// Fails if there are too many recordings, or too little memory.
    pub fn enter(&self, id: Option<&str>) -> Result<Registration, RecordError> {
        self.has_memory()?;
        // A recording may hold as much as the windows of the last minutes.
        self.drawer.has_room(self.windows.version().1)?;
        self.windows.enter(id).ok_or(RecordError::Busy)
    }

    /// Checks that recordings and flame graphs are not given up.
    ///
    /// # Errors
    ///
    /// Fails if they are given up.
    pub fn has_memory(&self) -> Result<(), RecordError> {
        if self.windows.has_memory() { Ok(()) } else { Err(RecordError::Memory) }
    }

    /// Makes a recording.
    ///
    /// # Errors
    ///
    /// Fails if the name is unknown, if stacks are not taken, or if there were none.
    pub async fn record(&self, registration: Registration, wanted: &Wanted) -> Result<Merged, RecordError> {
        self.takes(wanted.side)?;
        self.know(&wanted.selector).await?;
        if let Some(label) = config::label_not_kept(&wanted.filter, &self.lock_config()) {
            return Err(RecordError::NotTaken(label));
        }
        let mut merged = recording::record(&self.reader, registration, wanted).await?;
        merged.user_frames_off = self.user_frames_off();
        if merged.subjects.is_empty() {
            return Err(RecordError::Nothing(self.why_nothing(wanted, &merged).await));
        }
        Ok(if wanted.lines { self.with_lines(merged).await } else { merged })
    }

    /// Looks up the source lines of a recording.
    async fn with_lines(&self, merged: Merged) -> Merged {
        // A large recording has millions of frames, and the server has one thread for all requests.
        let collected = tokio::task::spawn_blocking(move || (merged.wanted_lines(), merged)).await;
        match collected {
            Ok((wanted, merged)) => Merged { lines: self.lines.find(wanted).await, ..merged },
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// Checks whether flame graphs of this side can be drawn.
    ///
    /// # Errors
    ///
    /// Fails if stacks are not taken, or if there is too little memory.
    pub fn can_draw(&self, side: Side) -> Result<(), RecordError> {
        self.has_memory()?;
        self.takes(side)
    }

    /// Returns the shortest duration of a wait that is reported individually.
    #[must_use]
    pub fn long_wait(&self) -> Duration {
        match self.lock_config().stacks.long_wait {
            // Zero means that no wait is reported individually.
            Duration::ZERO => Duration::MAX,
            least => least,
        }
    }

    /// Returns true if the configuration turns on the sensor that finds waits for locks.
    #[must_use]
    pub fn finds_locks(&self) -> bool {
        parts::sensors(&self.lock_config()).iter().any(|sensor| sensor.names.sensor == Lock::SENSOR)
    }

    /// Returns the part of stacks that is taken.
    #[must_use]
    pub fn mode(&self) -> Mode {
        parts::mode(&self.lock_config())
    }

    /// Returns the runner of the agent, whose settings people change.
    #[must_use]
    pub const fn runner(&self) -> Runner {
        self.runner
    }

    /// Returns the way to turn user frames on; `None` if they are on.
    #[must_use]
    pub fn user_frames_off(&self) -> Option<&'static str> {
        (self.mode() == Mode::Reasons).then(|| self.runner.take_user_frames())
    }

    fn takes(&self, side: Side) -> Result<(), RecordError> {
        if self.mode() == Mode::Metrics {
            let (side, way) = (side.name(), self.runner.take_stacks());
            return Err(RecordError::NotTaken(format!("no {side} stacks are taken ({way})")));
        }
        if side == Side::Locks && !self.finds_locks() {
            let way = self.runner.find_locks();
            let why = format!("the sensor `locks` is off, which finds waits for locks ({way})");
            return Err(RecordError::NotTaken(why));
        }
        Ok(())
    }

    /// Checks that the selector names an existing subject.
    async fn know(&self, selector: &Selector) -> Result<(), RecordError> {
        let observation = self.reader.read(Purpose::Look).await?;
        let names = self.names(&observation);
        if *selector == Selector::All || names.iter().any(|name| selector.has(name)) {
            return Ok(());
        }
        let text = selector.to_string();
        let unknown = |what, hint| Err(RecordError::Unknown { what, name: text.clone(), hint });
        let (Selector::One(SubjectName::Cgroup(path)) | Selector::Below(path)) = selector else {
            let what = if matches!(selector, Selector::Pod { .. }) { "pod" } else { "container" };
            if self.pods.is_none() {
                let hint = "pods have no names here; `--identity kubernetes --kubeconfig FILE` gives them theirs";
                return unknown(what, hint.into());
            }
            return unknown(what, nearest(text.clone(), names).await);
        };
        // A cgroup that has not run yet has no row, but may run soon.
        if path.split('/').any(|part| part == "..") || !self.cgroup_root.join(path.trim_start_matches('/')).is_dir() {
            return unknown("cgroup", nearest(text.clone(), names).await);
        }
        let row = self.row_of(path);
        if row == *path || matches!(selector, Selector::Below(_)) && row.starts_with(&**path) {
            return Ok(());
        }
        unknown("row", format!("it is counted in `{row}`; a larger `cgroups.depth` gives it a row of its own"))
    }

    fn names(&self, observation: &Observation) -> BTreeSet<SubjectName> {
        let mut names = BTreeSet::new();
        for pod in &observation.snapshot.pods {
            names.extend(pod.containers.iter().map(|container| SubjectName::Container {
                namespace: pod.namespace.to_string(),
                pod: pod.name.to_string(),
                container: container.name.to_string(),
            }));
        }
        for row in &observation.snapshot.rows {
            if let Selector::One(name @ SubjectName::Cgroup(_)) = Selector::from(&row.row) {
                names.insert(name);
            }
        }
        for window in self.windows.recent() {
            names.extend(window.subjects.iter().map(|subject| SubjectName::from(&subject.subject)));
        }
        names
    }

    fn row_of(&self, path: &str) -> String {
        let config = self.lock_config().clone();
        Settings::try_from(config).map_or_else(|_| path.to_owned(), |it| it.rules.selection.row(path).to_owned())
    }

    async fn why_nothing(&self, wanted: &Wanted, merged: &Merged) -> String {
        let (who, seconds) = (&merged.title, merged.duration.as_secs_f64());
        let observation = self.reader.read(Purpose::Look).await.ok();
        let shed = observation.as_ref().is_some_and(|it| it.overhead.shed.contains(&Feature::Profiles));
        let names = observation.map_or_else(BTreeSet::new, |it| self.names(&it));
        let advice = advice(&wanted.selector, &names);
        match wanted.side {
            _ if shed => "profiles are given up for now, to cost less (see `overhead.maxPercent`)".into(),
            _ if merged.losses.iter().any(|(reason, _)| *reason == LOST_WINDOW) => {
                "the names of its stacks were not found in time on a busy node (try again)".into()
            }
            Side::OnCpu if merged.sample_period.is_none() => "the agent takes no samples on the CPU".into(),
            Side::OnCpu => format!("`{who}` was not seen on a CPU in {seconds:.1} s ({advice})"),
            Side::Locks => format!(
                "`{who}` ended no wait for a lock in {seconds:.1} s ({advice}; the sensor `locks` needs Linux 5.19)"
            ),
            Side::OffCpu => format!("`{who}` ended no wait in {seconds:.1} s ({advice})"),
        }
    }
}

/// Returns what helps if a recording is empty. A cgroup with other cgroups in it may have no process of its own.
fn advice(selector: &Selector, names: &BTreeSet<SubjectName>) -> String {
    let below = selector.with_all_below().filter(|all| names.iter().any(|name| all.has(name) && !selector.has(name)));
    below.map_or_else(
        || "record for longer".into(),
        |all| format!("record for longer, or record `{all}`, which has the cgroups below it, too"),
    )
}

/// Returns a hint with the most similar names. It compares on another thread, since the server has one thread for all
/// requests, and a node may have thousands of names.
async fn nearest(text: String, names: BTreeSet<SubjectName>) -> String {
    static ONE: Semaphore = Semaphore::const_new(1);
    let Ok(one) = ONE.acquire().await else { return String::new() };
    // The comparison goes on if the client goes away.
    let compare = move || {
        let hint = nearest_of(&text, &names);
        drop(one);
        hint
    };
    tokio::task::spawn_blocking(compare).await.unwrap_or_default()
}

fn nearest_of(text: &str, names: &BTreeSet<SubjectName>) -> String {
    let cut = |text: &str| text[..text.floor_char_boundary(COMPARED)].to_owned();
    let last = |text: &str| cut(text.rsplit('/').next().unwrap_or_default());
    let (whole, its_last) = (cut(text), last(text));
    let likeness =
        |name: &str| strsim::jaro_winkler(&whole, &cut(name)).max(strsim::jaro_winkler(&its_last, &last(name)));
    let mut names: Vec<(f64, String)> =
        names.iter().map(ToString::to_string).map(|name| (likeness(&name), name)).collect();
    names.sort_by(|a, b| b.0.total_cmp(&a.0));
    names.truncate(NEAREST);
    if names.is_empty() {
        return "none are known yet; try again in a moment".into();
    }
    let names: Vec<_> = names.iter().map(|(_, name)| format!("`{name}`")).collect();
    format!("did you mean {}?", names.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_recording_of_a_cgroup_names_the_cgroups_below_it() {
        let names = BTreeSet::from(["/a", "/a/b", "/c", "/cd"].map(|path| SubjectName::Cgroup(path.into())));
        let advice = |text: &str| advice(&text.parse().unwrap(), &names);
        assert!(advice("/a").contains("record `/a/`, which"), "{}", advice("/a"));
        for text in ["/a/b", "/c", "/a/", "/", "shop/web"] {
            assert_eq!(advice(text), "record for longer", "{text}");
        }
    }

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["/", "/system.slice/ssh.service", "/system.slice/cron.service", "/user.slice"];
        let names = names.iter().map(|path| SubjectName::Cgroup((*path).into())).collect();
        let hint = nearest_of("/system.slice/sssh.service", &names);
        assert!(hint.starts_with("did you mean `/system.slice/ssh.service` or"), "{hint}");
        assert!(nearest_of("/a", &BTreeSet::new()).contains("try again"));
        // A long text is compared in part, also where its characters have several bytes.
        assert!(nearest_of(&format!("/{}", "é".repeat(4000)), &names).starts_with("did you mean"));
    }
}
