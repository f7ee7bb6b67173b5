//! `podperf check` behind the proxy of the environment: it is the way to a receiver, and not to an API server that
//! `NO_PROXY` or the loopback excepts.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener},
    thread,
};

use anyhow::{Result, ensure};
use podperf_tests::{suite::Test, tests};
use tempfile::TempDir;

use crate::checked::{Report, command, kubeconfig};

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

/// Starts a server that answers every request with this status and body until the test ends.
fn api_server(status: u16, body: &'static str) -> Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.extend(byte);
            }
            let length = body.len();
            write!(stream, "HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").ok();
        }
    });
    Ok(address)
}
