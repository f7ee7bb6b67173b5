use std::os::unix::fs::{chown, symlink};

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// Returns a directory of this mode, and the guard that removes it.
fn directory(mode: u32) -> (tempfile::TempDir, PathBuf) {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("run");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    (top, path)
}

#[test]
fn a_directory_that_would_be_made_is_not_made() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("a/b");
    assert_eq!(probe(&run_dir).unwrap(), None);
    assert!(!run_dir.parent().unwrap().exists());
}

#[test]
fn what_is_no_directory_is_refused_as_by_the_agent() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let said = [probe(file.path()).map(drop), lock(file.path()).map(drop)].map(|result| result.unwrap_err());
    for error in said {
        let text = format!("{error:#}");
        assert!(text.starts_with("failed to open lock `") && text.contains("(set `runDir`"), "{text}");
    }
}

#[test]
fn the_pid_of_a_lock_that_is_held_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let first = lock(directory.path()).unwrap();
    assert_eq!(probe(directory.path()).unwrap(), Some(std::process::id()));
    let text = format!("{:#}", lock(directory.path()).unwrap_err());
    assert!(text.contains(&format!("is running, pid {} (", std::process::id())), "{text}");
    drop(first);
    assert_eq!(probe(directory.path()).unwrap(), None);
    lock(directory.path()).unwrap();
}

#[test]
fn in_a_pod_the_remedy_is_the_charts() {
    let says = |pid, in_pod| another_runs(Path::new("/run/podperf/agent.lock"), pid, in_pod);
    for pid in [None, Some(7)] {
        let text = says(pid, true);
        assert!(text.contains("helm list --all-namespaces") && text.contains("`/run/podperf/agent.lock`"), "{text}");
        assert!(!text.contains("pid") && !text.contains("runDir"), "{text}");
        assert!(says(pid, false).ends_with("(stop it, or set another `runDir`)"));
    }
}

#[test]
fn a_pid_that_is_gone_or_of_another_process_is_not_blamed() {
    let directory = tempfile::tempdir().unwrap();
    let _first = lock(directory.path()).unwrap();
    for stale in ["4194305 1".to_owned(), format!("{} 1", std::process::id()), "1".into(), String::new()] {
        fs::write(directory.path().join(LOCK), &stale).unwrap();
        let text = format!("{:#}", lock(directory.path()).unwrap_err());
        assert!(text.contains("is running: it holds `") && !text.contains("pid"), "{stale}: {text}");
        assert_eq!(probe(directory.path()).unwrap(), None);
    }
}

#[test]
fn the_directory_and_its_files_are_closed_to_others() {
    let (_top, run_dir) = directory(0o755);
    for name in ["agent.lock", "kept.state"] {
        fs::write(run_dir.join(name), "of an older version").unwrap();
        fs::set_permissions(run_dir.join(name), Permissions::from_mode(0o644)).unwrap();
    }
    assert_eq!(probe(&run_dir).unwrap(), None);
    assert_eq!(mode(&run_dir), 0o755, "a look changes nothing");
    let _lock = lock(&run_dir).unwrap();
    assert_eq!(mode(&run_dir), 0o700);
    assert_eq!((mode(&run_dir.join("agent.lock")), mode(&run_dir.join("kept.state"))), (0o600, 0o600));
    // Volumes of pods begin with this mode.
    let (_top, run_dir) = directory(0o777);
    let _lock = lock(&run_dir).unwrap();
    assert_eq!(mode(&run_dir), 0o700);
    // The parent of a directory that the lock makes.
    let (_top, parent) = directory(0o755);
    let _lock = lock(&parent.join("made")).unwrap();
    assert_eq!((mode(&parent.join("made")), mode(&parent.join("made/agent.lock"))), (0o700, 0o600));
}

#[test]
fn a_directory_with_other_things_in_it_keeps_its_mode() {
    let (_top, run_dir) = directory(0o755);
    fs::write(run_dir.join("somebody's"), "").unwrap();
    let _lock = lock(&run_dir).unwrap();
    assert_eq!((mode(&run_dir), mode(&run_dir.join("agent.lock"))), (0o755, 0o600));
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    for shared in [0o1777, 0o775] {
        let (_top, run_dir) = directory(shared);
        symlink("/dev/null", run_dir.join("kept.state")).unwrap();
        for said in [probe(&run_dir).map(drop), lock(&run_dir).map(drop)] {
            let text = format!("{:#}", said.unwrap_err());
            assert!(text.contains("other users may write") && text.contains("chmod it to 0700"), "{text}");
        }
        assert!(!run_dir.join(LOCK).exists());
    }
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let (_top, run_dir) = directory(0o755);
    // Only root may change the owner; for other users `/` belongs to root.
    let run_dir = if geteuid().is_root() { run_dir } else { PathBuf::from("/") };
    if geteuid().is_root() {
        chown(&run_dir, Some(65534), None).unwrap();
    }
    for said in [probe(&run_dir).map(drop), lock(&run_dir).map(drop)] {
        let text = format!("{:#}", said.unwrap_err());
        assert!(text.contains("belongs to user") && text.contains("another `runDir`"), "{text}");
    }
}

#[test]
fn a_link_is_no_lock() {
    let (_top, run_dir) = directory(0o700);
    let elsewhere = run_dir.join("elsewhere");
    symlink(&elsewhere, run_dir.join(LOCK)).unwrap();
    lock(&run_dir).unwrap_err();
    assert!(!elsewhere.exists());
}

#[test]
fn one_who_can_only_read_the_lock_blocks_nobody() {
    let (_top, run_dir) = directory(0o700);
    drop(lock(&run_dir).unwrap());
    let reader = File::open(run_dir.join(LOCK)).unwrap();
    // A reader gets no exclusive lock, but its shared lock would prevent an exclusive one.
    assert_eq!(fcntl(&reader, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))), Err(Errno::EBADF));
    fcntl(&reader, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))).unwrap();
    let whole = nix::fcntl::Flock::lock(File::open(run_dir.join(LOCK)).unwrap(), nix::fcntl::FlockArg::LockExclusive);
    let _whole = whole.unwrap();
    assert_eq!(probe(&run_dir).unwrap(), None);
    let first = lock(&run_dir).unwrap();
    assert_eq!(probe(&run_dir).unwrap(), Some(std::process::id()));
    lock(&run_dir).unwrap_err();
    let again = File::open(run_dir.join(LOCK)).unwrap();
    assert_eq!(fcntl(&again, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_RDLCK))), Err(Errno::EAGAIN));
    let names = fs::read_dir(&run_dir).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(names, [LOCK]);
    drop(first);
    lock(&run_dir).unwrap();
}

/// Takes the lock as an agent does that takes `flock` only.
fn flocked(run_dir: &Path, text: &str) -> File {
    fs::write(run_dir.join(LOCK), text).unwrap();
    let file = File::open(run_dir.join(LOCK)).unwrap();
    file.try_lock().unwrap();
    file
}

#[test]
fn an_agent_that_takes_the_other_lock_is_seen() {
    let (_top, run_dir) = directory(0o700);
    let older = flocked(&run_dir, &format!("{}\n", std::process::id()));
    let text = format!("{:#}", lock(&run_dir).unwrap_err());
    assert!(text.contains(&format!("is running, pid {} (", std::process::id())), "{text}");
    drop(older);
    let file = lock(&run_dir).unwrap();
    // An older agent sees the lock of this agent.
    let again = File::options().read(true).write(true).open(run_dir.join(LOCK)).unwrap();
    assert!(matches!(again.try_lock(), Err(TryLockError::WouldBlock)));
    drop(file);
    again.try_lock().unwrap();
}

#[test]
fn a_stranger_with_the_other_lock_blocks_nobody() {
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    for text in [format!("{}\n", stranger.id()), "4194305\n".into(), "4194305 1\n".into(), String::new()] {
        let (_top, run_dir) = directory(0o700);
        let _held = flocked(&run_dir, &text);
        let _lock = lock(&run_dir).unwrap();
        lock(&run_dir).unwrap_err();
    }
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
