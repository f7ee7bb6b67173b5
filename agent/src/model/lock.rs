//! Kinds of locks. Pure.

use podperf_ebpf::LOCKS;

/// A kind of lock that a thread waited for, as the sensor `locks` found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lock(u8);

impl Lock {
    /// The sensor that finds locks.
    pub const SENSOR: &str = "locks";

    /// Converts the field `lock` of a sample's key. Returns `None` for a wait without a lock, and for a kind that this
    /// version does not know.
    #[must_use]
    pub fn from_abi(number: u8) -> Option<Self> {
        let kind = number.checked_sub(1)?;
        (usize::from(kind) < LOCKS.len()).then_some(Self(kind))
    }

    /// Returns the label value in metrics and profiles; `user` for a lock of user space.
    #[must_use]
    pub const fn name(self) -> &'static str {
        LOCKS[self.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sensors;

    #[test]
    fn kinds_have_the_names_of_the_sensors_series_and_user_is_the_last() {
        let sensor = sensors::named(Lock::SENSOR).unwrap();
        let family = sensor.families.iter().find(|family| family.name == "kernel_lock_wait").unwrap();
        let kinds: Vec<_> = (1..=u8::MAX).map_while(Lock::from_abi).map(Lock::name).collect();
        let series: Vec<_> = family.series.iter().map(|series| series.labels[0]).chain(["user"]).collect();
        assert_eq!(kinds, series);
        assert_eq!((kinds[0], kinds[7], kinds.len()), ("mmap_lock", "mutex", 12));
    }

    #[test]
    fn an_unknown_number_is_no_lock() {
        assert_eq!([0, 13, u8::MAX].map(Lock::from_abi), [None; 3]);
    }
}
