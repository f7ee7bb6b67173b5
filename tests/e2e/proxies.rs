//! `podperf check` behind the proxy of the environment: it is the way to a receiver, and not to an API server that
//! `NO_PROXY` or the loopback excepts.

use anyhow::{Result, ensure};
use podperf_tests::{suite::Test, tests};
use tempfile::TempDir;

use crate::checked::{Report, api_server, command, kubeconfig};

pub(crate) const TESTS: &[Test] = tests![
    #[beside]
    a_receiver_is_reached_through_the_proxy_of_the_environment_and_the_loopback_without,
];

/// An address without a listener.
const NOWHERE: &str = "127.0.0.1:1";
const VARIABLES: [&str; 4] = ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"];

fn a_receiver_is_reached_through_the_proxy_of_the_environment_and_the_loopback_without() -> Result<()> {
    let (directory, server) = (TempDir::new()?, api_server(401, "who?")?);
    let yaml = format!(
        "counters: {{groups: []}}\notlp: {{endpoint: 'https://otlp.vendor.invalid'}}\n{}",
        kubeconfig(directory.path(), server)?
    );
    let check = |name: &str, except: &str| {
        Report::of(|| {
            let mut command = command(directory.path(), &yaml)?;
            for variable in VARIABLES {
                command.env_remove(variable);
            }
            command.env(name, format!("http://shop:hunter2@{NOWHERE}")).env("NO_PROXY", except);
            Ok(command)
        })
    };
    for name in ["HTTPS_PROXY", "https_proxy"] {
        let report = check(name, "")?;
        let line = report.expect("profile export", "export-failed", "degraded")?;
        line.names(&[&format!("through proxy `{NOWHERE}` of `{name}`"), "Connection refused", "`NO_PROXY`"])?;
        ensure!(!format!("{report:?}").contains("hunter2"), "it tells the password: {report:?}");
        // The API server itself answers.
        report.expect("pods", "pods-refused", "degraded")?.names(&["log in"])?;
    }
    let line = check("HTTPS_PROXY", ".vendor.invalid")?.line("profile export")?.agents_words();
    ensure!(!line.contains("proxy"), "asked through the proxy: {line}");
    Ok(())
}
