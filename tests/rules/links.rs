//! Links in pages lead to existing files and headings, and lists in pages are complete.

use std::{collections::BTreeSet, ffi::OsStr, fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    pages,
    rules::{files_in, root},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    links_of_pages_go_to_files_and_headings_that_there_are,
    the_index_names_every_page,
    the_page_on_perf_has_a_row_for_each_of_its_programs,
];

/// The BPF programs of perf's newest source, by the names of their files.
const OF_PERF: [&str; 13] = [
    "augmented_raw_syscalls",
    "bench_uprobe",
    "bperf_cgroup",
    "bperf_follower",
    "bperf_leader",
    "bpf_prog_profiler",
    "func_latency",
    "kwork_top",
    "kwork_trace",
    "lock_contention",
    "off_cpu",
    "sample_filter",
    "syscall_summary",
];
/// The programs of the perf that `bench/programs/build-perf.sh` has built, if it has.
const BUILT: &str = "target/bench-perf/source/tools/perf/util/bpf_skel";

fn links_of_pages_go_to_files_and_headings_that_there_are() -> Result<()> {
    let mut count = 0;
    for page in pages::pages()? {
        let text = fs::read_to_string(&page)?;
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            count += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let directory = page.parent().context("a page without a directory")?;
            let target = if file.is_empty() { page.clone() } else { directory.join(file) };
            ensure!(target.exists(), "{}: no `{file}`", page.display());
            let known = heading.is_empty() || headings(&target)?.iter().any(|found| found == heading);
            ensure!(known, "{}: no heading `{heading}` in `{}`", page.display(), target.display());
        }
    }
    ensure!(count > 100, "only {count} links in all pages");
    Ok(())
}

/// Returns the names of a page's headings in links: lower case, `-` for spaces, no other signs. A line with `#` in a
/// code block counts as a heading too, but no link uses it.
fn headings(page: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(page)?;
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let is_kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
    Ok(titles.map(|title| title.to_lowercase().chars().filter(is_kept).collect::<String>().replace(' ', "-")).collect())
}

fn the_index_names_every_page() -> Result<()> {
    let index = pages::pages()?.into_iter().find(|page| page.ends_with("docs/README.md")).context("no index")?;
    let text = fs::read_to_string(&index)?;
    for page in pages::pages()?.iter().filter(|page| page.parent() == index.parent() && **page != index) {
        let name = page.file_name().and_then(OsStr::to_str).context("a page without a name")?;
        ensure!(text.contains(&format!("]({name}")), "the index has no `{name}`");
    }
    Ok(())
}

fn the_page_on_perf_has_a_row_for_each_of_its_programs() -> Result<()> {
    let page = fs::read_to_string(root().join("docs/perf.md"))?;
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let rows: BTreeSet<&str> =
        cells.flat_map(|cell| cell.split(['`', ',', ' '])).filter(|word| !word.is_empty()).collect();
    let mut programs: BTreeSet<String> = OF_PERF.iter().map(|name| (*name).to_owned()).collect();
    if root().join(BUILT).is_dir() {
        for file in files_in(&root().join(BUILT), ".bpf.c")? {
            let name = file.file_name().and_then(OsStr::to_str).context("a program without a name")?;
            programs.insert(name.trim_end_matches(".bpf.c").to_owned());
        }
    }
    for program in programs {
        ensure!(rows.contains(program.as_str()), "docs/perf.md has no row for `{program}`");
    }
    Ok(())
}
