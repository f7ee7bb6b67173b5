//! The CPUs that the machine keeps free for its own threads: `isolcpus=` and `nohz_full=`. Reading is I/O; parsing is
//! pure.
//!
//! Unless `overhead.interruptIsolatedCpus` is true, these CPUs are *quiet*: they are not sampled, and no reading
//! interrupts them.

use std::{collections::BTreeSet, fmt, fs};

use crate::events::pmu::cpu_list;

/// The isolated CPUs, by the kernel's lists in sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// CPUs on which the scheduler places no thread by itself.
    pub isolated: Vec<u32>,
    /// CPUs without a tick while they run a single thread.
    pub nohz_full: Vec<u32>,
}

impl Isolation {
    /// Returns the isolated CPUs of this machine. Kernels without such a list have none.
    #[must_use]
    pub fn read() -> Self {
        let list = |file| fs::read_to_string(format!("/sys/devices/system/cpu/{file}")).unwrap_or_default();
        Self::parse(&list("isolated"), &list("nohz_full"))
    }

    fn parse(isolated: &str, nohz_full: &str) -> Self {
        // Without `nohz_full=`, kernels print `(null)` or an empty line.
        let list = |text| cpu_list(text).unwrap_or_default();
        Self { isolated: list(isolated), nohz_full: list(nohz_full) }
    }

    /// Returns the CPUs of both lists, in ascending order.
    #[must_use]
    pub fn cpus(&self) -> Vec<u32> {
        let cpus: BTreeSet<u32> = self.isolated.iter().chain(&self.nohz_full).copied().collect();
        cpus.into_iter().collect()
    }
}

/// Displays ascending CPUs in the kernel's form, such as `2-5,8`.
#[derive(Clone, Copy, Debug)]
pub struct CpuRanges<'a>(pub &'a [u32]);

impl fmt::Display for CpuRanges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.0.chunk_by(|cpu, next| cpu + 1 == *next);
        for (number, range) in ranges.enumerate() {
            let comma = if number > 0 { "," } else { "" };
            match range {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lists_are_one_list_of_isolated_cpus() {
        let isolation = Isolation::parse("2-3,8\n", "3-5\n");
        assert_eq!(isolation, Isolation { isolated: vec![2, 3, 8], nohz_full: vec![3, 4, 5] });
        assert_eq!(isolation.cpus(), [2, 3, 4, 5, 8]);
        assert_eq!(CpuRanges(&isolation.cpus()).to_string(), "2-5,8");
        assert_eq!(CpuRanges(&[1, 3, 4]).to_string(), "1,3-4");
    }

    #[test]
    fn a_machine_without_isolated_cpus_has_none() {
        for (isolated, nohz_full) in [("\n", "\n"), ("", "  (null)\n"), ("\n", "(null)")] {
            assert_eq!(Isolation::parse(isolated, nohz_full), Isolation::default());
        }
    }
}
