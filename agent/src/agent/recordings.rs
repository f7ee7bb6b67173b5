//! Recordings of the agent, and the search for their subjects.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Agent, suggestions::suggestion};
use crate::{
    attribution::{Row, Snapshot},
    collector::{Observation, Purpose},
    config::{self, Runner, Settings, parts},
    model::{feature::Feature, lock::Lock, mode::Mode},
    recording::{self, LOST_WINDOW, Merged, RecordError, Registration, Selector, Side, SubjectName, Wanted},
    stacks::profile::Profile,
};

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
        let wanted = &Wanted { selector: self.find(&wanted.selector).await?, ..wanted.clone() };
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

    /// Returns the selection of an existing subject. A name that no pod has may be that of a workload.
    ///
    /// # Errors
    ///
    /// Fails if there is no such subject, or if the kernel's maps cannot be read.
    pub async fn find(&self, selector: &Selector) -> Result<Selector, RecordError> {
        // The windows are at hand, and a reading may have to be made.
        let windows = self.windows.recent();
        let is_in_windows = |selector: &Selector| {
            windows.iter().flat_map(|window| &window.subjects).any(|subject| selector.takes(&subject.subject))
        };
        if *selector == Selector::All || is_in_windows(selector) {
            return Ok(selector.clone());
        }
        let observation = self.reader.read(Purpose::Look).await?;
        if is_in(&observation.snapshot, selector) {
            return Ok(selector.clone());
        }
        if let Some(workload) = selector.as_workload()
            && (is_in(&observation.snapshot, &workload) || is_in_windows(&workload))
        {
            return Ok(workload);
        }
        self.find_cgroup(selector, observation).await
    }

    /// Returns the selection of a cgroup that has not run yet, and so has no row.
    async fn find_cgroup(&self, selector: &Selector, observation: Arc<Observation>) -> Result<Selector, RecordError> {
        let text = selector.to_string();
        let unknown = |what, hint| RecordError::Unknown { what, name: text.clone(), hint };
        let (Selector::One(SubjectName::Cgroup(path)) | Selector::Below(path)) = selector else {
            let what = if matches!(selector, Selector::Pod { .. }) { "pod" } else { "container" };
            if self.pods.is_none() {
                let hint = "pods have no names here; `--identity kubernetes --kubeconfig FILE` gives them theirs";
                return Err(unknown(what, hint.into()));
            }
            let none = "no pod of this node has a similar name; `kubectl get pods --output wide` shows all nodes";
            let hint = self.like(&text, selector, observation).await;
            return Err(unknown(what, hint.unwrap_or_else(|| none.into())));
        };
        if path.split('/').any(|part| part == "..") || !self.cgroup_root.join(path.trim_start_matches('/')).is_dir() {
            let hint = self.like(&text, selector, observation).await;
            return Err(unknown("cgroup", hint.unwrap_or_else(|| "none here has a similar name".into())));
        }
        let row = self.row_of(path);
        if row == *path || matches!(selector, Selector::Below(_)) && row.starts_with(&**path) {
            return Ok(selector.clone());
        }
        let hint = format!("it is counted in `{row}`; a larger `cgroups.depth` gives it a row of its own");
        Err(unknown("row", hint))
    }

    /// Returns a sentence with the pods, workloads and cgroups whose names are like a word that is no subject. A bad
    /// argument costs no reading: the last one has the names.
    pub async fn suggest(&self, word: &str) -> Option<String> {
        self.like(word, &Selector::All, self.reader.last()?).await
    }

    /// Returns a sentence with the names of this kind that are like a text.
    async fn like(&self, text: &str, kind: &Selector, observation: Arc<Observation>) -> Option<String> {
        let (kind, windows) = (kind.clone(), self.windows.recent());
        suggestion(text.to_owned(), move || names_like(&kind, &observation.snapshot, &windows)).await
    }

    fn row_of(&self, path: &str) -> String {
        let config = self.lock_config().clone();
        Settings::try_from(config).map_or_else(|_| path.to_owned(), |it| it.rules.selection.row(path).to_owned())
    }

    async fn why_nothing(&self, wanted: &Wanted, merged: &Merged) -> String {
        let (who, seconds) = (&merged.title, merged.duration.as_secs_f64());
        let observation = self.reader.read(Purpose::Look).await.ok();
        let shed = observation.as_ref().is_some_and(|it| it.overhead.shed.contains(&Feature::Profiles));
        let names = observation.map_or_else(BTreeSet::new, |it| names(&it.snapshot, &self.windows.recent()));
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

/// Returns the names of all subjects.
fn names(snapshot: &Snapshot, windows: &[Arc<Profile>]) -> BTreeSet<SubjectName> {
    let mut names = BTreeSet::new();
    for pod in &snapshot.pods {
        names.extend(pod.containers.iter().map(|container| SubjectName::Container {
            namespace: pod.namespace.to_string(),
            pod: pod.name.to_string(),
            container: container.name.to_string(),
        }));
    }
    for row in &snapshot.rows {
        if let Selector::One(name @ SubjectName::Cgroup(_)) = Selector::from(&row.row) {
            names.insert(name);
        }
    }
    for window in windows {
        names.extend(window.subjects.iter().map(|subject| SubjectName::from(&subject.subject)));
    }
    names
}

/// Returns the names of all subjects of this kind: containers, pods and workloads, cgroups, or all but containers.
fn names_like(kind: &Selector, snapshot: &Snapshot, windows: &[Arc<Profile>]) -> BTreeSet<String> {
    let of_containers = matches!(kind, Selector::One(SubjectName::Container { .. }));
    let of_pods = matches!(kind, Selector::All | Selector::Pod { .. });
    let of_cgroups = !of_containers && !matches!(kind, Selector::Pod { .. });
    let mut like = BTreeSet::new();
    for name in names(snapshot, windows) {
        match name {
            SubjectName::Container { namespace, pod, .. } if of_pods => like.insert(format!("{namespace}/{pod}")),
            SubjectName::Container { .. } if of_containers => like.insert(name.to_string()),
            SubjectName::Cgroup(path) if of_cgroups => like.insert(path),
            _ => false,
        };
    }
    if of_pods {
        like.extend(snapshot.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.workload.name)));
    }
    like
}

/// Returns whether the node has this pod, container or workload, or a row of this cgroup.
fn is_in(snapshot: &Snapshot, selector: &Selector) -> bool {
    let mut pods = snapshot.pods.iter();
    let mut rows = snapshot.rows.iter().filter_map(|row| match &row.row {
        Row::Cgroup(path) => Some(&**path),
        _ => None,
    });
    match selector {
        Selector::All => true,
        Selector::Pod { namespace, pod } => pods.any(|it| *it.namespace == **namespace && *it.name == **pod),
        Selector::Workload { namespace, workload } => {
            pods.any(|it| *it.namespace == **namespace && *it.workload.name == **workload)
        }
        Selector::One(SubjectName::Container { namespace, pod, container }) => pods
            .filter(|it| *it.namespace == **namespace && *it.name == **pod)
            .any(|it| it.containers.iter().any(|known| *known.name == **container)),
        Selector::One(SubjectName::Cgroup(path)) => rows.any(|row| row == path),
        Selector::Below(_) => rows.any(|row| selector.has(&SubjectName::Cgroup(row.to_owned()))),
    }
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
}
