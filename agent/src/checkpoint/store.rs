//! The file of the checkpoint: read once, and written before each reading is shown.

use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    State,
    format::{self, FormatError},
};

const NAME: &str = "kept.state";
/// Private, because the file contains the names, images, labels and annotations of all pods.
const MODE: u32 = 0o600;

/// Reads and writes the file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    boot: String,
    stats: RestartStats,
}

/// Numbers for the metrics about restarts.
#[derive(Clone, Debug, Default)]
pub struct RestartStats {
    /// Number of agent starts, by kind of start.
    pub starts: BTreeMap<String, u64>,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// Duration of the last write.
    pub took: Duration,
    /// Number of failed writes.
    pub failures: u64,
}

/// The state that the previous agent left.
#[derive(Debug)]
pub enum Found {
    /// No file, or a file of another boot: the reboot has ended its counts as well.
    Nothing,
    /// A whole checkpoint.
    State(Box<State>),
    /// A file that cannot be used, with the reason.
    Unusable(String),
}

impl Store {
    /// Creates a store for the file in this directory.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self { path: directory.join(NAME), boot: boot.trim().to_owned(), stats: RestartStats::default() }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the id of this boot of the machine.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Reads the checkpoint of the previous agent.
    #[must_use]
    pub fn load(&self) -> Found {
        match fs::read(&self.path) {
            Ok(text) => match format::decode(&text) {
                Ok(state) if state.boot == self.boot => Found::State(Box::new(state)),
                Ok(_) => Found::Nothing,
                Err(error @ (FormatError::Foreign | FormatError::Version(_) | FormatError::Damaged)) => {
                    Found::Unusable(error.to_string())
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Nothing,
            Err(error) => Found::Unusable(error.to_string()),
        }
    }

    /// Notes the kind of this agent's start; `before` has the starts of previous agents.
    pub fn began(&mut self, before: Option<&BTreeMap<String, u64>>, how: &str) {
        self.stats.starts = before.cloned().unwrap_or_default();
        *self.stats.starts.entry(how.to_owned()).or_default() += 1;
    }

    /// Returns the numbers for the metrics.
    #[must_use]
    pub const fn stats(&self) -> &RestartStats {
        &self.stats
    }

    /// Writes the file whole or not at all. The write is not synced to the disk, because the content is void after a
    /// reboot.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written; the previous file then stays.
    pub fn save(&mut self, state: &State) -> io::Result<()> {
        let start = Instant::now();
        let written = self.write(state);
        self.stats.took = start.elapsed();
        match written {
            Ok(bytes) => {
                self.stats.bytes = bytes;
                Ok(())
            }
            Err(error) => {
                self.stats.failures += 1;
                Err(error)
            }
        }
    }

    fn write(&self, state: &State) -> io::Result<u64> {
        let text = format::encode(state)?;
        let temporary = self.path.with_extension("new");
        let mut file = File::options().write(true).create(true).truncate(true).mode(MODE).open(&temporary)?;
        // The file of an earlier agent may have another mode.
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.write_all(&text)?;
        fs::rename(&temporary, &self.path)?;
        Ok(text.len() as u64)
    }

    /// Removes the file. Returns `true` if there was one.
    ///
    /// # Errors
    ///
    /// Fails if the file exists and cannot be removed.
    pub fn forget(&self) -> io::Result<bool> {
        let mut any = false;
        for path in [self.path.with_extension("new"), self.path.clone()] {
            match fs::remove_file(path) {
                Ok(()) => any = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_else_can_read_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(directory.path());
        let left = store.path().with_extension("new");
        fs::write(&left, "left behind").unwrap();
        fs::set_permissions(&left, Permissions::from_mode(0o644)).unwrap();
        for _ in 0..2 {
            store.save(&State::default()).unwrap();
            assert_eq!(fs::metadata(store.path()).unwrap().permissions().mode() & 0o7777, 0o600);
        }
    }

    #[test]
    fn what_is_of_another_boot_is_nothing_and_what_is_damaged_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = Store::new(directory.path());
        assert!(matches!(store.load(), Found::Nothing));
        store.save(&State { boot: store.boot().to_owned(), readings: 3, ..State::default() }).unwrap();
        assert!(matches!(store.load(), Found::State(state) if state.readings == 3));
        store.save(&State { boot: "another".into(), ..State::default() }).unwrap();
        assert!(matches!(store.load(), Found::Nothing));
        fs::write(store.path(), "podperf-kept 1 00000000 0\n1").unwrap();
        assert!(matches!(store.load(), Found::Unusable(why) if why == "damaged"));
        assert!(store.forget().unwrap() && !store.forget().unwrap());
    }
}
