//! The BPF scheduler of the machine (`sched_ext`), if one is loaded. Such a scheduler may enforce CPU limits itself.
//! Then the kernel does not mark threads as throttled, and the programs cannot tell why a thread waits for a CPU.
//! Reading is I/O; parsing is pure.

use std::{fs, path::Path};

/// The directory of kernels that can load such a scheduler.
const SCHED_EXT: &str = "/sys/kernel/sched_ext";

/// Returns the name of the BPF scheduler that is loaded now; `None` if the kernel's own one runs.
#[must_use]
pub fn scheduler() -> Option<String> {
    let read = |file| fs::read_to_string(Path::new(SCHED_EXT).join(file)).unwrap_or_default();
    loaded(&read("state"), &read("root/ops"))
}

fn loaded(state: &str, name: &str) -> Option<String> {
    // The other states are `enabling`, `enabled` and `disabling`.
    if matches!(state.trim(), "" | "disabled") {
        return None;
    }
    let name = name.trim();
    Some(if name.is_empty() { "unknown" } else { name }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_is_named_while_it_is_loaded() {
        assert_eq!(loaded("enabled\n", "lavd_1.0.12\n").as_deref(), Some("lavd_1.0.12"));
        assert_eq!(loaded("enabling\n", "").as_deref(), Some("unknown"));
        assert_eq!(loaded("disabled\n", "lavd_1.0.12\n"), None);
        assert_eq!(loaded("", ""), None, "a kernel without `sched_ext`");
    }
}
