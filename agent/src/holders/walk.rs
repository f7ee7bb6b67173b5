//! Looks at descriptors of processes and at pins, within a budget.
//!
//! The owner of a process chooses how many descriptors it has, and their targets. So a target is read as a link, which
//! opens nothing, and only a descriptor of a BPF program or link is looked at further.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{
    fdinfo::{Shown, is_bpf, parse},
    table::Process,
};
use crate::{
    kernel::{
        clock::thread_cpu,
        pinned::{described_pin, is_bpffs},
        proc::read_text,
    },
    model::ids::Pid,
};

/// The number of steps in a turn. A step is a look at one descriptor. It takes up to 10 us on a virtual machine, so a
/// full turn takes some 80 ms of CPU time.
const MOST_STEPS: usize = 8_192;
/// The most descriptors of a process that are looked at: the first ones.
pub(super) const MOST_OF_PROCESS: usize = 1_024;
/// The descriptors of a pass, as many as 15 turns look at. If there are more, each process has a share, see [`share`].
const MOST_OF_PASS: usize = 122_880;
/// The smallest share. Most processes have no more descriptors.
const LEAST_OF_PROCESS: usize = 32;
/// The price of a process without descriptors, in steps.
const PROCESS_STEPS: usize = 4;
/// The price of a pin, in steps.
const PIN_STEPS: usize = 4;
/// The most entries of the bpffs that are looked at.
const MOST_PINS: usize = 512;
/// The most directories above a pin.
const DEEPEST: usize = 8;
/// The most processes of a node.
const MOST_PROCESSES: usize = 32_768;
/// The number of steps before a rest, and its length. A full turn has 32 rests.
const REST_AFTER: usize = 256;
const REST: Duration = Duration::from_millis(1);
/// The CPU time after which a turn looks at no further process. The kernel goes through the whole table of a process
/// that has one descriptor with a very high number, and such a table may belong to many processes.
const LONGEST: Duration = Duration::from_millis(200);

/// The steps and the CPU time that a turn may still take.
#[derive(Debug)]
pub(super) struct Budget {
    left: usize,
    since_rest: usize,
    /// The CPU time of this thread at which the turn ends.
    until: Duration,
}

/// The programs and links among the descriptors of a process, or among the pins.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) programs: Vec<Shown>,
    /// The number of descriptors that were looked at.
    pub(super) descriptors: usize,
    /// There are more descriptors or pins than were looked at.
    pub(super) is_cut: bool,
    /// The number of pins that could not be opened.
    pub(super) denied: u64,
}

impl Budget {
    pub(super) fn of_a_turn() -> Self {
        Self { left: MOST_STEPS, since_rest: 0, until: thread_cpu() + LONGEST }
    }

    /// Returns whether a process fits of which this many descriptors are looked at.
    pub(super) fn has_room(&self, most: usize) -> bool {
        self.left >= most && thread_cpu() < self.until
    }

    fn spend(&mut self, steps: usize) {
        self.left = self.left.saturating_sub(steps);
        self.since_rest += steps;
        if self.since_rest >= REST_AFTER {
            self.since_rest = 0;
            thread::sleep(REST);
        }
    }
}

/// Returns the processes of the node.
pub(super) fn processes() -> BTreeSet<Pid> {
    let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().map(Pid);
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(pid).take(MOST_PROCESSES).collect()
}

/// Returns the directory of a process.
pub(super) fn directory_of(pid: Pid) -> PathBuf {
    PathBuf::from(format!("/proc/{}", pid.0))
}

/// Looks at the first descriptors of the process with this directory, at most this many.
///
/// # Errors
///
/// When the process has ended, or when this agent may not look into it.
pub(super) fn look(process: &Path, most: usize, budget: &mut Budget) -> io::Result<Look> {
    budget.spend(PROCESS_STEPS);
    let mut look = Look::default();
    for entry in fs::read_dir(process.join("fd"))? {
        if look.descriptors == most {
            look.is_cut = true;
            break;
        }
        look.descriptors += 1;
        budget.spend(1);
        let Ok(entry) = entry else { continue };
        match fs::read_link(entry.path()) {
            Ok(target) if is_bpf(&target) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            // Another target, or a descriptor that was closed meanwhile.
            _ => continue,
        }
        budget.spend(1);
        let words = read_text(process.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        look.programs.extend(parse(&words));
    }
    Ok(look)
}

/// Returns the most descriptors of a process that the next pass looks at, so that this many processes have no more than
/// [`MOST_OF_PASS`] together. `wanted` has the number of descriptors of each process that was looked at, and
/// [`MOST_OF_PROCESS`] for one that has more. Large processes share equally what small ones leave.
pub(super) fn share(mut wanted: Vec<usize>, processes: usize) -> usize {
    // A process that was not looked at yet may have any number.
    wanted.resize(processes.max(wanted.len()), MOST_OF_PROCESS);
    wanted.sort_unstable();
    let (mut left, mut others) = (MOST_OF_PASS, wanted.len());
    for wants in wanted {
        let share = left / others;
        if wants > share {
            return share.max(LEAST_OF_PROCESS);
        }
        left -= wants;
        others -= 1;
    }
    MOST_OF_PROCESS
}

/// Returns the name and the cgroup of a process.
pub(super) fn describe(pid: Pid) -> Process {
    let directory = directory_of(pid);
    let name = read_text(directory.join("comm")).unwrap_or_default();
    // A process chooses its name, and others that of its cgroup. A line break would look like another line of a text.
    let name = name.trim_end_matches('\n').replace(char::is_control, "?");
    let cgroups = read_text(directory.join("cgroup")).unwrap_or_default();
    let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let cgroup = cgroup.replace(char::is_control, "?");
    Process { pid, name, cgroup }
}

/// Looks at the pins in a directory of a bpffs, and in those below it.
pub(super) fn pins(root: &Path, budget: &mut Budget) -> Look {
    let (mut look, mut entries) = (Look::default(), 0);
    let mut directories = vec![(root.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        if !is_bpffs(&directory) {
            continue;
        }
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entries == MOST_PINS {
                look.is_cut = true;
                return look;
            }
            entries += 1;
            budget.spend(PIN_STEPS);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth < DEEPEST => directories.push((entry.path(), depth + 1)),
                Ok(kind) if kind.is_file() => match described_pin(&entry.path()) {
                    Ok(words) => look.programs.extend(parse(&words)),
                    Err(_) => look.denied += 1,
                },
                _ => {}
            }
        }
    }
    look
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a directory like that of a process, with this number of descriptors. The last one is a program.
    fn process(descriptors: usize) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let (fd, fdinfo) = (directory.path().join("fd"), directory.path().join("fdinfo"));
        fs::create_dir(&fd).unwrap();
        fs::create_dir(&fdinfo).unwrap();
        for number in 1..descriptors {
            symlink("socket:[1]", fd.join(number.to_string())).unwrap();
        }
        symlink("anon_inode:bpf-prog", fd.join("program")).unwrap();
        fs::write(fdinfo.join("program"), "prog_tag:\t6deef7357e7b4530\nprog_id:\t41\n").unwrap();
        directory
    }

    #[test]
    fn the_programs_among_the_descriptors_are_found() {
        let (directory, mut budget) = (process(3), Budget::of_a_turn());
        let found = look(directory.path(), MOST_OF_PROCESS, &mut budget).unwrap();
        assert_eq!(found.programs.iter().map(|shown| shown.id).collect::<Vec<_>>(), [41]);
        assert!(!found.is_cut);
        assert_eq!(budget.left, MOST_STEPS - PROCESS_STEPS - 3 - 1);
        let none = look(Path::new("/proc/none"), MOST_OF_PROCESS, &mut budget).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_process_with_very_many_descriptors_costs_no_more_than_its_share() {
        let (directory, mut budget) = (process(MOST_OF_PROCESS + 100), Budget::of_a_turn());
        let found = look(directory.path(), 100, &mut budget).unwrap();
        assert!(found.is_cut && found.descriptors == 100, "{found:?}");
        assert!(MOST_STEPS - budget.left <= PROCESS_STEPS + 100 + 1, "{budget:?}");
        while budget.has_room(MOST_OF_PROCESS) {
            budget.spend(MOST_OF_PROCESS);
        }
        budget.spend(MOST_STEPS);
        assert_eq!(budget.left, 0);
    }

    #[test]
    fn large_processes_share_what_small_ones_leave() {
        assert_eq!(share(vec![3; 500], 500), MOST_OF_PROCESS, "all have room");
        // A pod with very many descriptors does not shorten the look at others, which are small.
        let mut wanted = vec![MOST_OF_PROCESS; 2_000];
        wanted.extend([2; 480]);
        assert_eq!(share(wanted.clone(), 2_480), (MOST_OF_PASS - 960) / 2_000);
        assert_eq!(share(wanted[2_000..].to_vec(), 2_480), (MOST_OF_PASS - 960) / 2_000, "not looked at yet");
        assert_eq!(share(Vec::new(), MOST_OF_PASS), LEAST_OF_PROCESS);
        assert_eq!(share(Vec::new(), 0), MOST_OF_PROCESS);
    }

    #[test]
    fn a_turn_ends_after_its_time_whatever_a_step_takes() {
        assert!(Budget::of_a_turn().has_room(MOST_OF_PROCESS));
        let late = Budget { until: thread_cpu(), ..Budget::of_a_turn() };
        assert!(!late.has_room(1));
    }

    #[test]
    fn this_process_is_one_of_the_node_and_has_a_name() {
        let own = Pid(std::process::id());
        assert!(processes().contains(&own));
        let described = describe(own);
        assert!(!described.name.is_empty() && described.pid == own, "{described:?}");
    }

    #[test]
    fn directories_outside_of_a_bpffs_have_no_pins() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("below")).unwrap();
        fs::write(directory.path().join("file"), "").unwrap();
        let found = pins(directory.path(), &mut Budget::of_a_turn());
        assert!(found.programs.is_empty() && found.denied == 0 && !found.is_cut, "{found:?}");
    }
}
