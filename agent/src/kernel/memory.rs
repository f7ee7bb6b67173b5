//! The memory that the process takes, the limit of its container, and the estimated memory of maps of given sizes.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use podperf_ebpf::{
    abi,
    sensor::{Map, Sensor},
};

use super::{
    adopt_or_load::max_oncpu_samples,
    copies::Sizes,
    load::SensorSettings,
    mounts::{Mount, cgroup2_mounts, is_cgroup2},
    rows::Rows,
    sent,
};

/// Bytes that the kernel adds to an entry of a hash, of an LRU hash and of an array with a copy for each CPU.
const HASH_ENTRY: u64 = 64;
const LRU_ENTRY: u64 = 72;
const COPIES_ENTRY: u64 = 8;
/// Bytes of the rings, which do not depend on the configuration.
const RINGS: u64 = (1 << 20) + (1 << 18);

/// Bytes of a CPU's buffer for the check of a recipe.
const BYTES_OF_WORDS: u64 = 8 * abi::PODPERF_RECIPE_NEAR as u64;

/// Returns the resident memory of this process, in bytes.
#[must_use]
pub fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    pages * u64::try_from(page).unwrap_or(4096)
}

/// Bytes in front of each record of a task (`struct bpf_local_storage_elem`).
const RECORD_HEAD: u64 = 72;
/// Bytes that a task with any record needs once (`struct bpf_local_storage`).
pub(super) const RECORDS_OF_TASK: u64 = 192;

/// Returns the bytes of the record of a task, which the kernel's figure for the map leaves out: `value_bytes` and a
/// head, rounded up to a size of the kernel's allocator.
#[must_use]
pub(super) fn record_bytes(value_bytes: u64) -> u64 {
    let wanted = RECORD_HEAD + value_bytes;
    let sizes_between = [96, 192].into_iter().filter(|size| wanted <= *size);
    sizes_between.fold(wanted.next_power_of_two(), u64::min)
}

/// Returns how many threads the node has, in all PID namespaces.
pub(super) fn threads() -> u64 {
    threads_in(&fs::read_to_string("/proc/loadavg").unwrap_or_default())
}

/// Reads the number of threads from `/proc/loadavg`: in `0.20 0.18 0.12 1/80 11206`, there are 80 threads, and 1 is
/// runnable.
fn threads_in(loadavg: &str) -> u64 {
    let counts = loadavg.split_whitespace().nth(3).and_then(|counts| counts.split_once('/'));
    counts.and_then(|(_, all)| all.parse().ok()).unwrap_or(0)
}

/// The place of the memory limits of this process' cgroups. The limits may change while the process runs.
#[derive(Clone, Debug)]
pub struct Limit(Option<(PathBuf, PathBuf)>);

impl Limit {
    /// Looks for the limits.
    #[must_use]
    pub fn find() -> Self {
        let own = fs::read("/proc/self/cgroup").unwrap_or_default();
        Self(own_cgroup(&own, &cgroup2_mounts()).into_iter().find(|(mount, _)| is_cgroup2(mount)))
    }

    /// Returns the smallest `memory.max`, in bytes; `None` if none is set or visible.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.0.as_ref().and_then(|(mount, path)| limit_of(mount, path))
    }
}

/// Returns the cgroup2 mounts that have the process' own cgroup, each with the cgroup's path in the mount.
fn own_cgroup(own: &[u8], mounts: &[Mount]) -> Vec<(PathBuf, PathBuf)> {
    let Some(path) = own.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"0::")) else {
        return Vec::new();
    };
    let path = Path::new(OsStr::from_bytes(path));
    // If the mount is from outside of the process' cgroup namespace, its root is above the namespace: `/../..`.
    let below = |mount: &Mount| Some((mount.point.clone(), path.strip_prefix(&mount.root).ok()?.to_owned()));
    mounts.iter().filter_map(below).collect()
}

fn limit_of(mount: &Path, path: &Path) -> Option<u64> {
    let directories = path.ancestors().map(|ancestor| mount.join(ancestor).join("memory.max"));
    // `max` is no number.
    directories.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok()).min()
}

/// Estimates the memory of the maps with these settings on this machine, in bytes. Once the maps exist,
/// [`super::Sensors::map_use`] returns the kernel's own figures.
#[must_use]
pub fn map_bytes(settings: &SensorSettings) -> u64 {
    map_bytes_with(settings, aya::util::nr_cpus().unwrap_or(1))
}

/// Estimates the memory of the maps on a machine with `copies` possible CPUs, in bytes.
pub(crate) fn map_bytes_with(settings: &SensorSettings, copies: usize) -> u64 {
    let rows = Rows::new(settings.max_cgroups, copies, &settings.sensors);
    let row = (size_of::<abi::podperf_cgroup>() * copies) as u64;
    let of_rows = u64::from(rows.slots()) * (row + COPIES_ENTRY)
        + u64::from(rows.by_id()) * (row + HASH_ENTRY + 16)
        + 2 * (u64::from(settings.max_cgroups) + u64::from(abi::PODPERF_NAMED_PARTS)) * (HASH_ENTRY + 16);
    let sample = (size_of::<abi::podperf_sample_key>() + size_of::<abi::podperf_sample_sum>()) as u64;
    let cpus = u32::try_from(copies).unwrap_or(1);
    let samples = settings.max_samples + max_oncpu_samples(settings, cpus);
    let of_stacks = u64::from(settings.max_stacks) * (LRU_ENTRY + 32)
        + u64::from(sent::sets(settings.max_stacks)) * size_of::<abi::podperf_sent>() as u64
        + u64::from(samples) * 2 * (HASH_ENTRY + sample);
    let Sizes { ring, recipes, pages, stacks, buffers } =
        Sizes::of(settings.max_stacks, cpus, settings.stacks && settings.copies);
    let of_copies = u64::from(recipes) * (HASH_ENTRY + 8 + size_of::<abi::podperf_recipe>() as u64)
        + u64::from(pages) * (HASH_ENTRY + 8 + size_of::<abi::podperf_copy_pages>() as u64)
        + u64::from(stacks) * (HASH_ENTRY + 16)
        + u64::from(buffers) * (2 * size_of::<abi::podperf_copy>() as u64 + BYTES_OF_WORDS)
        + u64::from(ring);
    let of_sensor = |sensor: &&Sensor| {
        let row = (sensor.words * size_of::<u64>() * copies) as u64;
        let of_map = |map: &Map| {
            let value = map.value_bytes * if map.is_per_cpu { copies } else { 1 };
            u64::from(map.entries.with(rows.sensor_slots(), cpus)) * (HASH_ENTRY + 8 + value as u64)
        };
        let of_maps: u64 = sensor.maps.iter().map(of_map).sum();
        u64::from(rows.slots_of(sensor)) * (row + COPIES_ENTRY + row + HASH_ENTRY + 16) + of_maps
    };
    let of_sensors: u64 = settings.sensors.iter().map(of_sensor).sum();
    of_rows + of_sensors + of_copies + RINGS + if settings.stacks { of_stacks } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::mounts::parse;

    #[test]
    fn records_of_tasks_are_of_the_kernels_sizes() {
        assert_eq!([8, 16, 100, 150, 208].map(record_bytes), [96, 96, 192, 256, 512]);
    }

    #[test]
    fn threads_are_counted_by_the_kernel() {
        assert_eq!((threads_in("0.20 0.18 0.12 1/80 11206\n"), threads_in("")), (80, 0));
        let own = fs::read_dir("/proc/self/task").unwrap().count() as u64;
        assert!(threads() >= own, "{} of {own}", threads());
    }

    #[test]
    fn the_own_cgroup_is_found_in_a_mount_that_shows_it() {
        let own_cgroup = |own: &[u8], mountinfo: &[u8]| super::own_cgroup(own, &parse(mountinfo)).into_iter().next();
        let own = b"12:memory:/caf\xe9\n0::/system.slice/podperf.service\n";
        let mounts = b"\
            31 24 0:27 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
            33 31 0:29 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        let found = Some(("/sys/fs/cgroup/unified".into(), "system.slice/podperf.service".into()));
        assert_eq!(own_cgroup(own, mounts), found);
        // In a container: the host's tree is mounted, too, and its root is above the process' cgroup namespace.
        let mounts = b"\
            40 24 0:29 /../../.. /host/sys/fs/cgroup ro - cgroup2 cgroup2 rw\n\
            41 24 0:29 / /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
        assert_eq!(own_cgroup(b"0::/\n", mounts), Some(("/sys/fs/cgroup".into(), "".into())));
        assert_eq!(own_cgroup(b"1:cpu:/a\n", mounts), None);
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_holds() {
        let mount = tempfile::tempdir().unwrap();
        let cgroup = mount.path().join("pod/container");
        fs::create_dir_all(&cgroup).unwrap();
        let limit = || limit_of(mount.path(), Path::new("pod/container"));
        assert_eq!(limit(), None);
        fs::write(cgroup.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(mount.path().join("pod/memory.max"), "536870912\n").unwrap();
        assert_eq!(limit(), Some(512 << 20));
        fs::write(cgroup.join("memory.max"), "268435456\n").unwrap();
        assert_eq!(limit(), Some(256 << 20));
    }
}
