//! Words for the threads that wait: in the rows of the start page, and above the flame graph of a pod. Pure.

use std::{collections::HashMap, sync::Arc};

use crate::{
    export::flamegraph::escape,
    model::wait::WaitReason,
    recording::{Cause, Part, Selector, SubjectName, Waiting, holder, pod_of},
    stacks::profile::Profile,
};

/// The number of threads from which on a sentence has what they wait for.
const LEAST: f64 = 0.05;
/// The most things that a sentence has.
const MOST: usize = 5;

/// Formats a number of threads or CPUs, for a page.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value <= 0.0 => "0".into(),
        value if value < 0.005 => "&lt;0.01".into(),
        value if value < 0.995 => format!("{value:.2}"),
        value if value < 9.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Returns the threads that wait for something, as `2.3 threads for shop/payments`, for a page. `holder` is the pod
/// that has most of the CPUs.
pub(super) fn part(part: &Part, holder: Option<(&str, f64)>, with_unit: bool) -> String {
    let (threads, unit) = (number(part.threads), if with_unit { " threads" } else { "" });
    let has = match holder {
        Some((name, cpus)) if part.cause == Cause::Reason(WaitReason::RunQueue) => {
            format!(" ({} has {})", escape(name), number(cpus))
        }
        _ => String::new(),
    };
    format!("{threads}{unit} for {}{has}", escape(&part.cause.words(part.sure)))
}

/// Returns the paragraph on the waits of a pod, a container or a cgroup, for its page; empty for other selections, and
/// without waits. `queue` is what threads in the run queue wait for.
pub(super) fn paragraph(windows: &[Arc<Profile>], selector: &Selector, queue: &Cause) -> String {
    let name = selector.to_string();
    let pod = match selector {
        Selector::Pod { .. } | Selector::One(SubjectName::Cgroup(_)) => name.as_str(),
        Selector::One(SubjectName::Container { .. }) => pod_of(&name),
        Selector::All | Selector::Workload { .. } | Selector::Below(_) => return String::new(),
    };
    let all = Waiting::by_name(windows);
    let Some(waiting) = all.get(&name) else { return String::new() };
    // The time of a container is in its pod's, too.
    let is_pod = |name: &str| name.starts_with(['/', '(']) || name.matches('/').count() == 1;
    let pods = all.iter().filter(|(name, _)| is_pod(name.as_str()));
    let on_cpu: HashMap<&str, f64> = pods.map(|(name, waiting)| (name.as_str(), waiting.on_cpu())).collect();
    let mut parts = waiting.parts();
    let queued = parts.iter_mut().filter(|part| part.cause == Cause::Reason(WaitReason::RunQueue));
    queued.for_each(|part| part.cause = queue.clone());
    let told = parts.iter().filter(|it| it.threads >= LEAST).take(MOST).enumerate();
    let told: Vec<String> = told.map(|(at, it)| part(it, holder(&on_cpu, pod), at == 0)).collect();
    let waits = match told.join(", ") {
        nothing if nothing.is_empty() => "It waits for nothing that shows".to_owned(),
        told => format!("It waits: {told}"),
    };
    let (idle, parked) = (number(waiting.idle()), number(waiting.parked()));
    format!(
        "<p><b>{waits}.</b> <span class=\"soft\">Besides, {idle} threads had nothing to do until something came, and \
         {parked} are parked: their waits did not end.</span></p>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::wait::WaitState,
        recording::fixture::{ended_by, in_state, on_cpu, on_stack, pod, stack, that_go_on, waits, window},
    };

    fn told(name: &str, selector: &str) -> String {
        told_under(None, name, selector)
    }

    fn told_under(scheduler: Option<&str>, name: &str, selector: &str) -> String {
        let samples = vec![
            ended_by("shop/payments/app", waits(WaitReason::Poll, 2.3)),
            in_state(WaitState::RunQueue, waits(WaitReason::RunQueue, 0.92)),
            in_state(WaitState::Uninterruptible, waits(WaitReason::Disk, 0.01)),
            that_go_on(waits(WaitReason::Futex, 61.0)),
            ended_by("(interrupt)", waits(WaitReason::Sleep, 0.5)),
        ];
        let hog = pod("batch/nightly-report", vec![on_cpu(1.54)]);
        let accept = ended_by("shop/checkout/app", waits(WaitReason::Network, 0.1));
        let payments = pod("shop/payments", vec![on_stack(stack(&["__sys_accept4"], &[]), accept)]);
        let windows = [window(vec![pod(name, samples), payments, hog])];
        paragraph(&windows, &selector.parse().unwrap(), &Cause::of_run_queue(scheduler))
    }

    #[test]
    fn a_pods_page_begins_with_whom_it_waits_for() {
        let says = "<p><b>It waits: 2.3 threads for shop/payments, 0.92 for a CPU (batch/nightly-report has 1.5).</b> ";
        for selector in ["shop/checkout", "shop/checkout/app"] {
            let told = told("shop/checkout", selector);
            assert!(told.starts_with(says) && told.contains(" 0.50 threads had nothing to do"), "{told}");
            assert!(told.contains(" 61 are parked"), "{told}");
        }
        let of_hog = told("shop/checkout", "batch/nightly-report");
        assert!(of_hog.contains("It waits for nothing that shows."), "{of_hog}");
        assert_eq!(told("shop/checkout", "shop/other"), "");
    }

    #[test]
    fn under_a_bpf_scheduler_nobody_is_blamed_for_the_run_queue() {
        let told = told_under(Some("lavd"), "shop/checkout", "shop/checkout");
        let says = "2.3 threads for shop/payments, 0.92 for a CPU or its CPU limit, which is not known.</b> ";
        assert!(told.contains(says) && !told.contains("nightly-report"), "{told}");
    }

    #[test]
    fn a_name_is_never_more_than_text() {
        let hostile = ended_by("shop/<script>/app", waits(WaitReason::Network, 1.0));
        let windows = [window(vec![pod("shop/checkout", vec![hostile]), pod("a/<b>", vec![on_cpu(1.0)])])];
        let told = paragraph(&windows, &"shop/checkout".parse().unwrap(), &Cause::of_run_queue(None));
        let says = "for shop/&lt;script&gt;, or for its next request.</b>";
        assert!(told.contains(says) && !told.contains("<script"), "{told}");
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 0.001, 0.05, 0.94, 2.34, 61.2].map(number);
        assert_eq!(numbers, ["0", "&lt;0.01", "0.05", "0.94", "2.3", "61"]);
    }
}
