//! Reads the kernel's words about a descriptor of a BPF program, or of a link to one. Pure.

use std::path::Path;

/// The types of programs by their number, as `enum bpf_prog_type` of linux/bpf.h has them.
const KINDS: [&str; 33] = [
    "unspec",
    "socket_filter",
    "kprobe",
    "sched_cls",
    "sched_act",
    "tracepoint",
    "xdp",
    "perf_event",
    "cgroup_skb",
    "cgroup_sock",
    "lwt_in",
    "lwt_out",
    "lwt_xmit",
    "sock_ops",
    "sk_skb",
    "cgroup_device",
    "sk_msg",
    "raw_tracepoint",
    "cgroup_sock_addr",
    "lwt_seg6local",
    "lirc_mode2",
    "sk_reuseport",
    "flow_dissector",
    "cgroup_sysctl",
    "raw_tracepoint_writable",
    "cgroup_sockopt",
    "tracing",
    "struct_ops",
    "ext",
    "lsm",
    "sk_lookup",
    "syscall",
    "netfilter",
];
/// The type of a program that is newer than the list.
const OTHER: &str = "other";

/// Runs of a program, and the time in them. The kernel counts both while somebody has its statistics enabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) count: u64,
    /// In nanoseconds.
    pub(super) ns: u64,
}

/// A program, as a descriptor shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// The kernel's id. Another program gets another one, until the numbers are used up.
    pub(super) id: u32,
    /// The hash of its instructions: 16 hex digits.
    pub(super) tag: String,
    /// `None` for a link, whose words have only the type of the link.
    pub(super) kind: Option<&'static str>,
    /// `None` for a link, whose words have no runs.
    pub(super) runs: Option<Runs>,
}

/// Returns whether a descriptor with this target in `/proc/PID/fd` is a program or a link. Paths of files begin with a
/// slash, so no file has such a target.
pub(super) fn is_bpf(target: &Path) -> bool {
    ["anon_inode:bpf-prog", "anon_inode:bpf_link"].iter().any(|name| target == Path::new(name))
}

/// Returns the program in the text of a file in `/proc/PID/fdinfo`; `None` if the text names none.
pub(super) fn parse(text: &str) -> Option<Shown> {
    let id = word(text, "prog_id")?.parse().ok()?;
    let tag = word(text, "prog_tag").filter(|tag| tag.len() == 16 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let kind = word(text, "prog_type").map(|number| {
        let number = number.parse::<usize>().ok();
        number.and_then(|number| KINDS.get(number)).copied().unwrap_or(OTHER)
    });
    let runs = match (number(text, "run_cnt"), number(text, "run_time_ns")) {
        (Some(count), Some(ns)) => Some(Runs { count, ns }),
        _ => None,
    };
    Some(Shown { id, tag: tag?.to_owned(), kind, runs })
}

fn word<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

fn number(text: &str, key: &str) -> Option<u64> {
    word(text, key)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "\
pos:\t0
flags:\t02000002
mnt_id:\t15
ino:\t1057
prog_type:\t3
prog_jited:\t1
prog_tag:\t6deef7357e7b4530
memlock:\t4096
prog_id:\t41
run_time_ns:\t123456
run_cnt:\t1000
recursion_misses:\t0
verified_insns:\t12
";
    const LINK: &str = "\
pos:\t0
flags:\t02000000
mnt_id:\t15
ino:\t1057
link_type:\ttracing
link_id:\t7
prog_tag:\t6deef7357e7b4530
prog_id:\t41
attach_type:\t24
";

    #[test]
    fn a_program_has_its_runs_and_a_link_has_none() {
        let tag = "6deef7357e7b4530".to_owned();
        let runs = Some(Runs { count: 1000, ns: 123_456 });
        assert_eq!(parse(PROGRAM), Some(Shown { id: 41, tag: tag.clone(), kind: Some("sched_cls"), runs }));
        assert_eq!(parse(LINK), Some(Shown { id: 41, tag, kind: None, runs: None }));
        let newer = PROGRAM.replace("prog_type:\t3\n", "prog_type:\t99\n");
        assert_eq!(parse(&newer).and_then(|shown| shown.kind), Some("other"));
    }

    #[test]
    fn words_without_a_program_or_with_other_values_are_none() {
        for text in [
            "",
            "pos:\t0\nmap_type:\t1\nmap_id:\t9\n",
            "prog_id:\t41\n",
            "prog_id:\t-1\nprog_tag:\t6deef7357e7b4530\n",
            "prog_id:\t41\nprog_tag:\t6deef\"357e7b4530\n",
            "prog_id:\t99999999999\nprog_tag:\t6deef7357e7b4530\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_kernels_own_names_are_programs() {
        assert!(is_bpf(Path::new("anon_inode:bpf-prog")) && is_bpf(Path::new("anon_inode:bpf_link")));
        for other in ["anon_inode:bpf-map", "/anon_inode:bpf-prog", "socket:[1]", "anon_inode:[eventfd]"] {
            assert!(!is_bpf(Path::new(other)), "{other}");
        }
    }
}
