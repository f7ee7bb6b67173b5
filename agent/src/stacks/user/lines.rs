//! Finds the files of a recording's frames in the processes that are known.

use std::sync::Arc;

use super::User;
use crate::stacks::{
    lines::{WantedFile, WantedLines},
    process::{Life, Process},
};

/// The largest number of mappings through which a file is tried.
const MAX_PLACES: usize = 8;

impl User {
    /// Returns the wanted files that processes have mapped, or had mapped when they were last seen.
    pub(in crate::stacks) fn files_of(&self, wanted: WantedLines) -> Vec<WantedFile> {
        let lives = |process: &&Process| Life::of(process.pid) == Some(process.life);
        let (living, gone): (Vec<_>, Vec<_>) = self.processes.values().partition(lives);
        let mut files = wanted.into_files();
        for process in living.into_iter().chain(gone) {
            for span in &process.spans {
                if let (Some(mapping), Some(object)) = (&span.mapping, &span.object)
                    && let Some(file) = files.get_mut(mapping)
                    && file.places.len() < MAX_PLACES
                {
                    file.places.push((Arc::clone(object), process.pid, span.vma.clone()));
                }
            }
        }
        files.into_values().filter(|file| !file.places.is_empty()).collect()
    }
}
