//! The time in BPF programs of the node, from samples on the CPU. Pure.

use super::ProfileSample;
use crate::{
    kernel::{records::RawActivity, symbols::KernelFunctions},
    model::labelled::{Labelled, Labels},
};

/// The beginning of the kernel's name for the code of a program: `bpf_prog_TAG_NAME`.
const CODE: &str = "bpf_prog_";
/// Functions in which the kernel enters an interrupt. A program further out is interrupted, and does not run.
const INTERRUPTS: [&str; 5] = ["asm_sysvec_", "asm_common_", "el1h_64_irq", "__do_softirq", "handle_softirqs"];

/// The name of a BPF program. All programs of one name are one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BpfProgram(String);

impl BpfProgram {
    /// Returns the program of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Returns the value of the label `program`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Labels for BpfProgram {
    const MOST: usize = 256;

    fn rest() -> Self {
        Self::named("(other)")
    }
}

/// Adds the time of the samples in which a program ran.
pub(super) fn add(sums: &Labelled<BpfProgram>, samples: &[ProfileSample], functions: &KernelFunctions) {
    for ProfileSample { stack, sample, .. } in samples {
        if sample.key.activity == RawActivity::OnCpu
            && let Some(stack) = stack
            && let Some(program) = innermost(&stack.kernel, functions)
        {
            sums.add(&BpfProgram::named(program), sample.ns);
        }
    }
}

/// Returns the name of the program that runs on this stack of the kernel, leaf first; `None` if none runs. A program
/// runs while the kernel works for it, too.
fn innermost<'a>(kernel: &[u64], functions: &'a KernelFunctions) -> Option<&'a str> {
    let mut program = None;
    for address in kernel {
        let function = functions.at(*address).unwrap_or_default();
        match (name_of(function), program) {
            // Functions of a program are frames of their own, and the outermost one has the program's name.
            (Some(name), _) => program = Some(name),
            (None, Some(_)) => break,
            (None, None) if INTERRUPTS.iter().any(|entry| function.starts_with(entry)) => break,
            (None, None) => {}
        }
    }
    program
}

/// Returns the name in `bpf_prog_TAG_NAME`; the tag of a program without a name. Other functions have none.
fn name_of(function: &str) -> Option<&str> {
    let tagged = function.strip_prefix(CODE)?;
    Some(tagged.split_once('_').map_or(tagged, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::{
        attribution::Subject,
        kernel::records::{RawSample, RawStack, SampleKey},
        model::{
            ids::{CgroupId, Pid, StackId},
            wait::{WaitReason, WaitState},
        },
    };

    const TABLE: &str = "\
ffffffff81000100 T do_syscall_64
ffffffff81000200 T bpf_trace_run2
ffffffff81000300 T htab_map_update_elem
ffffffff81000400 T asm_sysvec_apic_timer_interrupt
ffffffff81000500 T tick_handler
ffffffffc0001000 t bpf_prog_6deef7357e7b4530_on_enter\t[bpf]
ffffffffc0002000 t bpf_prog_1111111111111111_count\t[bpf]
ffffffffc0003000 t bpf_prog_2222222222222222_on_timer\t[bpf]
ffffffffc0004000 t bpf_prog_3333333333333333\t[bpf]
";
    const SYSCALL: u64 = 0xffff_ffff_8100_0110;
    const TRACEPOINT: u64 = 0xffff_ffff_8100_0210;
    const HELPER: u64 = 0xffff_ffff_8100_0310;
    const INTERRUPT: u64 = 0xffff_ffff_8100_0410;
    const TICK: u64 = 0xffff_ffff_8100_0510;
    const ON_ENTER: u64 = 0xffff_ffff_c000_1010;
    const COUNT: u64 = 0xffff_ffff_c000_2010;
    const ON_TIMER: u64 = 0xffff_ffff_c000_3010;
    const NAMELESS: u64 = 0xffff_ffff_c000_4010;

    fn functions() -> KernelFunctions {
        KernelFunctions::parse(TABLE.as_bytes()).unwrap()
    }

    #[test]
    fn the_innermost_program_of_a_stack_runs_unless_an_interrupt_does() {
        for (kernel, expected) in [
            (vec![ON_ENTER, TRACEPOINT, SYSCALL], Some("on_enter")),
            // A program's own function, and a helper of the kernel, work for the program.
            (vec![COUNT, ON_ENTER, TRACEPOINT, SYSCALL], Some("on_enter")),
            (vec![HELPER, COUNT, ON_ENTER, TRACEPOINT], Some("on_enter")),
            // Another program interrupts it.
            (vec![ON_TIMER, TICK, INTERRUPT, ON_ENTER, TRACEPOINT], Some("on_timer")),
            (vec![TICK, INTERRUPT, ON_ENTER, TRACEPOINT, SYSCALL], None),
            (vec![NAMELESS, SYSCALL], Some("3333333333333333")),
            (vec![SYSCALL], None),
            (vec![], None),
        ] {
            assert_eq!(innermost(&kernel, &functions()), expected, "{kernel:x?}");
        }
        assert_eq!(innermost(&[ON_ENTER], &KernelFunctions::default()), None, "the kernel hides its functions");
    }

    fn sample(activity: RawActivity, kernel: Vec<u64>, ns: u64) -> ProfileSample {
        let key = SampleKey {
            stack: Some(StackId(1)),
            seen: None,
            cgroup: CgroupId(1),
            waker: None,
            process: Pid(1),
            activity,
            lock: None,
            filters: 1,
        };
        ProfileSample {
            subject: Subject::Cgroup("/".into()),
            stack: Some(Arc::new(RawStack { id: StackId(1), process: Pid(1), user: vec![], kernel, end: None })),
            reason: WaitReason::Unknown,
            waker: None,
            passed: 1,
            sample: RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 1, last_ns: 0 },
        }
    }

    #[test]
    fn the_time_of_samples_on_the_cpu_is_summed_by_program_and_waits_are_left_out() {
        let sums = Labelled::default();
        let asleep = RawActivity::Wait(WaitState::Interruptible);
        let samples = [
            sample(RawActivity::OnCpu, vec![ON_ENTER, TRACEPOINT], 20),
            sample(RawActivity::OnCpu, vec![HELPER, ON_ENTER], 3),
            sample(RawActivity::OnCpu, vec![ON_TIMER], 5),
            sample(RawActivity::OnCpu, vec![SYSCALL], 100),
            // The stack of a wait ends in podperf's own program.
            sample(asleep, vec![ON_TIMER, TRACEPOINT], 1_000),
        ];
        add(&sums, &samples, &functions());
        add(&sums, &samples[2..3], &functions());
        let expected = [(BpfProgram::named("on_enter"), 23), (BpfProgram::named("on_timer"), 10)];
        assert_eq!(sums.sums(), BTreeMap::from(expected));
    }
}
