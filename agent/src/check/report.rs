//! The lines of the report and the verdict that they add up to. Pure.

use serde::Serialize;

use super::{Code, Remedy};
use crate::model::status::State;

/// The detail of a line, and the remedy.
pub(super) type Finding = (String, Option<Remedy>);

/// The state of the agent that can be expected on this machine. Each is the exit code of `podperf check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Everything that is configured works.
    Usable,
    /// A configured part is missing; the other parts work.
    Degraded,
    /// The agent would refuse to start.
    Unusable,
}

impl Verdict {
    /// The name of the verdict.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Degraded => "degraded",
            Self::Unusable => "unusable",
        }
    }

    /// The exit code: 0, 1 or 2.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        self as u8
    }
}

/// One thing that the agent needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The code of the finding.
    pub id: Code,
    /// The name of the thing; for an event, its configured name.
    pub check: String,
    /// The state of a part ([`State`]) or of an event.
    pub state: &'static str,
    /// The finding.
    pub detail: String,
    /// The remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<Remedy>,
    /// The verdict for the agent.
    #[serde(skip)]
    pub verdict: Verdict,
}

/// All lines, and the verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The verdict of the worst line.
    pub verdict: Verdict,
    /// The lines, the most basic first.
    pub checks: Vec<Check>,
}

impl Check {
    /// The thing is there.
    pub(super) fn healthy(id: Code, check: &str, detail: impl Into<String>) -> Self {
        Self::new(id, check, State::Healthy.name(), Verdict::Usable, (detail.into(), None))
    }

    /// The thing is missing, and the agent runs without it.
    pub(super) fn degraded(id: Code, check: &str, finding: Finding) -> Self {
        Self::new(id, check, State::Degraded.name(), Verdict::Degraded, finding)
    }

    /// The machine does not have the thing, and the agent does not run without it.
    pub(super) fn unsupported(id: Code, check: &str, finding: Finding) -> Self {
        Self::new(id, check, State::Unsupported.name(), Verdict::Unusable, finding)
    }

    /// The thing should be there, and the agent does not run without it.
    pub(super) fn failed(id: Code, check: &str, finding: Finding) -> Self {
        Self::new(id, check, State::Failed.name(), Verdict::Unusable, finding)
    }

    /// Any other state; `finding` is the finding and the remedy.
    pub(super) fn new(id: Code, check: &str, state: &'static str, verdict: Verdict, finding: Finding) -> Self {
        let (detail, fix) = finding;
        Self { id, check: check.to_owned(), state, detail, fix, verdict }
    }
}

impl From<Vec<Check>> for Report {
    fn from(checks: Vec<Check>) -> Self {
        let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Usable);
        Self { verdict, checks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_line_decides() {
        let healthy = || Check::healthy(Code::BtfFound, "a", "there");
        let degraded = || Check::degraded(Code::BtfMissing, "b", ("away".into(), None));
        let failed = || Check::failed(Code::BtfMissing, "c", ("broken".into(), None));
        for (checks, verdict, code) in [
            (vec![], Verdict::Usable, 0),
            (vec![healthy()], Verdict::Usable, 0),
            (vec![healthy(), degraded(), healthy()], Verdict::Degraded, 1),
            (vec![failed(), degraded(), healthy()], Verdict::Unusable, 2),
        ] {
            let report = Report::from(checks);
            assert_eq!((report.verdict, report.verdict.exit_code()), (verdict, code));
        }
    }

    #[test]
    fn json_has_the_keys_that_are_promised() {
        let check = Check::degraded(Code::PodsNone, "b", ("away".into(), Some(Remedy::Words("bring it".into()))));
        let report =
            serde_json::to_string(&Report::from(vec![Check::healthy(Code::BtfFound, "a", "there"), check])).unwrap();
        assert_eq!(
            report,
            r#"{"verdict":"degraded","checks":[{"id":"btf-found","check":"a","state":"healthy","detail":"there"},{"id":"pods-none","check":"b","state":"degraded","detail":"away","fix":"bring it"}]}"#
        );
    }
}
