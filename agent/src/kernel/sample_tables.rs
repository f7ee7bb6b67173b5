//! The tables in which the programs sum samples. The programs write to two tables of each kind in turn, so that the
//! agent can empty the other one.

use std::io;

use podperf_ebpf::abi;

use super::{
    object::{Object, fd},
    raw::{self, Then},
    records::{RawSample, SampleKey},
};

/// The tables for even epochs, and the tables for odd epochs, with their numbers.
const TABLES: [[(&str, u32); 2]; 2] = [
    [("waits_even", abi::PODPERF_WAITS_EVEN), ("oncpu_even", abi::PODPERF_ONCPU_EVEN)],
    [("waits_odd", abi::PODPERF_WAITS_ODD), ("oncpu_odd", abi::PODPERF_ONCPU_ODD)],
];

/// Reads and empties the tables that were written in the even (0) or odd (1) epochs. Returns the samples and the first
/// error. The returned samples are no longer in the tables, even if there was an error.
pub(super) fn take(object: &Object, odd: usize) -> (Vec<RawSample>, Option<io::Error>) {
    let (mut samples, mut failed) = (Vec::new(), None);
    for (table, number) in TABLES[odd] {
        let take = |key: abi::podperf_sample_key, sums: &[abi::podperf_sample_sum]| {
            if let (Some(key), [sum]) = (SampleKey::from_abi(&key), sums) {
                let (ns, queued_ns) = (sum.ns, sum.queued_ns);
                samples.push(RawSample { key, ns, queued_ns, so_far_ns: 0, count: sum.count, last_ns: sum.last_ns });
            }
        };
        let unused: abi::podperf_samples_used = bytemuck::Zeroable::zeroed();
        let taken = fd(object, table).and_then(|map| raw::read_all(map, 1, Then::Delete, take));
        let emptied = taken.and_then(|()| fd(object, "samples_used").and_then(|map| raw::update(map, number, unused)));
        failed = failed.or(emptied.err());
    }
    (samples, failed)
}
