//! The output of a recording: stdout, or a file that is complete or does not exist.

use std::{
    fs::{self, File},
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use thiserror::Error;

use super::{Form, progress};
use crate::{
    export::{calls::CallsFormat, flamegraph::Format},
    http::pages::profile::file_name,
    recording::Wanted,
};

/// A file name that cannot be used. The command then exits with code 2.
#[derive(Debug, Error)]
pub(crate) enum BadOutput {
    /// The name has no known extension for the format.
    #[error("unknown extension of `{0}` (.svg, .html, .pb.gz or .folded)")]
    Extension(String),
    /// The name has no known extension for system calls.
    #[error("unknown extension of `{0}` for system calls (.json; a table goes to stdout, without `-o`)")]
    Calls(String),
    /// A file for pprof is compressed.
    #[error("a file for pprof is no text for a terminal (name one with `-o FILE.pb.gz`, or redirect stdout)")]
    Terminal,
    /// Only files for pprof have lines.
    #[error("`--lines` needs a file for pprof (name one with `-o FILE.pb.gz`)")]
    Lines,
}

/// The format and the target of a recording.
#[derive(Debug)]
pub(super) struct Output {
    form: Form,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Stdout,
    /// A target such as a pipe, which cannot be replaced by a file.
    Special(PathBuf),
    File(PathBuf),
}

/// A temporary file beside the target. It replaces the target by a rename, and is removed on drop otherwise.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Output {
    /// Checks that the target can be written, before the recording starts.
    pub(super) fn open(name: Option<&str>, wanted: &Wanted) -> anyhow::Result<Self> {
        Self::open_from(name, wanted, io::stdout().is_terminal())
    }

    fn open_from(name: Option<&str>, wanted: &Wanted, in_terminal: bool) -> anyhow::Result<Self> {
        let format = if wanted.lines { Format::Pprof } else { Format::Svg };
        let default = || file_name(&wanted.selector.to_string(), wanted.side, format);
        let name = name.map_or_else(default, str::to_owned);
        if wanted.lines && Format::of_file(&name) != Some(Format::Pprof) {
            return Err(BadOutput::Lines.into());
        }
        if name == "-" {
            return Ok(Self { form: Form::Stacks(Format::Folded), target: Target::Stdout });
        }
        let of_stdout = |format: &Format| name.strip_prefix("-.").is_some_and(|rest| rest == format.extension());
        if let Some(format) = Format::ALL.into_iter().find(of_stdout) {
            if format == Format::Pprof && in_terminal {
                return Err(BadOutput::Terminal.into());
            }
            return Ok(Self { form: Form::Stacks(format), target: Target::Stdout });
        }
        let format = Format::of_file(&name).ok_or_else(|| BadOutput::Extension(name.clone()))?;
        Ok(Self { form: Form::Stacks(format), target: Target::open(&name)? })
    }

    /// Checks that the target for system calls can be written. Without a name it is a table on stdout.
    pub(super) fn of_calls(name: Option<&str>) -> anyhow::Result<Self> {
        let (format, target) = match name {
            None | Some("-") => (CallsFormat::Table, Target::Stdout),
            Some("-.json") => (CallsFormat::Json, Target::Stdout),
            Some(name) if Path::new(name).extension().is_some_and(|it| it == "json") => {
                (CallsFormat::Json, Target::open(name)?)
            }
            Some(name) => return Err(BadOutput::Calls(name.to_owned()).into()),
        };
        Ok(Self { form: Form::Calls(format), target })
    }

    pub(super) const fn form(&self) -> Form {
        self.form
    }

    /// Writes the recording, and prints a line with the target's name.
    pub(super) fn write(self, recorded: &[u8]) -> anyhow::Result<()> {
        let cannot = |path: &Path| format!("failed to write `{}` (choose another file with `-o FILE`)", path.display());
        let path = match self.target {
            Target::Stdout => return print(recorded, &mut io::stdout().lock()).context("failed to write"),
            Target::Special(path) => {
                let written = File::options().write(true).open(&path).and_then(|mut file| file.write_all(recorded));
                written.with_context(|| cannot(&path))?;
                path
            }
            Target::File(path) => {
                let unfinished = Unfinished::of(&path);
                let written = fs::write(&unfinished.0, recorded).and_then(|()| fs::rename(&unfinished.0, &path));
                written.with_context(|| cannot(&path))?;
                path
            }
        };
        progress::print(&format!("wrote {} ({} KiB)", path.display(), recorded.len().div_ceil(1024)));
        if io::stderr().is_terminal() && self.form == Form::Stacks(Format::Pprof) {
            progress::print(&format!("  look at it with: go tool pprof -http=: {}", path.display()));
        }
        Ok(())
    }
}

impl Target {
    /// Checks that a file can be written.
    fn open(name: &str) -> anyhow::Result<Self> {
        let path = PathBuf::from(name);
        if fs::metadata(&path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
            return Ok(Self::Special(path));
        }
        let made = if path.is_dir() {
            Err(io::ErrorKind::IsADirectory.into())
        } else {
            File::create(&Unfinished::of(&path).0).map(drop)
        };
        made.with_context(|| format!("failed to write `{name}` (choose another file with `-o FILE`)"))?;
        Ok(Self::File(path))
    }
}

/// Writes all of a recording. A reader that closes the pipe has read enough.
pub(super) fn print(recorded: &[u8], out: &mut impl Write) -> io::Result<()> {
    // Stdout keeps what follows the last line break, and ignores errors when the command ends.
    match out.write_all(recorded).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

impl Unfinished {
    fn of(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Self(path.with_file_name(format!(".{name}.{}", std::process::id())))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a rename the file is gone, and this fails.
        fs::remove_file(&self.0).ok();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        filter::Filter,
        recording::{Selector, Side},
    };

    fn open(name: &Path) -> anyhow::Result<Output> {
        open_with(name, false)
    }

    fn open_with(name: &Path, lines: bool) -> anyhow::Result<Output> {
        Output::open_from(name.to_str(), &wanted(lines), false)
    }

    fn wanted(lines: bool) -> Wanted {
        Wanted {
            selector: Selector::All,
            side: Side::OffCpu,
            filter: Filter::default(),
            duration: Duration::from_secs(1),
            lines,
        }
    }

    /// A disk that is full, or a pipe without a reader.
    struct Refuses(io::ErrorKind);

    impl Write for Refuses {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_file_is_there_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.folded");
        let files = || fs::read_dir(directory.path()).unwrap().count();
        fs::write(&path, "old").unwrap();
        let output = open(&path).unwrap();
        // The unfinished file is removed at once, so that a kill at this point leaves nothing behind.
        assert_eq!((fs::read_to_string(&path).unwrap(), files()), ("old".into(), 1));
        output.write(b"new").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap(), files()), ("new".into(), 1));
    }

    #[test]
    fn what_cannot_be_written_is_said_at_once() {
        let error = open(Path::new("/nonexistent/x.svg")).unwrap_err();
        assert!(format!("{error:#}").contains("failed to write `/nonexistent/x.svg`"), "{error:#}");
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("x.svg");
        fs::create_dir(&folder).unwrap();
        assert!(format!("{:#}", open(&folder).unwrap_err()).contains("x.svg` (choose another file"));
        for name in ["/tmp/x.png", "-.png", "--all"] {
            let error = open(Path::new(name)).unwrap_err();
            assert!(error.is::<BadOutput>() && error.to_string().contains(".pb.gz"), "{name}: {error}");
        }
    }

    #[test]
    fn stdout_has_the_format_that_its_name_says() {
        for (name, format) in [
            ("-", Format::Folded),
            ("-.folded", Format::Folded),
            ("-.html", Format::Html),
            ("-.svg", Format::Svg),
            ("-.pb.gz", Format::Pprof),
        ] {
            let output = open(Path::new(name)).unwrap();
            assert!(
                output.form() == Form::Stacks(format) && matches!(output.target, Target::Stdout),
                "{name}: {output:?}"
            );
        }
    }

    #[test]
    fn system_calls_are_a_table_on_stdout_or_json() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x.json");
        for (name, format) in [
            (None, CallsFormat::Table),
            (Some("-"), CallsFormat::Table),
            (Some("-.json"), CallsFormat::Json),
            (file.to_str(), CallsFormat::Json),
        ] {
            let output = Output::of_calls(name).unwrap();
            assert_eq!(output.form(), Form::Calls(format), "{name:?}");
            assert_eq!(matches!(output.target, Target::File(_)), name == file.to_str(), "{name:?}");
        }
        let error = Output::of_calls(Some("x.svg")).unwrap_err();
        assert!(error.is::<BadOutput>() && error.to_string().contains(".json"), "{error}");
    }

    #[test]
    fn a_terminal_gets_text_only() {
        let open = |name| Output::open_from(Some(name), &wanted(false), true);
        let error = open("-.pb.gz").unwrap_err();
        assert!(error.is::<BadOutput>() && error.to_string().contains("`-o FILE.pb.gz`"), "{error}");
        assert!(open("-").is_ok() && open("-.html").is_ok());
    }

    /// Stdout writes whole lines at once, and the rest when it is flushed.
    #[test]
    fn what_has_no_line_break_is_written_or_an_error() {
        let print = |kind| print(b"no line break", &mut io::LineWriter::new(Refuses(kind)));
        assert_eq!(print(io::ErrorKind::StorageFull).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(print(io::ErrorKind::BrokenPipe).is_ok());
    }

    #[test]
    fn only_files_for_pprof_have_lines() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["x.svg", "x.folded", "-"] {
            let error = open_with(&directory.path().join(name), true).unwrap_err();
            assert!(error.is::<BadOutput>() && error.to_string().contains("`-o FILE.pb.gz`"), "{error}");
        }
        assert_eq!(open_with(&directory.path().join("x.pb.gz"), true).unwrap().form(), Form::Stacks(Format::Pprof));
    }

    #[test]
    fn a_device_is_not_replaced_by_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("null.svg");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        open(&path).unwrap().write(b"x").unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_symlink());
    }
}
