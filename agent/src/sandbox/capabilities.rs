//! The capabilities that the agent keeps: the intersection of its own with those that
//! charts/podperf/templates/_privileges.tpl gives the mode.

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

/// The capabilities for counting.
const METRICS: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];
/// The additional capabilities for naming stacks.
const PROFILES: [Capability; 4] = [
    Capability::CAP_SYS_PTRACE,
    Capability::CAP_SYSLOG,
    Capability::CAP_DAC_READ_SEARCH,
    Capability::CAP_CHECKPOINT_RESTORE,
];
/// From this level of `perf_event_paranoid` on, vendors' patches require `CAP_SYS_ADMIN` in `perf_event_open(2)`.
const PATCHED: i32 = 3;

/// Drops all capabilities that the mode does not need, and returns the remaining ones.
pub(super) fn keep(profiles: bool, paranoid: Option<i32>) -> Result<CapsHashSet, CapsError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let wanted = wanted(&has, profiles, paranoid);
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // A process without CAP_SETPCAP cannot reduce the bounding set. A runtime that withholds it has already reduced the
    // set.
    if has.contains(&Capability::CAP_SETPCAP) && caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for capability in caps::read(None, CapSet::Bounding)?.difference(&wanted) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    caps::set(None, CapSet::Effective, &wanted)?;
    caps::set(None, CapSet::Permitted, &wanted)?;
    Ok(wanted)
}

/// Returns the capabilities in `has` that the agent needs. Pure.
fn wanted(has: &CapsHashSet, profiles: bool, paranoid: Option<i32>) -> CapsHashSet {
    let mode = METRICS.into_iter().chain(PROFILES.into_iter().filter(|_| profiles));
    let mut wanted: CapsHashSet = mode.filter(|capability| has.contains(capability)).collect();
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which were split off from it.
    let old_fashioned = METRICS.iter().any(|capability| !has.contains(capability));
    if has.contains(&Capability::CAP_SYS_ADMIN) && (old_fashioned || paranoid.is_some_and(|level| level >= PATCHED)) {
        wanted.insert(Capability::CAP_SYS_ADMIN);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_keeps_what_it_needs_and_has() {
        let (all, metrics) = (caps::all(), CapsHashSet::from(METRICS));
        assert_eq!(wanted(&all, false, Some(2)), metrics);
        assert_eq!(wanted(&all, true, Some(2)), METRICS.into_iter().chain(PROFILES).collect());
        assert_eq!(wanted(&metrics, true, Some(2)), metrics);
        assert_eq!(wanted(&CapsHashSet::new(), true, Some(4)), CapsHashSet::new());
    }

    #[test]
    fn sys_admin_is_kept_where_it_is_needed() {
        let admin = CapsHashSet::from([Capability::CAP_SYS_ADMIN]);
        assert_eq!(wanted(&admin, false, Some(2)), admin, "it stands for both");
        assert!(wanted(&caps::all(), false, Some(3)).contains(&Capability::CAP_SYS_ADMIN), "a patched kernel");
        assert!(!wanted(&caps::all(), true, Some(2)).contains(&Capability::CAP_SYS_ADMIN));
    }
}
