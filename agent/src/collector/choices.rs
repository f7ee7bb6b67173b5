//! Fills the tables of the sensors that count only some namespaces, with the cgroups of their pods.

use std::{collections::HashMap, mem, sync::Arc, time::Instant};

use tracing::debug;

use super::{Collector, names};
use crate::kernel::clock::monotonic_ns;

/// The pause after a fill of the tables between two readings, in lengths of that fill: a pod may make cgroups all the
/// time.
const PAUSE: u32 = 20;

impl Collector {
    /// Does [`Self::choose_cgroups`] between two readings, as often as its time allows.
    pub(super) fn choose_new_cgroups(&mut self) {
        if Instant::now() >= self.choose_from {
            self.choose_cgroups();
        }
    }

    /// Fills the tables of these sensors, if cgroups or pods may have changed. A cgroup is chosen once its pod is
    /// known. A pod without series of its own is never chosen, since its counts would be in the row of all pods.
    pub(super) fn choose_cgroups(&mut self) {
        if self.settings.choices.is_empty() || !mem::take(&mut self.choices_are_old) {
            return;
        }
        let start = Instant::now();
        let (now_ns, rules) = (monotonic_ns(), &self.settings.rules);
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        let of_pods = self.tree.cgroups().filter_map(|(id, place)| {
            let owner = names.owner(place, now_ns);
            let pod = owner.pod().filter(|pod| rules.wants(pod).is_ok())?;
            Some((!place.is_container(), id, Arc::clone(&pod.namespace)))
        });
        // Cgroups that containers make in their own come last: no container takes the room of others.
        let mut of_pods: Vec<_> = of_pods.collect();
        of_pods.sort_unstable();
        for &(table, ref namespaces) in &self.settings.choices {
            // A node has far fewer namespaces than cgroups, and patterns are slow.
            let mut known: HashMap<&str, bool> = HashMap::new();
            let mut is_chosen = |name| *known.entry(name).or_insert_with(|| namespaces.has(name));
            let chosen = of_pods.iter().filter(|(.., namespace)| is_chosen(namespace));
            let chosen: Vec<_> = chosen.map(|(_, id, _)| *id).collect();
            if let Err(error) = self.sensors.choose_cgroups(table, &chosen) {
                debug!(%error, table, "not all cgroups are chosen, the next reading does it");
            }
        }
        self.choose_from = Instant::now() + start.elapsed() * PAUSE;
    }
}
