//! The metrics of the node's BPF programs: their time, their runs and their holders. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{Family, Value, families as rows};
use crate::{
    attribution::Snapshot,
    holders::{HolderFacts, NamedHolder, Unread, named},
    stacks::BpfProgram,
};

/// The most series of holders. Further ones share one more.
const MOST_HOLDERS: usize = 256;
/// The labels of the series that further holders share.
const OTHERS: [&str; 8] = ["(other)", "", "", "", "", "", "", ""];

/// Returns the families about the node's BPF programs that have series: `sampled` is their time by samples.
pub(super) fn families(
    snapshot: &Snapshot,
    sampled: &BTreeMap<BpfProgram, u64>,
    holders: Option<&HolderFacts>,
) -> Vec<Family> {
    let mut time = rows::NODE_PROGRAMS.family();
    for (program, ns) in sampled {
        time.push(&[program.name()], Value::seconds(*ns));
    }
    let mut families = vec![time];
    if let Some(holders) = holders {
        families.extend(of_holders(snapshot, holders));
    }
    families.retain(|family| !family.samples.is_empty());
    families
}

fn of_holders(snapshot: &Snapshot, holders: &HolderFacts) -> [Family; 4] {
    let (mut runs, mut time) = (rows::NODE_PROGRAM_RUNS.family(), rows::NODE_PROGRAM_RUN_TIME.family());
    for (program, count) in &holders.runs {
        runs.push(&[&program.name, &program.tag], Value::Count(*count));
    }
    for (program, ns) in &holders.ns {
        time.push(&[&program.name, &program.tag], Value::seconds(*ns));
    }
    let mut info = rows::NODE_PROGRAM_INFO.family();
    let named = named(&holders.held, snapshot);
    let series: BTreeSet<[&str; 8]> = named.iter().map(NamedHolder::labels).collect();
    for labels in series.iter().take(MOST_HOLDERS) {
        info.push(labels, Value::Count(1));
    }
    if series.len() > MOST_HOLDERS {
        info.push(&OTHERS, Value::Count(1));
    }
    let mut unread = rows::HOLDERS_UNREAD.family();
    for (reason, number) in holders.unread.iter().flat_map(Unread::by_reason) {
        unread.push(&[reason], Value::Count(number));
    }
    [runs, time, info, unread]
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::holders::{Held, ProgramName};

    fn program(name: &str) -> ProgramName {
        ProgramName { name: name.into(), tag: "1".repeat(16) }
    }

    #[test]
    fn holders_over_the_bound_share_a_series() {
        let snapshot = Snapshot::of_rows(SystemTime::UNIX_EPOCH, Vec::new());
        let series = |programs: usize| {
            let held =
                |number: usize| Held { program: program(&format!("p{number:03}")), kind: "kprobe", process: None };
            let held: Vec<Held> = (0..programs).map(held).collect();
            let [runs, time, info, unread] = of_holders(
                &snapshot,
                &HolderFacts {
                    held: held.into(),
                    runs: BTreeMap::from([(program("p000"), 7)]),
                    ns: BTreeMap::from([(program("p000"), 1_000_000_000)]),
                    unread: Some(Unread { denied: 2, ..Unread::default() }),
                },
            );
            assert_eq!((runs.samples.len(), time.samples.len(), unread.samples.len()), (1, 1, 4));
            assert_eq!((&runs.samples[0].value, &time.samples[0].value), (&Value::Count(7), &Value::Real(1.0)));
            info.samples
        };
        assert_eq!(series(3).len(), 3);
        let many = series(300);
        assert_eq!(many.len(), MOST_HOLDERS + 1);
        assert_eq!(many[MOST_HOLDERS].labels[0].1, "(other)");
    }
}
