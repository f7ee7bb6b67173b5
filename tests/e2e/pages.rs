//! The agent's pages and the files of recordings, in a real browser.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    browser::{self, browse, dom, file_url, told_on},
    cgroup::TestCgroup,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{profiles::Held, recorded::Recording};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] the_page_of_the_node_leads_to_flame_graphs: BROWSER,
    waits_that_go_on_are_parked_beside_short_ones_of_one_stack,
    #[beside] pages_fit_a_phone: BROWSER,
    #[beside] a_tap_zooms_and_a_search_finds: BROWSER,
    #[beside] a_keyboard_alone_zooms_and_the_way_back_is_in_the_history: BROWSER,
    #[land] #[beside] browsers_get_errors_and_the_state_as_pages,
    #[land] #[beside] a_hostile_cgroup_is_only_text: BROWSER,
    #[beside] recorded_files_open_in_a_browser: BROWSER,
    #[land] #[beside] programs_get_the_index_as_text,
];

const BROWSER: &[Need] = &[browser::BROWSER];
const DEADLINE: Duration = Duration::from_secs(30);
/// The height that no row of the list reaches, also on a phone.
const MOST_OF_ROW: u32 = 170;
const SLEEPERS: [&str; 3] = ["sleepers", "--waits", "100000"];
const YAML: &str = "otlp: {interval: 1s}\nnodeName: worker-3";

/// Returns the width of the page's content on a screen of this width, and the height of the tallest row of the list.
fn size_on(page: &str, width: u32) -> Result<(u32, u32)> {
    let told = told_on(
        page,
        width,
        "return document.documentElement.scrollWidth+' '+Math.max.apply(0,[0].concat(\
         [].map.call(document.querySelectorAll('.rows tbody tr'),function(row){return row.offsetHeight})))",
    )?;
    let (width, height) = told.split_once(' ').with_context(|| told.clone())?;
    Ok((width.parse()?, height.parse()?))
}

/// Returns the agent's page as a browser gets it.
pub(crate) fn page(agent: &Agent, path: &str) -> Result<String> {
    let (status, head, body) = agent.get(path, &[("Accept", "text/html,*/*;q=0.8")])?;
    let body = String::from_utf8(body)?;
    ensure!(status == 200, "{path} answered {status}: {body}");
    let head = head.to_lowercase();
    for expected in ["content-security-policy: default-src 'none'", "x-content-type-options: nosniff"] {
        ensure!(head.contains(expected), "no `{expected}`: {head}");
    }
    Ok(body)
}

pub(crate) fn flamegraph(subject: &str) -> String {
    format!("/flamegraph?subject={subject}&activity=off-cpu")
}

/// Starts an agent whose windows have the sleepers of a cgroup.
pub(crate) fn sleepers() -> Result<(Agent, TestCgroup, Held)> {
    let agent = Agent::start(YAML)?;
    let cgroup = TestCgroup::new("page")?;
    let load = Held::start(&cgroup, &SLEEPERS)?;
    let path = flamegraph(cgroup.kernel_path());
    within(DEADLINE, "the page has the sleepers", || {
        Ok(page(&agent, &path)?.contains("podperf_wait_inner").then_some(()))
    })?;
    Ok((agent, cgroup, load))
}

fn the_page_of_the_node_leads_to_flame_graphs() -> Result<()> {
    let (agent, cgroup, _load) = sleepers()?;
    let name = cgroup.kernel_path();
    let index = dom(&format!("http://{}/", agent.address()))?;
    ensure!(index.contains("<h1>worker-3</h1>"), "{index}");
    let mut link = index.split("href=\"").map(|rest| rest.split('"').next().unwrap_or_default());
    let link = link.find(|link| link.contains(name.trim_start_matches('/')) && link.ends_with("off-cpu"));
    let link = link.with_context(|| index.clone())?.replace("&amp;", "&");
    let row = index.lines().find(|line| line.contains(&format!(">{name}</a>"))).with_context(|| index.clone())?;
    // On a busy machine it waits for a CPU, too.
    let is_told = row.contains("<i class=\"idle\"></i>sleep") || row.contains("threads for a CPU");
    ensure!(is_told && row.contains("data-n=\"off CPU\">"), "{row}");
    let graph = dom(&format!("http://{}{link}", agent.address()))?;
    ensure!(graph.contains(&format!("<h1>{name} off-cpu</h1>")), "{graph}");
    ensure!(graph.contains(">podperf_wait_inner</text>") && graph.contains("<rect class=\"idle\""), "{graph}");
    // The policy allows the page's script, which shows the tools that need it.
    ensure!(graph.contains("<div id=\"tools\">"), "the script did not run: {graph}");
    // The page's script applies the query parameters, too.
    let sorted = page(&agent, "/?sort=name")?;
    ensure!(sorted.contains("<a aria-current=\"page\">pod or cgroup</a>"), "{sorted}");
    let found = page(&agent, &format!("/?text={}", name.trim_start_matches('/').to_uppercase()))?;
    ensure!(found.matches("<tr><td>").count() == 1 && found.contains(&format!(">{name}</a>")), "{found}");
    Ok(())
}

/// The threads sleep between a microsecond and a second. Without user frames all of these waits have one stack.
fn waits_that_go_on_are_parked_beside_short_ones_of_one_stack() -> Result<()> {
    const LEAST: f64 = 4.0;
    let agent = Agent::start(&format!("{YAML}\nstacks: {{unwind: none}}"))?;
    let cgroup = TestCgroup::new("parked")?;
    let _load = Held::start(&cgroup, &["sites", "--threads", "400", "--waits", "1000000"])?;
    within(DEADLINE, "the threads of long waits are parked", || {
        let list = page(&agent, "/?all=1")?;
        let row = list.lines().find(|line| line.contains(&format!(">{}</a>", cgroup.kernel_path())));
        let parked = row.and_then(|row| row.split("data-n=\"parked\">").nth(1)?.split('<').next()?.parse::<f64>().ok());
        Ok((parked >= Some(LEAST)).then_some(()))
    })
}

fn pages_fit_a_phone() -> Result<()> {
    let (agent, cgroup, _load) = sleepers()?;
    for path in ["/", &flamegraph(cgroup.kernel_path()), "/flamegraph"] {
        let page = page(&agent, path)?;
        ensure!(page.contains("<meta name=\"viewport\" content=\"width=device-width"), "{page}");
        for width in [360, 920, 1280] {
            let (drawn, row) = size_on(&page, width)?;
            ensure!(drawn <= width && row < MOST_OF_ROW, "`{path}` is {drawn} wide on {width}, and a row {row} high");
        }
    }
    Ok(())
}

/// Returns the DOM of a copy of the page in which this script has run after the page's own. The script may write a text
/// into the title, which is returned, too.
fn acted(page: &str, script: &str) -> Result<(String, String)> {
    let directory = TempDir::new()?;
    let file = directory.path().join("page.html");
    let nonce = page.split("nonce=\"").nth(1).and_then(|rest| rest.split('"').next()).context("no nonce")?;
    let act = format!("<script nonce=\"{nonce}\">(function(){{{script}}}())</script></body>");
    fs::write(&file, page.replace("</body>", &act))?;
    let dom = dom(&file_url(&file))?;
    let title = dom.split("<title>").nth(1).and_then(|rest| rest.split('<').next()).context("no title")?.to_owned();
    Ok((dom, title))
}

fn a_tap_zooms_and_a_search_finds() -> Result<()> {
    let (agent, cgroup, _load) = sleepers()?;
    let page = page(&agent, &flamegraph(cgroup.kernel_path()))?;
    let (dom, title) = acted(
        &page,
        "\
         var frame=[].filter.call(document.querySelectorAll('svg.f'),function(f){\
         return f.querySelector('text').textContent==='podperf_wait_middle'})[0];\
         frame.dispatchEvent(new Event('click',{bubbles:true}));\
         document.getElementById('search').value='WAIT_INNER';\
         var told=document.getElementById('shown').textContent;\
         document.getElementById('search').dispatchEvent(new Event('input'));\
         document.title=frame.getAttribute('width')+' '+told+' | '+document.getElementById('shown').textContent;",
    )?;
    ensure!(title.starts_with("100% podperf_wait_middle: "), "{title}");
    // On a busy machine the load waits for a CPU, too, after each of its sleeps.
    let share = title.split(" | ").nth(1).and_then(|found| found.split(' ').nth(2)?.parse::<f64>().ok());
    ensure!(share.is_some_and(|percent| percent > 50.0), "{title}");
    ensure!(dom.contains("class=\"f hit\"") && dom.contains("class=\"f past miss\""), "{dom}");
    Ok(())
}

/// Tab leads to the first frame, the arrow keys to the others, and Enter zooms. The script tells the name of the frame
/// that has the focus, and whether the first frame lies above a zoomed picture and the address has a frame. It plays
/// the way back, which the browser's own takes only later.
fn a_keyboard_alone_zooms_and_the_way_back_is_in_the_history() -> Result<()> {
    let (agent, cgroup, _load) = sleepers()?;
    let page = page(&agent, &flamegraph(cgroup.kernel_path()))?;
    let (dom, title) = acted(
        &page,
        "\
         var stops=document.querySelectorAll('svg.f[tabindex]'),root=stops[0],told=[stops.length];\
         var key=function(key){var event=new KeyboardEvent('keydown',{key:key,bubbles:true});\
         document.activeElement.dispatchEvent(event)};\
         var tell=function(){told.push(root.classList.contains('past'),location.hash!=='')};\
         root.focus();key('ArrowDown');\
         told.push(document.activeElement.querySelector('text').textContent);\
         told.push(document.getElementById('under').textContent.split(':')[0]);\
         key('Enter');tell();var zoomed=location.hash;key('Escape');tell();\
         history.replaceState(null,'',zoomed);window.dispatchEvent(new PopStateEvent('popstate'));tell();\
         document.title=told.join(' ')",
    )?;
    ensure!(title == "1 sleep (idle) sleep (idle) true true false false true true", "{title}");
    ensure!(dom.contains("role=\"group\""), "{dom}");
    Ok(())
}

fn browsers_get_errors_and_the_state_as_pages() -> Result<()> {
    let agent = Agent::start(YAML)?;
    let browser = ("Accept", "text/html,*/*;q=0.8");
    let way_back = "<a href=\"/\">";
    for (path, code, says) in [
        ("/nope", 404, "There is no page at this address."),
        ("/flamegraph?subject=shop/cart", 404, "no such pod `shop/cart`"),
        ("/debug/waits?subject=/nosuch", 404, "no such cgroup `/nosuch`"),
        ("/flamegraph?activity=both", 400, "bad `activity` `both`"),
        ("/status", 200, "State of the agent on worker-3"),
    ] {
        let (status, head, body) = agent.get(path, &[browser])?;
        let (head, text) = (head.to_lowercase(), String::from_utf8(body)?);
        ensure!(status == code && text.contains(says) && text.contains(way_back), "{path} answered {status}: {text}");
        ensure!(head.contains("text/html") && head.contains("content-security-policy:"), "{path}: {head}");
        let (status, _, body) = agent.get(path, &[])?;
        let text = String::from_utf8(body)?;
        ensure!(status == code && !text.contains(way_back), "{path} answered a program with {status}: {text}");
    }
    let (_, head, zipped) = agent.get("/flamegraph", &[browser, ("Accept-Encoding", "gzip")])?;
    let (_, _, plain) = agent.get("/flamegraph", &[browser])?;
    ensure!(head.to_lowercase().contains("content-encoding: gzip"), "{head}");
    ensure!(zipped.starts_with(b"\x1f\x8b") && zipped.len() < plain.len() / 2, "{} of {}", zipped.len(), plain.len());
    Ok(())
}

fn a_hostile_cgroup_is_only_text() -> Result<()> {
    let agent = Agent::start(YAML)?;
    let top = TestCgroup::new("hostile")?;
    let hostile = top.child_named("<script>document.title='run'<script><img src=x onerror=document.title='run'>")?;
    let _load = Held::start(&hostile, &SLEEPERS)?;
    let index = || dom(&format!("http://{}/", agent.address()));
    let shown = "&lt;script&gt;document.title='run'&lt;script&gt;&lt;img src=x";
    let found = within(DEADLINE, "the page has the cgroup", || Ok(Some(index()?).filter(|it| it.contains(shown))))?;
    ensure!(found.contains("<title>worker-3 - podperf</title>") && !found.contains("<img"), "{found}");
    let link = found.split("href=\"").map(|rest| rest.split('"').next().unwrap_or_default());
    let link = link.into_iter().find(|link| link.contains("%3Cscript%3E")).context("no link")?.replace("&amp;", "&");
    let url = format!("http://{}{link}", agent.address());
    let graph = within(DEADLINE, "its page has its waits", || {
        Ok(Some(dom(&url)?).filter(|it| it.contains("podperf_wait_inner")))
    })?;
    ensure!(graph.contains(shown) && !graph.contains("<img") && !graph.contains("<title>run</title>"), "{graph}");
    Ok(())
}

fn recorded_files_open_in_a_browser() -> Result<()> {
    let (agent, cgroup, _load) = sleepers()?;
    let url = agent.address().to_string();
    for extension in ["svg", "html"] {
        let arguments = [cgroup.kernel_path(), "--agent", &url, "--duration", "1s"];
        let file = Recording::start("", extension, &arguments)?.finish()?;
        let directory = TempDir::new()?;
        let path = directory.path().join(format!("out.{extension}"));
        fs::write(&path, file)?;
        let dom = dom(&file_url(&path))?;
        // Chromium shows a parser error for faulty XML, and a tree for XML that is not a picture.
        ensure!(!dom.contains("parsererror") && !dom.contains("any style information"), "{dom}");
        ensure!(dom.contains(">podperf_wait_inner</text>"), "{dom}");
        let screenshot = directory.path().join("shot.png");
        browse(&file_url(&path), &[&format!("--screenshot={}", screenshot.display()), "--window-size=360,900"])?;
        ensure!(fs::metadata(&screenshot)?.len() > 5_000, "nothing is drawn of .{extension}");
    }
    Ok(())
}

fn programs_get_the_index_as_text() -> Result<()> {
    let agent = Agent::start(YAML)?;
    for accept in [&[][..], &[("Accept", "*/*")]] {
        let (status, head, body) = agent.get("/", accept)?;
        let text = String::from_utf8(body)?;
        ensure!(status == 200 && head.to_lowercase().contains("text/plain"), "{head}");
        ensure!(
            text.starts_with("podperf\n") && text.contains("/metrics ") && text.contains("/debug/profile "),
            "{text}"
        );
    }
    for (path, says) in [
        ("/flamegraph?activity=both", "bad `activity` `both` (`off-cpu`, `on-cpu` or `locks`)"),
        ("/flamegraph?subject=x", "bad subject `x`"),
        ("/debug/profile?seconds=301", "bad `seconds` `301` (at least 1, at most 300)"),
        ("/debug/profile?seconds=0.01", "bad `seconds` `0.01` (at least 1, at most 300)"),
        ("/debug/profile?format=png", "bad `format` `png`"),
    ] {
        let (status, _, body) = agent.get(path, &[])?;
        let text = String::from_utf8(body)?;
        ensure!(status == 400 && text.contains(says), "{path} answered {status}: {text}");
    }
    Ok(())
}
