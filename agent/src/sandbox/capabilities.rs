//! The capabilities that the agent keeps: the intersection of its own with those that
//! charts/podperf/templates/_privileges.tpl gives the mode.

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

use crate::model::mode::Mode;

/// The capabilities for counting.
const METRICS: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];
/// The additional capability for the names of kernel functions, and so for the reasons of waits.
const REASONS: [Capability; 1] = [Capability::CAP_SYSLOG];
/// The additional capabilities for naming user frames.
const PROFILES: [Capability; 3] =
    [Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH, Capability::CAP_CHECKPOINT_RESTORE];
/// From this level of `perf_event_paranoid` on, vendors' patches require `CAP_SYS_ADMIN` in `perf_event_open(2)`.
const PATCHED: i32 = 3;

/// Drops all capabilities that the mode does not need, and returns the remaining ones.
pub(super) fn keep(mode: Mode, paranoid: Option<i32>, probes: bool) -> Result<CapsHashSet, CapsError> {
    let has = caps::read(None, CapSet::Permitted)?;
    let wanted = wanted(&has, mode, paranoid, probes);
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

/// Returns the capabilities in `has` that the agent needs. `probes` is true for probes in programs: since July 2025 all
/// kernels want `CAP_SYS_ADMIN` for them (CVE-2025-38466). Pure.
fn wanted(has: &CapsHashSet, mode: Mode, paranoid: Option<i32>, probes: bool) -> CapsHashSet {
    let mut wanted: CapsHashSet = of(mode).filter(|capability| has.contains(capability)).collect();
    // CAP_SYS_ADMIN includes CAP_BPF and CAP_PERFMON, which were split off from it.
    let old_fashioned = METRICS.iter().any(|capability| !has.contains(capability));
    let patched = paranoid.is_some_and(|level| level >= PATCHED);
    if has.contains(&Capability::CAP_SYS_ADMIN) && (old_fashioned || patched || probes) {
        wanted.insert(Capability::CAP_SYS_ADMIN);
    }
    wanted
}

/// Returns the capabilities of a mode.
fn of(mode: Mode) -> impl Iterator<Item = Capability> {
    let reasons = REASONS.into_iter().filter(move |_| mode != Mode::Metrics);
    let profiles = PROFILES.into_iter().filter(move |_| mode == Mode::Profiles);
    METRICS.into_iter().chain(reasons).chain(profiles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_keeps_what_it_needs_and_has() {
        let (all, metrics) = (caps::all(), CapsHashSet::from(METRICS));
        let reasons: CapsHashSet = METRICS.into_iter().chain(REASONS).collect();
        assert_eq!(wanted(&all, Mode::Metrics, Some(2), false), metrics);
        assert_eq!(wanted(&all, Mode::Reasons, Some(2), false), reasons);
        assert_eq!(wanted(&all, Mode::Profiles, Some(2), false), reasons.iter().copied().chain(PROFILES).collect());
        assert_eq!(wanted(&metrics, Mode::Profiles, Some(2), false), metrics);
        assert_eq!(wanted(&CapsHashSet::new(), Mode::Profiles, Some(4), false), CapsHashSet::new());
    }

    #[test]
    fn sys_admin_is_kept_where_it_is_needed() {
        let admin = CapsHashSet::from([Capability::CAP_SYS_ADMIN]);
        assert_eq!(wanted(&admin, Mode::Metrics, Some(2), false), admin, "it stands for both");
        assert!(
            wanted(&caps::all(), Mode::Metrics, Some(3), false).contains(&Capability::CAP_SYS_ADMIN),
            "a patched kernel"
        );
        assert!(!wanted(&caps::all(), Mode::Profiles, Some(2), false).contains(&Capability::CAP_SYS_ADMIN));
        assert!(wanted(&caps::all(), Mode::Profiles, Some(2), true).contains(&Capability::CAP_SYS_ADMIN), "for probes");
    }
}
