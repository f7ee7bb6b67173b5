//! Reads the outcomes of tests from a guest's console. Pure.

use serde::Deserialize;

use super::{
    record::VERIFIED,
    rows::{Row, Work},
};

/// The name of the test that fails when a guest does not come to its end.
const GUEST: &str = "the_guest_comes_to_its_end";
/// The mark of ring 2 for a test that lacks something on its machine.
const SKIPPED: &str = " (skipped: ";

/// The outcome of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The test passed.
    Passed,
    /// The test did not run, since the machine lacks this.
    Unsupported(String),
    /// The test failed with this message.
    Failed(String),
}

/// One test of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// The test's name.
    pub(super) test: String,
    /// The outcome of the test.
    pub(super) outcome: Outcome,
}

/// The result of one row, from its console.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    /// `uname -r`.
    pub(super) kernel: Option<String>,
    /// The sizes of the BPF programs, in the words of the test that printed them.
    pub(super) verified: Option<String>,
    /// The tests, in the order in which they ran.
    pub(super) tests: Vec<Ended>,
}

/// A line of the test program's output with `--format json`.
#[derive(Debug, Deserialize)]
struct Line {
    r#type: String,
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    stdout: String,
}

impl Report {
    /// Reads the guest's whole output, which is in the file `log`. `cut` is the reason why it was stopped, if it was.
    pub(super) fn read(row: &Row, log: &str, console: &str, cut: Option<&str>) -> Self {
        let mut report = Self::default();
        let (mut running, mut ended, mut suite) = (None, false, false);
        // For each run of the agent, its exit code and its output.
        let mut runs: Vec<(String, String)> = Vec::new();
        for line in console.lines().map(str::trim) {
            if let Some(line) = line.find('{').and_then(|at| serde_json::from_str::<Line>(&line[at..]).ok()) {
                match (line.r#type.as_str(), line.event.as_str()) {
                    ("test", "started") => running = Some(line.name),
                    ("test", event) => {
                        running = None;
                        report.tests.push(Ended::of(&line.name, event, &line.stdout));
                    }
                    ("suite", "ok" | "failed") => suite = true,
                    _ => {}
                }
            } else if let Some(sizes) = line.strip_prefix(VERIFIED).and_then(|line| line.strip_prefix(": ")) {
                report.verified = Some(sizes.to_owned());
            } else if let Some(word) = line.split_once("vm: ").map(|(_, word)| word) {
                match word.split_once(' ') {
                    Some(("up", kernel)) => report.kernel = Some(kernel.to_owned()),
                    Some(("exit", code)) => runs.push((code.to_owned(), String::new())),
                    Some(("said", text)) => runs.last_mut().into_iter().for_each(|(_, said)| said.push_str(text)),
                    _ => ended |= word == "end",
                }
            }
        }
        if let Work::Refusal { test, says } = row.work {
            let right = !runs.is_empty() && runs.iter().all(|(code, said)| code == "3" && said.contains(says));
            let failed = || Outcome::Failed(format!("exit codes, and what it said: {runs:?}"));
            report.tests.push(Ended { test: test.to_owned(), outcome: if right { Outcome::Passed } else { failed() } });
        } else if !ended || !suite {
            let during = running.map_or_else(String::new, |test| format!(" during `{test}`"));
            let why = cut.unwrap_or("the console ended early");
            let last: Vec<&str> = console.lines().rev().filter(|line| !line.trim().is_empty()).take(8).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            let message = format!("{log}: {why}{during}; its last words: {}", last.join(" / "));
            report.tests.push(Ended { test: GUEST.to_owned(), outcome: Outcome::Failed(message) });
        }
        report
    }

    /// Returns the result of guests that each ran every nth test: with the tests in their order again.
    pub(super) fn together(guests: Vec<Self>) -> Self {
        let most = guests.iter().map(|guest| guest.tests.len()).max().unwrap_or_default();
        let mut whole = Self::default();
        let mut tests: Vec<_> = Vec::new();
        for guest in guests {
            whole.kernel = whole.kernel.or(guest.kernel);
            whole.verified = whole.verified.or(guest.verified);
            tests.push(guest.tests.into_iter());
        }
        whole.tests = (0..most).flat_map(|_| tests.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()).collect();
        whole
    }

    /// Turns each of these tests that did not run into a failure.
    pub(super) fn require(&mut self, names: &[String]) {
        for name in names {
            match self.tests.iter_mut().find(|test| test.test == *name) {
                Some(Ended { outcome, .. }) => {
                    if let Outcome::Unsupported(reason) = outcome {
                        *outcome = Outcome::Failed(format!("did not run: {reason}"));
                    }
                }
                None => {
                    let outcome = Outcome::Failed("has no outcome".to_owned());
                    self.tests.push(Ended { test: name.clone(), outcome });
                }
            }
        }
    }
}

impl Ended {
    /// Returns a test's outcome. Only a test that did not run is unsupported: its needs were checked before. A failure
    /// is a failure.
    fn of(name: &str, event: &str, stdout: &str) -> Self {
        let (test, lacks) = name.split_once(SKIPPED).unwrap_or((name, "ignored)"));
        let outcome = match event {
            "ok" => Outcome::Passed,
            "ignored" => Outcome::Unsupported(lacks.trim_end_matches(')').to_owned()),
            _ => Outcome::Failed(stdout.trim().trim_start_matches("Error: ").to_owned()),
        };
        Self { test: test.to_owned(), outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::rows::Machine;

    const TESTS: Row =
        Row { name: "6.1", machine: Machine::X86_64, suite: "bookworm", command_line: "", cpus: 2, work: Work::Tests };

    fn outcomes(console: &str) -> Vec<Outcome> {
        Report::read(&TESTS, "6.1.log", console, None).tests.into_iter().map(|ended| ended.outcome).collect()
    }

    fn line(name: &str, event: &str, stdout: &str) -> String {
        serde_json::json!({"type": "test", "name": name, "event": event, "stdout": stdout}).to_string() + "\n"
    }

    fn whole(tests: &str) -> String {
        format!("\u{1b}c vm: up 6.1.0\r\n{tests}{{ \"type\": \"suite\", \"event\": \"ok\" }}\nvm: end\n")
    }

    #[test]
    fn every_test_of_a_whole_run_has_its_outcome() {
        let tests = line("a", "ok", "")
            + &line("b (skipped: no `perf`)", "ignored", "")
            + &line("c", "failed", "Error: \"wrong\"\n")
            + &line("d", "failed", "Error: \"no scrape within 7ms: the machine is too busy\"\n");
        let report = Report::read(&TESTS, "6.1.log", &whole(&tests), None);
        assert_eq!(report.kernel.as_deref(), Some("6.1.0"));
        assert_eq!(report.tests.iter().map(|ended| ended.test.as_str()).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(
            outcomes(&whole(&tests)),
            [
                Outcome::Passed,
                Outcome::Unsupported("no `perf`".to_owned()),
                Outcome::Failed("\"wrong\"".to_owned()),
                Outcome::Failed("\"no scrape within 7ms: the machine is too busy\"".to_owned()),
            ]
        );
    }

    #[test]
    fn guests_together_have_every_test_once_and_in_order() {
        let guest = |tests: &[&str]| {
            let tests: String = tests.iter().map(|name| line(name, "ok", "")).collect();
            Report::read(&TESTS, "6.1.log", &whole(&tests), None)
        };
        let cut = Report::read(&TESTS, "6.1.log", &format!("vm: up 6.1.0\n{}", line("b", "ok", "")), Some("too late"));
        let together = Report::together(vec![guest(&["a", "c", "d"]), cut]);
        let names: Vec<_> = together.tests.iter().map(|ended| ended.test.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", GUEST, "d"]);
        assert_eq!(together.kernel.as_deref(), Some("6.1.0"));
    }

    #[test]
    fn a_required_test_that_did_not_run_is_a_failure() {
        let tests = line("a", "ok", "") + &line("b (skipped: no `perf`)", "ignored", "") + &line("c", "failed", "no");
        let mut report = Report::read(&TESTS, "6.1.log", &whole(&tests), None);
        report.require(&["a", "b", "c", "d"].map(str::to_owned));
        let failed: Vec<_> = report.tests.iter().filter(|test| matches!(test.outcome, Outcome::Failed(_))).collect();
        assert_eq!(failed.iter().map(|ended| ended.test.as_str()).collect::<Vec<_>>(), ["b", "c", "d"]);
        assert_eq!(failed[2].outcome, Outcome::Failed("has no outcome".to_owned()));
    }

    #[test]
    fn the_sizes_of_the_programs_are_read() {
        let console = whole("\n  verified instructions: 5 in `sample`\r\n");
        assert_eq!(Report::read(&TESTS, "6.1.log", &console, None).verified.as_deref(), Some("5 in `sample`"));
    }

    #[test]
    fn a_guest_that_dies_is_a_failure() {
        let started = "{ \"type\": \"test\", \"event\": \"started\", \"name\": \"b\" }\n[ 1.0] Kernel panic\n";
        let console = format!("vm: up 6.1.0\n{}{started}", line("a", "ok", ""));
        let [Outcome::Passed, Outcome::Failed(message)] = &outcomes(&console)[..] else {
            panic!("{:?}", outcomes(&console));
        };
        assert!(message.contains("during `b`") && message.contains("Kernel panic"), "{message}");
    }

    #[test]
    fn a_refusal_needs_its_words_and_its_exit_code() {
        let row = Row { work: Work::Refusal { test: "refused", says: "lacks" }, ..TESTS };
        let outcome = |console| Report::read(&row, "6.1.log", console, None).tests.remove(0).outcome;
        assert_eq!(outcome("vm: up 5.10\nvm: exit 3\nvm: said kernel lacks\nvm: end\n"), Outcome::Passed);
        let again = "vm: exit 3\nvm: said kernel lacks\nvm: exit 1\nvm: said kernel lacks\n";
        assert!(matches!(outcome(again), Outcome::Failed(_)), "the second run failed otherwise");
        assert!(matches!(outcome("vm: exit 1\nvm: said kernel lacks\n"), Outcome::Failed(_)));
        assert!(matches!(outcome("vm: exit 3\nvm: said no\n"), Outcome::Failed(_)));
        assert!(matches!(outcome(""), Outcome::Failed(_)));
    }
}
