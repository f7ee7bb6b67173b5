//! Tells the sensors that count only some namespaces which cgroups are of their pods.

use std::sync::Arc;

use tracing::debug;

use super::{Collector, names};
use crate::kernel::clock::monotonic_ns;

impl Collector {
    /// Fills the tables of these sensors, if cgroups or pods may have changed. A cgroup is chosen once its pod is known.
    /// A pod without series of its own is never chosen, since its counts would be in the row of all pods.
    pub(super) fn choose_cgroups(&mut self) {
        if self.settings.choices.is_empty() || !std::mem::take(&mut self.choices_are_old) {
            return;
        }
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
            let chosen = of_pods.iter().filter(|(.., namespace)| namespaces.has(namespace));
            let chosen: Vec<_> = chosen.map(|(_, id, _)| *id).collect();
            if let Err(error) = self.sensors.choose_cgroups(table, &chosen) {
                debug!(%error, table, "not all cgroups are chosen, the next reading does it");
            }
        }
    }
}
