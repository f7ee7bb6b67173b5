//! The remedies, and their texts. Pure.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::kernel::host::NamesNeed;

/// The remedy of a finding. `Display` is its text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The remedy that the agent's own error names; the agent reports the same error when it starts.
    Words(String),
    /// Fix the problems that the lines above report.
    FixFirst,
    /// Use a kernel with BTF-typed tracepoints.
    BtfTracepoints,
    /// Allow bpf(2).
    AllowBpf,
    /// Use a kernel with bpf(2).
    BuildBpf,
    /// Give more memory.
    MoreMemory,
    /// Report a bug.
    ReportBug,
    /// Provide what names in stacks need.
    ProvideNames(Vec<NamesNeed>),
    /// Allow perf_event_open(2) for samples.
    AllowSamples,
    /// Turn the sensor with this name off.
    TurnSensorOff(&'static str),
    /// Turn the NMI watchdog off.
    TurnWatchdogOff,
    /// Switch the signal on in the receiver.
    SwitchSignalOn,
    /// Set the headers that the receiver asks for.
    SetHeaders,
    /// Trust the authority of the receiver.
    TrustAuthority,
    /// Check the name of the receiver.
    CheckName,
    /// Start a receiver, or set its address.
    StartReceiver,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Words(words) => words,
            Self::FixFirst => "fix the lines above first",
            Self::BtfTracepoints => "a kernel with BTF-typed tracepoints",
            Self::AllowBpf => {
                "allow bpf(2): the capabilities are there, so a seccomp profile or a security module stands in the way"
            }
            Self::BuildBpf => "a kernel built with CONFIG_BPF_SYSCALL=y, or a seccomp profile that allows bpf(2)",
            Self::MoreMemory => "more memory for this container, or for the machine",
            Self::ReportBug => "report this as a bug, with the kernel's version",
            Self::ProvideNames(missing) => {
                let provide = |need: &NamesNeed| match need {
                    NamesNeed::Capability(capability) => format!("give it {capability}"),
                    NamesNeed::Addresses => format!("run {need}, and write it to /etc/sysctl.d for good"),
                    NamesNeed::Table => format!("give it {need}"),
                    NamesNeed::Processes => format!("set {need}"),
                };
                let missing: Vec<_> = missing.iter().map(provide).collect();
                return write!(f, "{}, or do without these names", missing.join(", and "));
            }
            Self::AllowSamples => "allow perf_event_open(2), see the line below, or do without: `stacks.onCpuHertz: 0`",
            Self::TurnSensorOff(sensor) => return write!(f, "or do without: `sensors.{sensor}.enabled: false`"),
            Self::TurnWatchdogOff => "`sysctl kernel.nmi_watchdog=0`, and in /etc/sysctl.d for good",
            Self::SwitchSignalOn => "switch the signal on in the receiver: it takes OTLP, but not this",
            Self::SetHeaders => "set `otlp.headers` to what the receiver asks for",
            Self::TrustAuthority => "set `otlp.tls.caFile` to the authority that signed the receiver's certificate",
            Self::CheckName => {
                "check the name in `otlp.endpoint`; with `hostNetwork`, `dnsPolicy` must be `ClusterFirstWithHostNet`"
            }
            Self::StartReceiver => {
                "start an OTLP receiver there, or set `otlp.endpoint` and `otlp.protocol` to where one is"
            }
        })
    }
}

impl Serialize for Remedy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
