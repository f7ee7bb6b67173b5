//! BPF features that the programs need. The agent queries the running kernel for them after it has refused a map or a
//! program. A kernel is judged by its features and never by its version: vendors add features to older kernels.

use aya::{
    maps::MapType,
    programs::ProgramType,
    sys::{BpfHelper, is_helper_supported, is_map_supported},
};

use super::{error::LoadError, host::Unsupported};

/// Returns the features that this kernel lacks, each with the first release of Linux that has it, the newest feature
/// last. A feature that cannot be queried, because bpf(2) is refused, is not in the list.
fn missing() -> Vec<&'static str> {
    let maps =
        [(MapType::RingBuf, "BPF ring buffers (Linux 5.8)"), (MapType::TaskStorage, "BPF task storage (Linux 5.11)")];
    let helpers = [
        (BpfHelper::BPF_FUNC_get_current_task_btf, "`bpf_get_current_task_btf` (Linux 5.11)"),
        (BpfHelper::BPF_FUNC_task_pt_regs, "`bpf_task_pt_regs` (Linux 5.15)"),
    ];
    let maps = maps.into_iter().filter(|(map, _)| matches!(is_map_supported(*map), Ok(false))).map(|(_, name)| name);
    let helpers = helpers
        .into_iter()
        // Helpers of `BPF_PROG_TYPE_TRACING` cannot be queried without a target; raw tracepoints have them too.
        .filter(|(helper, _)| matches!(is_helper_supported(ProgramType::RawTracePoint, *helper), Ok(false)))
        .map(|(_, name)| name);
    maps.chain(helpers).collect()
}

impl LoadError {
    /// Returns an error with the features that the kernel lacks, if they are the reason for the refusal; else `self`.
    pub(super) fn or_missing_features(self) -> Self {
        match self {
            Self::Object(_) | Self::Program { .. } => self.or_missing(missing()),
            _ => self,
        }
    }

    fn or_missing(self, missing: Vec<&'static str>) -> Self {
        if missing.is_empty() { self } else { Self::Features(Unsupported::features(missing)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> LoadError {
        LoadError::Object(Box::new(aya::EbpfError::NoBTF))
    }

    #[test]
    fn the_running_kernel_lacks_nothing_that_the_programs_need() {
        // Without root no feature can be queried, and the list is empty too.
        assert_eq!(missing(), [""; 0]);
    }

    #[test]
    fn missing_features_are_named_instead_of_the_error_that_they_cause() {
        let error = refused().or_missing(vec!["BPF task storage (Linux 5.11)", "`bpf_task_pt_regs` (Linux 5.15)"]);
        let LoadError::Features(unsupported) = &error else { panic!("{error}") };
        let words = unsupported.to_string();
        assert!(words.contains("lacks BPF task storage (Linux 5.11) and `bpf_task_pt_regs` (Linux 5.15)"), "{words}");
        assert_eq!(error.to_string(), words);
    }

    #[test]
    fn an_error_stays_as_it_is_where_no_feature_is_missing() {
        assert!(matches!(refused().or_missing(Vec::new()), LoadError::Object(_)));
    }
}
