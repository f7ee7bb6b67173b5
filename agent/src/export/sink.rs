//! The sinks of profiles: each window of the symbolizer goes to all of them.

use std::{fmt::Debug, sync::Arc};

use crate::{recording::Windows, stacks::profile::Profile};

/// A consumer of profiles.
pub trait ProfileSink: Debug + Send + Sync {
    /// Takes the profile of a window. The symbolizer calls this for each window, so it must not wait. The samples have
    /// passed any filter: that of the agent's own profiles, or that of a recording. A sink selects the samples of its
    /// filter itself.
    fn take(&self, profile: &Arc<Profile>);
}

/// The pages of the last minutes, and the recordings in progress.
impl ProfileSink for Windows {
    fn take(&self, profile: &Arc<Profile>) {
        self.publish(profile);
    }
}

/// The sinks of an agent, in the order in which they take a profile.
#[derive(Debug, Default)]
pub struct Sinks(Vec<Arc<dyn ProfileSink>>);

impl Sinks {
    /// Adds a sink.
    pub fn add(&mut self, sink: Arc<dyn ProfileSink>) {
        self.0.push(sink);
    }

    /// Gives the profile of a window to all sinks. They share it.
    pub fn take(&self, profile: Profile) {
        let profile = Arc::new(profile);
        self.0.iter().for_each(|sink| sink.take(&profile));
    }
}
