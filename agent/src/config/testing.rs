//! The settings that only the tests of podperf change. The file and the chart do not have them: the hidden option
//! `--testing KEY=VALUE` sets them, and CONTRIBUTING lists them. A setting that an operator needs is a key of the file.

use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, duration, text};
use crate::kernel::Tracepoint;

/// The settings that only tests change, with their own defaults.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Testing {
    /// The form of the scheduling tracepoint. With `auto`, the agent uses the raw one if the kernel rejects the
    /// BTF-typed one.
    pub tracepoint: Tracepoint,
    /// Number of stacks in the stack cache; `None` follows from `stacks.maxSamples`.
    pub max_stacks: Option<u32>,
    /// Walks every stack, also the cached ones, and counts how often the cached stack was wrong. Stacks that a recipe
    /// proves are copied, unwound and compared.
    pub shadow: bool,
    /// The program that copies the stacks of samples is refused, as by a kernel that does not take it.
    pub refuse_copies: bool,
    /// The agent gives up the capabilities and system calls that it does not need.
    pub sandbox: bool,
    /// The CPUs that count as isolated, if the list is not empty.
    pub isolated_cpus: Vec<u32>,
    /// Maximum number of open connections of the server, at least 4.
    pub connections: usize,
    /// Maximum time for a TLS handshake and for the headers of a request, and the time for which an idle connection
    /// stays open.
    #[serde(with = "duration")]
    pub header_timeout: Duration,
    /// The time for which a reading is returned again, at most 1 s.
    #[serde(with = "duration")]
    pub coalesce: Duration,
    /// The time between two turns of the search for holders of BPF programs.
    #[serde(with = "duration")]
    pub holders_every: Duration,
}

/// The default of `holders_every`. A full turn takes some 80 ms of CPU time.
const HOLDERS_EVERY: Duration = Duration::from_secs(60);

/// The default of `coalesce`, and its largest value: the server drops rendered answers after two seconds.
const LONGEST_COALESCE: Duration = Duration::from_secs(1);

impl Default for Testing {
    fn default() -> Self {
        Self {
            tracepoint: Tracepoint::Auto,
            max_stacks: None,
            shadow: false,
            refuse_copies: false,
            sandbox: true,
            isolated_cpus: Vec::new(),
            connections: 64,
            header_timeout: Duration::from_secs(10),
            coalesce: LONGEST_COALESCE,
            holders_every: HOLDERS_EVERY,
        }
    }
}

impl Testing {
    /// Returns the defaults with these changes, `KEY=VALUE` each.
    ///
    /// # Errors
    ///
    /// When a change has no `=`, an unknown key or an impossible value.
    pub fn read(given: &[String]) -> Result<Self, ConfigError> {
        let mut lines = String::new();
        for one in given {
            let (key, value) =
                one.split_once('=').ok_or_else(|| ConfigError::Testing(format!("`{one}` is not KEY=VALUE")))?;
            lines += &format!("{key}: {value}\n");
        }
        let read: Option<Self> = text::keys(&lines).map_err(ConfigError::Testing)?;
        let testing = read.unwrap_or_default();
        // The server keeps places for the kubelet and for a Prometheus.
        if testing.connections < 4 {
            return Err(ConfigError::Testing("`connections` needs at least 4".into()));
        }
        if testing.coalesce > LONGEST_COALESCE {
            return Err(ConfigError::Testing("`coalesce` may be at most `1s`".into()));
        }
        Ok(testing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[&str]) -> Result<Testing, String> {
        let given: Vec<_> = given.iter().map(ToString::to_string).collect();
        Testing::read(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn each_setting_changes_one_default() {
        assert_eq!(read(&[]), Ok(Testing::default()));
        let wanted =
            Testing { tracepoint: Tracepoint::Raw, header_timeout: Duration::from_secs(600), ..Testing::default() };
        assert_eq!(read(&["tracepoint=raw", "headerTimeout=10m"]), Ok(wanted));
        let wanted = Testing { isolated_cpus: vec![1, 2], ..Testing::default() };
        assert_eq!(read(&["isolatedCpus=[1, 2]"]), Ok(wanted));
    }

    #[test]
    fn a_bad_setting_is_refused_with_its_name() {
        for (given, says) in [
            ("shadow", "`shadow` is not KEY=VALUE"),
            ("shado=true", "unknown key `shado`"),
            ("tracepoint=any", "tracepoint: unknown variant `any`"),
            ("headerTimeout=soon", "headerTimeout: "),
            ("connections=1", "`connections` needs at least 4"),
            ("coalesce=2s", "`coalesce` may be at most `1s`"),
        ] {
            let message = read(&[given]).unwrap_err();
            assert!(message.starts_with("bad value for `--testing`: ") && message.contains(says), "{message}");
            assert!(message.ends_with("(only tests of podperf use this option: see CONTRIBUTING.md)"), "{message}");
        }
    }

    #[test]
    fn contributing_lists_every_setting() {
        let page = include_str!("../../../CONTRIBUTING.md");
        let message = read(&["x=1"]).unwrap_err();
        let (_, keys) = message.split_once("(one of ").unwrap();
        for key in keys.split(')').next().unwrap().split(", ") {
            assert!(page.contains(&format!("| {key} |")), "CONTRIBUTING.md does not explain {key}");
        }
    }
}
