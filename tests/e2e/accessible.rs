//! Pages for everybody: axe-core finds nothing in them that it calls moderate or worse, in light and dark colours, on a
//! desk and on a phone.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    browser::{BROWSER, PHONE, told_on},
    cgroup::TestCgroup,
    suite::{Need, Test},
    tests,
};

use crate::{
    pages::{flamegraph, page, sleepers},
    recorded::Recording,
};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] axe_finds_nothing_to_mend_in_any_page: &[BROWSER, Need::Program("npm")],
];

const WIDTHS: [u32; 2] = [1200, PHONE.0];
const DARK: &str = "@media(prefers-color-scheme:dark)";
/// Tells the version of axe-core, and then a line for each element that breaks a rule: impact, rule, element and HTML.
/// The size of targets is checked by no rule that is on by default.
const RUN: &str = "
    var found = await axe.run(document, { preload: false, rules: { 'target-size': { enabled: true } } });
    var told = ['axe-core ' + axe.version];
    found.violations.forEach(function (rule) {
        if (rule.impact === 'minor') { return; }
        rule.nodes.forEach(function (node) {
            told.push([rule.impact, rule.id, node.target.join(' '), node.html.slice(0, 200)].join(' | '));
        });
    });
    return told.join('\\n');";

/// Returns the source of axe-core.
fn axe() -> Result<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/axe.sh");
    let fetched = Command::new(script).stderr(Stdio::inherit()).output()?;
    ensure!(fetched.status.success(), "failed to fetch axe-core (see above)");
    Ok(fs::read_to_string(String::from_utf8(fetched.stdout)?.trim())?)
}

/// Returns the page as it is in light or in dark colours, whatever those of the system are.
fn coloured(page: &str, is_dark: bool) -> Result<String> {
    ensure!(page.contains(DARK), "no dark colours: {page}");
    let (scheme, media) = if is_dark { ("dark", "@media all") } else { ("light", "@media not all") };
    Ok(page.replace("color-scheme:light dark", &format!("color-scheme:{scheme}")).replace(DARK, media))
}

/// Returns the lines on what is to mend in a page on a screen of this width.
fn to_mend(axe: &str, page: &str, width: u32) -> Result<Vec<String>> {
    let told = told_on(page, width, &format!("{axe}\n;{RUN}"))?;
    ensure!(told.starts_with("axe-core "), "axe-core did not run: {told}");
    Ok(told.lines().skip(1).map(str::to_owned).collect())
}

/// Returns the pages by their names, and a recording as a file.
fn pages(agent: &Agent, cgroup: &TestCgroup) -> Result<Vec<(&'static str, String)>> {
    let (_, _, missing) = agent.get("/nope", &[("Accept", "text/html")])?;
    let url = agent.address().to_string();
    let arguments = [cgroup.kernel_path(), "--agent", &url, "--duration", "1s"];
    Ok(vec![
        ("the list", page(agent, "/")?),
        ("a flame graph", page(agent, &flamegraph(cgroup.kernel_path()))?),
        ("the state", page(agent, "/status")?),
        ("no page", String::from_utf8(missing)?),
        ("a file", String::from_utf8(Recording::start("", "html", &arguments)?.finish()?)?),
    ])
}

fn axe_finds_nothing_to_mend_in_any_page() -> Result<()> {
    let axe = axe()?;
    let (agent, cgroup, _load) = sleepers()?;
    let pages = pages(&agent, &cgroup)?;
    let mut found = Vec::new();
    for (name, page) in &pages {
        for is_dark in [false, true] {
            for width in WIDTHS {
                let lines = to_mend(&axe, &coloured(page, is_dark)?, width)?;
                let theme = if is_dark { "dark" } else { "light" };
                found.extend(lines.into_iter().map(|line| format!("{name}, {theme}, {width} pixels: {line}")));
            }
        }
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    // This shows that such things would be found.
    let spoilt = pages[0].1.replace("<html lang=\"en\">", "<html>");
    let found = to_mend(&axe, &spoilt, WIDTHS[0])?;
    ensure!(found.iter().any(|line| line.contains("html-has-lang")), "nothing is found in a bad page: {found:?}");
    Ok(())
}
