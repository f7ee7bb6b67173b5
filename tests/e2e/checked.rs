//! Runs `podperf check` for the tests: its output in both forms, its exit code, and servers for it to ask.

use std::{
    fmt::Write as _,
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{agent, deadline::Deadline, process};
use serde::Deserialize;

/// The documented longest time of a check, even if a server does not answer.
const LONGEST: Duration = Duration::from_secs(15);
/// The width of the table, in columns.
const WIDTH: usize = 80;
/// The prefix of a line with a remedy.
const FIX: &str = "    fix: ";

/// One run of the check.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The JSON output. It has exactly these keys.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    pub(crate) verdict: String,
    pub(crate) checks: Vec<Line>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    pub(crate) id: String,
    pub(crate) check: String,
    pub(crate) state: String,
    pub(crate) detail: String,
    pub(crate) fix: Option<String>,
}

/// Returns a command line of the check with its own configuration file. The function sets `listen` and `runDir` in it.
pub(crate) fn command(directory: &Path, yaml: &str) -> Result<Command> {
    let agent = agent::command(directory, yaml)?;
    let mut command = Command::new(agent.get_program());
    command.arg("check").args(agent.get_args().skip(1));
    Ok(command)
}

impl Output {
    pub(crate) fn of(command: &mut Command) -> Result<Self> {
        process::bind_to_parent(command);
        let deadline = Deadline::begin(LONGEST);
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("failed to start {command:?}"))?;
        deadline.check(|| format!("{command:?} ends"))?;
        let (stdout, stderr) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
        Ok(Self { code: output.status.code(), stdout, stderr })
    }
}

impl Report {
    /// Runs a check in both forms; `make` returns its command line. Both forms, the verdict and the exit code must
    /// agree.
    pub(crate) fn of(make: impl Fn() -> Result<Command>) -> Result<Self> {
        let json = Output::of(make()?.args(["--output", "json"]))?;
        ensure!(json.stderr.is_empty(), "on stderr: {}", json.stderr);
        let report: Self = serde_json::from_str(&json.stdout).with_context(|| json.stdout.clone())?;
        let code = ["usable", "degraded", "unusable"].iter().position(|verdict| *verdict == report.verdict);
        ensure!(code.and_then(|code| i32::try_from(code).ok()) == json.code, "exit code {:?}: {report:?}", json.code);
        let table = Output::of(&mut make()?)?;
        ensure!((table.code, &table.stderr) == (json.code, &json.stderr), "{table:?} {json:?}");
        report.expect_table(&table.stdout)?;
        Ok(report)
    }

    /// Returns the line of this name.
    pub(crate) fn line(&self, check: &str) -> Result<&Line> {
        self.checks.iter().find(|line| line.check == check).with_context(|| format!("no line `{check}` in {self:#?}"))
    }

    /// Checks that a line has this code and this state.
    pub(crate) fn expect(&self, check: &str, id: &str, state: &str) -> Result<&Line> {
        let line = self.line(check)?;
        ensure!((line.id.as_str(), line.state.as_str()) == (id, state), "not `{id}`, `{state}`: {line:?}");
        Ok(line)
    }

    /// Checks the verdict, and that exactly these lines are the reason.
    pub(crate) fn expect_verdict(&self, verdict: &str, because: &[&str]) -> Result<()> {
        let wrong: Vec<_> =
            self.checks.iter().filter(|line| !matches!(&*line.state, "healthy" | "placed" | "shared")).collect();
        let names: Vec<_> = wrong.iter().map(|line| line.check.as_str()).collect();
        ensure!(self.verdict == verdict && names == because, "not `{verdict}` because of {because:?}: {self:#?}");
        for line in wrong {
            ensure!(line.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "no way out: {line:?}");
        }
        Ok(())
    }

    /// Checks that the table shows the same as the JSON, aligned and no wider than documented.
    fn expect_table(&self, table: &str) -> Result<()> {
        for line in table.lines() {
            let one_word = line.split_whitespace().count() == 1;
            ensure!(line.chars().count() <= WIDTH || one_word, "wider than {WIDTH}: `{line}`");
        }
        ensure!(!table.contains('\x1b'), "colours without a terminal: {table}");
        let (rows, summary) = table.split_once("\n\n").context("no summary")?;
        ensure!(summary.starts_with(&format!("{}: ", self.verdict)), "{summary}");
        let states = 2 + self.checks.iter().map(|line| line.check.len()).max().unwrap_or_default();
        let details = states + 2 + self.checks.iter().map(|line| line.state.len()).max().unwrap_or_default();
        let mut said = String::new();
        for row in rows.lines() {
            match row.strip_prefix(FIX) {
                Some(fix) => write!(said, "\nfix: {fix}")?,
                None if row.starts_with(' ') => write!(said, " {}", row.trim())?,
                None => {
                    let (name, state) = (row[..states].trim(), row[states..details].trim());
                    write!(said, "\n{name} / {state} / {}", row[details..].trim())?;
                }
            }
        }
        let mut expected = String::new();
        for (index, Line { id: _, check, state, detail, fix }) in self.checks.iter().enumerate() {
            write!(expected, "\n{check} / {state} / {detail}")?;
            // Lines with the same remedy share it: the table prints it after the last of them.
            let next = self.checks.get(index + 1).map(|line| (&line.detail, &line.fix));
            if let Some(text) = fix.as_ref().filter(|_| next != Some((detail, fix))) {
                write!(expected, "\nfix: {text}")?;
            }
        }
        ensure!(said == expected, "the table says {said}\nand the JSON {expected}");
        Ok(())
    }
}

impl Line {
    /// Checks that the line names these things: a path, an address, a capability, a setting.
    pub(crate) fn names(&self, things: &[&str]) -> Result<()> {
        let words = self.agents_words();
        let missing: Vec<_> = things.iter().filter(|thing| !words.contains(**thing)).collect();
        ensure!(missing.is_empty(), "it does not name {missing:?}: {self:?}");
        Ok(())
    }

    /// Returns detail and remedy in the agent's form.
    pub(crate) fn agents_words(&self) -> String {
        self.fix.as_ref().map_or_else(|| self.detail.clone(), |fix| format!("{} ({fix})", self.detail))
    }
}

/// Starts a server that accepts connections and never answers.
pub(crate) fn silent_server() -> Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Returns `identity` and `kubernetes` for a server without TLS. The credentials are in `directory`.
pub(crate) fn kubeconfig(directory: &Path, server: SocketAddr) -> Result<String> {
    let path = directory.join("kubeconfig");
    let text = serde_json::json!({
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    });
    fs::write(&path, text.to_string())?;
    Ok(format!("identity: kubernetes\nnodeName: a-node\nkubernetes: {{kubeconfig: {}}}", path.display()))
}
