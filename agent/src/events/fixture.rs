//! A sysfs of PMUs in a temporary directory, and random texts for parsers.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Files of an Intel core PMU, an Arm PMU, a hybrid PMU, and PMUs that do not count per task.
const FILES: &[(&str, &str)] = &[
    ("cpu/type", "4\n"),
    ("cpu/format/event", "config:0-7\n"),
    ("cpu/format/umask", "config:8-15\n"),
    ("cpu/format/edge", "config:18\n"),
    ("cpu/format/inv", "config:23\n"),
    ("cpu/format/cmask", "config:24-31\n"),
    ("cpu/format/split", "config:0-3,32-35\n"),
    ("cpu/format/ldlat", "config1:0-15\n"),
    ("cpu/format/whole", "config2:0-63\n"),
    ("cpu/format/new", "config3:0-7\n"),
    ("cpu/format/broken", "config:7-0\n"),
    ("cpu/events/cpu-cycles", "event=0x3c\n"),
    ("cpu/events/branch-misses", "event=0xc5,umask=0x00\n"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
    ("cpu/events/mem-loads.scale", "2\n"),
    ("cpu/events/backwards", "event=0xcd,inv,umsk=1\n"),
    ("cpu/events/overflows", "event=0x100\n"),
    ("cpu/events/asks", "event=0x10,umask=?\n"),
    ("armv8_pmuv3_0/type", "8\n"),
    ("armv8_pmuv3_0/cpus", "0-3\n"),
    ("armv8_pmuv3_0/format/event", "config:0-15\n"),
    ("armv8_pmuv3_0/format/long", "config1:0\n"),
    ("armv8_pmuv3_0/events/cpu_cycles", "event=0x0011\n"),
    ("uncore_imc_0/type", "24\n"),
    ("uncore_imc_0/cpumask", "0,24\n"),
    ("uncore_imc_0/format/event", "config:0-7\n"),
    ("untyped/type", "x\n"),
];

/// The temporary directory; it is removed on drop.
pub(super) struct Sysfs(PathBuf);

impl Sysfs {
    pub(super) fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let root = env::temp_dir().join(format!("podperf-events-{}-{count}", process::id()));
        for (path, text) in FILES {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    /// Creates the same machine with a second kind of CPUs.
    pub(super) fn hybrid() -> Self {
        let sysfs = Self::new();
        let atom = sysfs.0.join("cpu_atom");
        fs::create_dir_all(atom.join("format")).unwrap();
        for (file, text) in [("type", "10\n"), ("cpus", "4-5,7\n"), ("format/event", "config:0-7\n")] {
            fs::write(atom.join(file), text).unwrap();
        }
        sysfs
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Returns 30,000 texts, always the same: in turn random bytes, pieces of events, and terms of a PMU.
pub(super) fn random_texts() -> impl Iterator<Item = String> {
    #[rustfmt::skip]
    const PIECES: &[&str] = &[
        "cpu", "/", ",", "=", ":", "u", "k", "name", "config", "0x", "3c", "9", "r", "ff", "cycles", "-", ".", " ", "é",
        "cpu/", "event=", "/u",
    ];
    #[rustfmt::skip]
    const TERMS: &[&str] = &[
        "event=0x3c", "umask=2", "inv", "cpu-cycles", "mem-loads", "ldlat=7", "name=x", "r1a8", "config=9", "new=1",
        "broken", "asks", "backwards", "umask=256", "event",
    ];
    // Knuth's MMIX constants; the high bits are random enough.
    let mut state = 1_u64;
    let mut below = move |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % bound
    };
    (0..30_000).map(move |round| match round % 3 {
        0 => {
            let bytes: Vec<u8> = (0..below(12)).map(|_| u8::try_from(below(256)).unwrap()).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        1 => (0..below(12)).map(|_| PIECES[below(PIECES.len())]).collect(),
        _ => {
            let terms: Vec<_> = (0..below(5)).map(|_| TERMS[below(TERMS.len())]).collect();
            format!("cpu/{}/", terms.join(","))
        }
    })
}
