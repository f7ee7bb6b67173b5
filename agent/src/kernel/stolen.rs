//! The time that the hypervisor took from the node's CPUs, by the kernel's account in `/proc/stat`.

use nix::unistd::{SysconfVar, sysconf};

use super::proc::read_text;

/// The begin of the line with the sums of all CPUs.
const ALL_CPUS: &str = "cpu ";
/// The place of stolen time in it, after user, nice, system, idle, iowait, irq and softirq.
const STOLEN: usize = 7;

/// Returns the stolen time of all CPUs since boot, in nanoseconds. It is 0 if the kernel does not count it, and `None`
/// if the file cannot be read.
pub(super) fn stolen_ns() -> Option<u64> {
    let hertz = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|hertz| u64::try_from(hertz).ok());
    stolen_in(&read_text("/proc/stat").ok()?, hertz.unwrap_or(100))
}

/// Returns the stolen time in the text of `/proc/stat`, whose ticks are so many a second.
fn stolen_in(stat: &str, hertz: u64) -> Option<u64> {
    let sums = stat.lines().find_map(|line| line.strip_prefix(ALL_CPUS))?;
    let ticks: u64 = sums.split_whitespace().nth(STOLEN)?.parse().ok()?;
    ticks.checked_mul(1_000_000_000_u64.checked_div(hertz)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_the_eighth_number_of_all_cpus() {
        let stat = "cpu  10132153 290696 3084719 46828483 16683 0 25195 175628 0 0\n\
                    cpu0 1393280 32966 572056 13343292 6130 0 17875 5 0 0\nintr 8885917\nbtime 1764268000\n";
        assert_eq!(stolen_in(stat, 100), Some(1_756_280_000_000));
        assert_eq!(stolen_in(stat, 250), Some(702_512_000_000));
        assert_eq!(stolen_in("cpu  1 2 3 4 5 6 7 0\n", 100), Some(0), "not counted, or nothing was stolen");
    }

    #[test]
    fn a_text_without_stolen_time_has_none() {
        for stat in [
            "",
            "cpu",
            "cpu  1 2 3 4 5 6 7\n",
            "cpu0 1 2 3 4 5 6 7 8 9 10\n",
            "cpu  1 2 3 4 5 6 7 -8 9 10\n",
            "cpu  1 2 3 4 5 6 7 x 9 10\n",
            "cpu  1 2 3 4 5 6 7 18446744073709551615 9 10\n",
            "cpu  1 2 3 4 5 6 7 18446744073709551616 9 10\n",
        ] {
            assert_eq!(stolen_in(stat, 100), None, "{stat:?}");
        }
        assert_eq!(stolen_in("cpu  1 2 3 4 5 6 7 8\n", 0), None);
    }

    #[test]
    fn this_machine_tells_its_stolen_time() {
        assert!(stolen_ns().is_some());
    }
}
