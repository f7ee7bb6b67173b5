//! The release script on invented images: all steps that need neither a compiler nor a registry.

mod registry;

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    process::install,
    rules::root,
    suite::{Need, Test},
    tests,
};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Rows that pack or push take long, and only a release needs them.
pub(crate) const TESTS: &[Test] = tests![
    a_tag_that_is_not_the_version_of_the_tree_is_refused,
    a_version_without_a_section_in_the_changelog_is_refused: GIT,
    a_section_of_a_mebibyte_in_the_changelog_is_found: GIT,
    a_commit_that_is_not_on_main_is_refused: GIT,
    a_tree_with_changes_is_refused: GIT,
    a_commit_whose_rings_have_not_run_is_refused: GIT,
    #[rings] an_index_has_exactly_the_wanted_architectures: JQ,
    #[rings] an_image_of_another_commit_is_refused: JQ,
    #[rings] files_of_a_release_depend_on_the_image_alone: JQ,
    #[rings] an_archive_holds_the_program_of_its_architecture: JQ,
    #[rings] an_archive_holds_manual_pages_and_completions: JQ,
    #[rings] notes_of_a_release_name_its_digest_and_what_changed: JQ,
    nothing_is_signed_without_the_identity_of_a_workflow,
    #[rings] files_of_another_job_replace_nothing => registry::files_of_another_job_replace_nothing,
    #[rings] a_registry_that_is_down_stops_a_release: JQ => registry::a_registry_that_is_down_stops_a_release,
    #[rings] a_version_with_other_contents_is_not_replaced: JQ => registry::a_version_with_other_contents_is_not_replaced,
    #[rings] a_version_has_no_name_in_the_registry_before_the_last_step: JQ => registry::a_version_has_no_name_in_the_registry_before_the_last_step,
    #[rings] a_file_without_a_sum_is_not_published: JQ => registry::a_file_without_a_sum_is_not_published,
    #[rings] a_release_that_exists_is_completed => registry::a_release_that_exists_is_completed,
];

const GIT: &[Need] = &[Need::Program("git")];
const JQ: &[Need] = &[Need::Program("jq")];
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of the invented images.
const REVISION: &str = "643e9ff0c5d1f6e4a8d2b7930c1e5f4a6b8d9e70";

fn a_tag_that_is_not_the_version_of_the_tree_is_refused() -> Result<()> {
    let out = TempDir::new()?;
    for tag in ["v99.0.0", VERSION, &format!("v{VERSION}-rc.1")] {
        let output = run(out.path(), "check", tag)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && said.contains(&format!("the tag is `{tag}`")), "{tag}: {said}");
    }
    Ok(())
}

fn a_version_without_a_section_in_the_changelog_is_refused() -> Result<()> {
    let checkout = Checkout::new()?;
    for heading in [format!("## {VERSION} - 2026-01-02"), format!("## [{VERSION}]")] {
        checkout.check(&format!("{heading}\n\n* A change.\n"))?;
    }
    for text in ["## Unreleased\n\n* A change.\n", &format!("## {VERSION}\n## 0.0.1\n\n* A change.\n")] {
        let said = checkout.check(text).err().with_context(|| format!("taken: {text}"))?.to_string();
        ensure!(said.contains("has no section"), "{said}");
    }
    Ok(())
}

/// The section is larger than a pipe: a reader that leaves early would end the writer, and the release.
fn a_section_of_a_mebibyte_in_the_changelog_is_found() -> Result<()> {
    let changes = "* A change.\n".repeat((1 << 20) / 12);
    Checkout::new()?.check(&format!("## {VERSION}\n\n{changes}"))
}

fn a_commit_that_is_not_on_main_is_refused() -> Result<()> {
    let checkout = Checkout::new()?;
    let changes = format!("## {VERSION}\n\n* A change.\n");
    checkout.check(&changes)?;
    checkout.git(&["commit", "--quiet", "--allow-empty", "--message", "another"])?;
    let said = checkout.check(&changes).err().context("taken")?.to_string();
    ensure!(said.contains("the commit is not on `main`"), "{said}");
    // An earlier commit of main is a valid release.
    checkout.git(&["update-ref", "refs/remotes/origin/main", "HEAD"])?;
    checkout.git(&["checkout", "--quiet", "HEAD~1"])?;
    checkout.check(&changes)?;
    checkout.git(&["update-ref", "-d", "refs/remotes/origin/main"])?;
    let said = checkout.check(&changes).err().context("taken without a main")?.to_string();
    ensure!(said.contains("no `origin/main`"), "{said}");
    Ok(())
}

fn a_tree_with_changes_is_refused() -> Result<()> {
    let checkout = Checkout::new()?;
    let changes = format!("## {VERSION}\n\n* A change.\n");
    checkout.check(&changes)?;
    fs::write(checkout.tree.path().join("new.rs"), "")?;
    let said = checkout.check(&changes).err().context("taken")?.to_string();
    ensure!(said.contains("not the commit that is checked out"), "{said}");
    Ok(())
}

fn a_commit_whose_rings_have_not_run_is_refused() -> Result<()> {
    let checkout = Checkout::new()?;
    checkout.let_rings("{ echo kernel: no passed run; exit 1; }")?;
    checkout.git(&["commit", "--quiet", "--all", "--message", "two"])?;
    checkout.git(&["update-ref", "refs/remotes/origin/main", "HEAD"])?;
    let said = checkout.check(&format!("## {VERSION}\n\n* A change.\n")).err().context("taken")?.to_string();
    ensure!(said.contains("kernel: no passed run") && said.contains("docs/rings.md"), "{said}");
    Ok(())
}

fn an_index_has_exactly_the_wanted_architectures() -> Result<()> {
    let out = TempDir::new()?;
    image(out.path(), "amd64", "program")?;
    let index =
        |wanted: &[&str]| Ok::<_, anyhow::Error>(script(out.path(), "index", wanted).output()?.status.success());
    ensure!(index(&["amd64"])?, "refused, and all are there");
    ensure!(!index(&["amd64", "arm64"])?, "taken, and arm64 is missing");
    ensure!(!index(&["amd64", "amd64"])?, "taken twice");
    ensure!(!index(&[])?, "an index of nothing");
    image(out.path(), "arm64", "program")?;
    ensure!(!index(&["amd64"])?, "taken, and arm64 was left there");
    ensure!(index(&["arm64", "amd64"])?, "refused, and both are there");
    // The directory's name alone says that the image is for arm64.
    fs::remove_dir_all(out.path().join("image-arm64"))?;
    Command::new("cp")
        .arg("-r")
        .args(["amd64", "arm64"].map(|arch| out.path().join(format!("image-{arch}"))))
        .status()?;
    ensure!(!index(&["amd64", "arm64"])?, "one image for two architectures");
    Ok(())
}

fn an_image_of_another_commit_is_refused() -> Result<()> {
    let out = TempDir::new()?;
    image(out.path(), "amd64", "program")?;
    for (revision, is_taken) in [(REVISION, true), ("0000000000000000000000000000000000000000", false)] {
        let output = script(out.path(), "index", &["amd64"]).env("REVISION", revision).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success() == is_taken, "{revision}: {said}");
        ensure!(is_taken || said.contains("is not the image of commit"), "{said}");
    }
    Ok(())
}

fn files_of_a_release_depend_on_the_image_alone() -> Result<()> {
    let [one, same, other] = [TempDir::new()?, TempDir::new()?, TempDir::new()?];
    for (out, program) in [(&one, "program"), (&same, "program"), (&other, "another")] {
        make(out.path(), &[("amd64", program), ("arm64", program)])?;
    }
    let sums = |out: &TempDir| fs::read_to_string(out.path().join("files/SHA256SUMS")).context("no sums");
    let index = |out: &TempDir| fs::read_to_string(out.path().join("image/index.json")).context("no index");
    ensure!(sums(&one)? == sums(&same)?, "{}\n{}", sums(&one)?, sums(&same)?);
    ensure!(index(&one)? == index(&same)?, "{}\n{}", index(&one)?, index(&same)?);
    ensure!(sums(&one)? != sums(&other)?, "the sums do not tell two programs apart");
    ensure!(index(&one)? != index(&other)?, "the index does not tell two images apart");
    Ok(())
}

fn an_archive_holds_the_program_of_its_architecture() -> Result<()> {
    let out = TempDir::new()?;
    make(out.path(), &[("amd64", "for amd64"), ("arm64", "for arm64")])?;
    for arch in ["amd64", "arm64"] {
        let program = unpacked(out.path(), arch, &["-xO", &format!("podperf-{VERSION}-linux-{arch}/podperf")])?;
        ensure!(program == program_text(&format!("for {arch}")), "{program}");
        let names = unpacked(out.path(), arch, &["-t"])?;
        for name in ["LICENSE", "sbom.cdx.json", "CHANGELOG.md", "README.md"] {
            ensure!(names.lines().any(|line| line.ends_with(&format!("/{name}"))), "no `{name}` in {names}");
        }
        let owners = unpacked(out.path(), arch, &["-tv", "--numeric-owner"])?;
        ensure!(owners.lines().all(|line| line.contains(" 0/0 ")), "{owners}");
    }
    Ok(())
}

fn an_archive_holds_manual_pages_and_completions() -> Result<()> {
    let out = TempDir::new()?;
    make(out.path(), &[("amd64", "program"), ("arm64", "program")])?;
    for (name, text) in [
        ("man1/podperf.1", "a page"),
        ("man1/podperf-agent.1", "a page"),
        ("completions/podperf.bash", "words for bash"),
        ("completions/_podperf", "words for zsh"),
        ("completions/podperf.fish", "words for fish"),
    ] {
        // One of the two programs cannot run here. Its archive has the manual pages all the same.
        for arch in ["amd64", "arm64"] {
            let found = unpacked(out.path(), arch, &["-xO", &format!("podperf-{VERSION}-linux-{arch}/{name}")])?;
            ensure!(found.trim() == text, "{name} for {arch}: {found}");
        }
    }
    Ok(())
}

/// Returns the output of `tar` with the archive of an architecture.
fn unpacked(out: &Path, arch: &str, arguments: &[&str]) -> Result<String> {
    let archive = out.join(format!("files/podperf-{VERSION}-linux-{arch}.tar.gz"));
    let output = Command::new("tar").args(arguments).arg("-zf").arg(archive).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

fn notes_of_a_release_name_its_digest_and_what_changed() -> Result<()> {
    let out = TempDir::new()?;
    make(out.path(), &[("amd64", "program")])?;
    let notes = fs::read_to_string(out.path().join("notes.md"))?;
    let index: Value = serde_json::from_slice(&fs::read(out.path().join("image/index.json"))?)?;
    let digest = index["manifests"][0]["digest"].as_str().context("no digest")?;
    ensure!(notes.contains(&format!("ghcr.io/podperf/podperf:{VERSION}@{digest}")), "{notes}");
    ensure!(notes.contains("* A change.") && !notes.contains("change of another version"), "{notes}");
    Ok(())
}

fn nothing_is_signed_without_the_identity_of_a_workflow() -> Result<()> {
    let [out, programs] = [TempDir::new()?, TempDir::new()?];
    // With its own key, the script would sign in the name of the user who runs it.
    std::os::unix::fs::symlink("/bin/true", programs.path().join("cosign"))?;
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap_or_default());
    let output =
        script(out.path(), "sign", &[]).env("PATH", path).env_remove("ACTIONS_ID_TOKEN_REQUEST_URL").output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && said.contains("no identity token"), "{said}");
    Ok(())
}

/// Makes all files of a release, from images that hold these programs.
fn make(out: &Path, images: &[(&str, &str)]) -> Result<()> {
    for (arch, program) in images {
        image(out, arch, program)?;
    }
    let others = "* A change of another version.";
    let changes = format!("## Unreleased\n{others}\n## {VERSION} - 2026-01-02\n* A change.\n## 0.0.1\n{others}\n");
    fs::write(out.join("CHANGELOG.md"), changes)?;
    fs::write(out.join("base"), "docker.io/library/rust:1@sha256:0\n")?;
    let archs: Vec<_> = images.iter().map(|(arch, _)| *arch).collect();
    succeed(script(out, "index", &archs))?;
    for (arch, _) in images {
        step(out, "archive", arch)?;
    }
    step(out, "notes", "")?;
    step(out, "sums", "")
}

fn script(out: &Path, step: &str, arguments: &[&str]) -> Command {
    script_of(&root(), out, step, arguments)
}

fn script_of(tree: &Path, out: &Path, step: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(tree.join(".ci/release"));
    command.arg(step).args(arguments);
    command.env("OUT", out).env("CHANGELOG", out.join("CHANGELOG.md")).env("REVISION", REVISION);
    command.env("SOURCE_DATE_EPOCH", "1700000000").env_remove("REGISTRY").env_remove("GITHUB_OUTPUT");
    command
}

fn run(out: &Path, step: &str, argument: &str) -> Result<Output> {
    let argument: Vec<_> = [argument].into_iter().filter(|argument| !argument.is_empty()).collect();
    script(out, step, &argument).output().context("failed to run `.ci/release`")
}

fn step(out: &Path, step: &str, argument: &str) -> Result<()> {
    let argument: Vec<_> = [argument].into_iter().filter(|argument| !argument.is_empty()).collect();
    succeed(script(out, step, &argument))
}

fn succeed(mut command: Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// A repository with the files that `check` reads. Its only commit is on main.
struct Checkout {
    tree: TempDir,
    out: TempDir,
}

impl Checkout {
    fn new() -> Result<Self> {
        let checkout = Self { tree: TempDir::new()?, out: TempDir::new()? };
        for name in [".ci/release", "Cargo.toml", "charts/podperf/Chart.yaml"] {
            let path = checkout.tree.path().join(name);
            fs::create_dir_all(path.parent().context("no directory")?)?;
            fs::copy(root().join(name), path)?;
        }
        checkout.let_rings("exit 0")?;
        checkout.git(&["init", "--quiet"])?;
        checkout.git(&["add", "."])?;
        checkout.git(&["commit", "--quiet", "--message", "one"])?;
        checkout.git(&["update-ref", "refs/remotes/origin/main", "HEAD"])?;
        Ok(checkout)
    }

    /// Makes the script that knows the runs of rings answer so.
    fn let_rings(&self, answer: &str) -> Result<()> {
        let script = self.tree.path().join("tests/rings.sh");
        fs::create_dir_all(self.tree.path().join("tests"))?;
        install(format!("#!/bin/sh\n[ \"$*\" = 'check --release' ] && {answer}\n").as_bytes(), &script)
    }

    fn git(&self, arguments: &[&str]) -> Result<()> {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.tree.path()).args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        command.args(["-c", "commit.gpgsign=false"]).args(arguments);
        succeed(command)
    }

    fn check(&self, changelog: &str) -> Result<()> {
        fs::write(self.out.path().join("CHANGELOG.md"), changelog)?;
        let mut command = script_of(self.tree.path(), self.out.path(), "check", &[&format!("v{VERSION}")]);
        command.env_remove("REVISION");
        succeed(command)
    }
}

/// Returns a program with the real one's output for packages. Its name in the text makes it unique.
fn program_text(name: &str) -> String {
    format!(
        "#!/bin/sh\n# {name}\ncase $1 in\nman) for page in podperf podperf-agent; do echo a page >$2/$page.1; done ;;\n\
         completions) echo words for $2 ;;\nesac\n"
    )
}

/// Writes an OCI layout of one image, as `.ci/release image` does.
fn image(out: &Path, arch: &str, program: &str) -> Result<()> {
    let layout = out.join(format!("image-{arch}"));
    let tree = TempDir::new()?;
    for (name, text) in [
        ("usr/bin/podperf", program_text(program).as_str()),
        ("usr/share/podperf/sbom.cdx.json", "{}"),
        ("usr/share/doc/podperf/LICENSE", "a licence"),
    ] {
        let path = tree.path().join(name);
        fs::create_dir_all(path.parent().context("no directory")?)?;
        fs::write(&path, text)?;
        fs::set_permissions(path, Permissions::from_mode(0o555))?;
    }
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    let layer = Command::new("tar")
        .arg("-C")
        .arg(tree.path())
        .args(["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "-czf", "-", "usr"])
        .output()?;
    let layer = blob(&layout, "layer.v1.tar+gzip", &layer.stdout)?;
    let labels = json!({"org.opencontainers.image.revision": REVISION, "other": "one"});
    let config = json!({"architecture": arch, "os": "linux", "config": {"Labels": labels}});
    let config = blob(&layout, "config.v1+json", &serde_json::to_vec(&config)?)?;
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
    let manifest = blob(&layout, "manifest.v1+json", &serde_json::to_vec(&manifest)?)?;
    fs::write(layout.join("index.json"), json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
    Ok(())
}

/// Writes a blob, and returns its descriptor.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    let hex: String = digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(layout.join("blobs/sha256").join(&hex), bytes)?;
    let kind = format!("application/vnd.oci.image.{kind}");
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{hex}"), "size": bytes.len()}))
}
