//! The agent's orders to the programs: the features that they leave out, and the budget of walks. Pure.

use podperf_ebpf::abi;

/// The budget of walks that is lowered if the configured one is no limit, in walks of a CPU in a second.
const WALKS_WITHOUT_LIMIT: u32 = 5000;

/// The parts of the work that the programs leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lowered {
    /// Number of times that the budget of walks is halved.
    pub walk_halvings: u32,
    /// Set if sensors with programs of their own begin nothing new.
    pub sensors: bool,
    /// Set if waits with an unknown stack get its kernel part only.
    pub user_frames: bool,
    /// Set if waits have no stack of their own.
    pub wait_stacks: bool,
    /// Set if no stack is taken: no wait and no sample on the CPU is in a table.
    pub stacks: bool,
}

impl Lowered {
    /// Applies this to the orders at `now_ns` (`CLOCK_MONOTONIC`). `max_walks` is the configured budget of a CPU in a
    /// second; 0 means no limit.
    pub(super) fn apply(self, orders: &mut abi::podperf_orders, max_walks: u32, now_ns: u64) {
        let bits = [
            (self.stacks, abi::PODPERF_SHED_STACKS),
            (self.wait_stacks, abi::PODPERF_SHED_WAIT_STACKS),
            (self.user_frames, abi::PODPERF_SHED_USER_FRAMES),
            (self.sensors, abi::PODPERF_SHED_SENSORS),
        ];
        if orders.shed & abi::PODPERF_SHED_SENSORS != 0 && !self.sensors {
            orders.sensors_since_ns = now_ns;
        }
        orders.shed = bits.into_iter().filter(|(shed, _)| *shed).fold(0, |all, (_, bit)| all | bit);
        let halved = self.walk_halvings > 0;
        let walks = if halved && max_walks == 0 { WALKS_WITHOUT_LIMIT } else { max_walks };
        orders.walk_every_ns = apart_ns(walks) << self.walk_halvings;
    }
}

/// Returns the time since which sensors have missed no end, if their programs take over at `now_ns` from programs with
/// the orders `before`. Without those orders, nobody knows what the programs left out.
pub(super) fn sensors_since_ns(before: Option<abi::podperf_orders>, now_ns: u64) -> u64 {
    match before {
        Some(before) if before.shed & abi::PODPERF_SHED_SENSORS == 0 => before.sensors_since_ns,
        _ => now_ns,
    }
}

/// Returns the distance between `in_a_second` events in a second, in nanoseconds; 0 without events.
pub(super) fn apart_ns(in_a_second: u32) -> u64 {
    1_000_000_000_u64.checked_div(in_a_second.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(lowered: Lowered, max_walks: u32) -> (u32, u64) {
        let mut orders: abi::podperf_orders = bytemuck::Zeroable::zeroed();
        lowered.apply(&mut orders, max_walks, 1);
        (orders.shed, orders.walk_every_ns)
    }

    #[test]
    fn each_halving_doubles_the_time_between_walks() {
        let halved = |walk_halvings| Lowered { walk_halvings, ..Lowered::default() };
        assert_eq!([0, 1, 4].map(|times| applied(halved(times), 5000)), [(0, 200_000), (0, 400_000), (0, 3_200_000)]);
        assert_eq!([0, 1].map(|times| applied(halved(times), 0)), [(0, 0), (0, 400_000)], "there is no limit to halve");
    }

    #[test]
    fn sensors_begin_again_when_they_are_no_longer_shed() {
        let mut orders: abi::podperf_orders = bytemuck::Zeroable::zeroed();
        let mut since = |sensors, now_ns| {
            Lowered { sensors, ..Lowered::default() }.apply(&mut orders, 0, now_ns);
            orders.sensors_since_ns
        };
        assert_eq!(
            [since(false, 1), since(true, 2), since(true, 3), since(false, 4), since(false, 5)],
            [0, 0, 0, 4, 4]
        );
    }

    #[test]
    fn the_next_programs_know_since_when_no_end_was_missed() {
        let orders = |shed| abi::podperf_orders { shed, sensors_since_ns: 4, ..bytemuck::Zeroable::zeroed() };
        let after = [Some(orders(0)), Some(orders(abi::PODPERF_SHED_STACKS)), Some(orders(u32::MAX)), None];
        assert_eq!(after.map(|before| sensors_since_ns(before, 9)), [4, 4, 9, 9]);
    }

    #[test]
    fn each_part_has_its_bit() {
        let shed = |lowered| applied(lowered, 1).0;
        assert_eq!(shed(Lowered { stacks: true, ..Lowered::default() }), abi::PODPERF_SHED_STACKS);
        assert_eq!(shed(Lowered { wait_stacks: true, ..Lowered::default() }), abi::PODPERF_SHED_WAIT_STACKS);
        assert_eq!(shed(Lowered { sensors: true, ..Lowered::default() }), abi::PODPERF_SHED_SENSORS);
        let most = Lowered { user_frames: true, wait_stacks: true, ..Lowered::default() };
        assert_eq!(shed(most), abi::PODPERF_SHED_USER_FRAMES | abi::PODPERF_SHED_WAIT_STACKS);
    }
}
