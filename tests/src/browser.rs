//! A headless Chromium that shows pages, and runs scripts in them.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{process, suite::Need};

/// The need of a test with a browser.
pub const BROWSER: Need = Need::Program("chromium");
/// The width and the height of a phone's screen, in pixels.
pub const PHONE: (u32, u32) = (390, 844);

/// Runs a headless Chromium with these flags on a page, and returns its output.
pub fn browse(url: &str, flags: &[&str]) -> Result<String> {
    let profile = TempDir::new()?;
    let mut command = Command::new("chromium");
    process::bind_to_parent(&mut command);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000"]);
    command.arg(format!("--user-data-dir={}", profile.path().display())).args(flags).arg(url);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().context("failed to start chromium")?;
    ensure!(output.status.success(), "chromium: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the page's DOM after its scripts have run.
pub fn dom(url: &str) -> Result<String> {
    browse(url, &["--dump-dom"])
}

/// Returns the address of a file.
#[must_use]
pub fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

/// Returns the text that a script returns in a page on a screen of this width. The script is the body of an `async`
/// function, which runs when the page is complete.
pub fn told_on(page: &str, width: u32, script: &str) -> Result<String> {
    let directory = TempDir::new()?;
    let file = |name: &str| directory.path().join(name);
    // The content security policy would block the test's script, so the copy has no policy.
    let start = page.find("<meta http-equiv").context("no policy")?;
    let end = start + page[start..].find('>').context("no policy")? + 1;
    let rest = page[end..].replace("</body>", "<script src=script.js></script></body>");
    fs::write(file("page.html"), format!("{}{rest}", &page[..start]))?;
    let tell = "function(told){parent.postMessage({told:String(told)},'*')}";
    let script = format!("onload=function(){{(async function(){{{script}\n}})().then({tell},{tell})}}");
    fs::write(file("script.js"), script)?;
    // Windows have a least width, and frames have none.
    let frame = format!(
        "<pre id=told></pre><script>onmessage=function(event){{if(event.data.told!==undefined)\
         {{document.getElementById('told').textContent=event.data.told}}}}</script>\
         <iframe src=page.html width={width} height={} style=border:0></iframe>",
        PHONE.1
    );
    fs::write(file("frame.html"), frame)?;
    let dom = dom(&file_url(&file("frame.html")))?;
    let told = dom.split("<pre id=\"told\">").nth(1).and_then(|rest| rest.split("</pre>").next());
    let told = told.filter(|told| !told.is_empty()).with_context(|| format!("the script told nothing: {dom}"))?;
    Ok(told.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}
