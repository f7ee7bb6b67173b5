//! Compiles the C part of the load `paths`, without frame pointers and whatever the profile is.

/// The flags that `cc` has no method for. A tail call would take its caller off the stack. A probe of a large frame
/// would touch all of its pages.
const FLAGS: [&str; 4] = [
    "-fomit-frame-pointer",
    "-fno-optimize-sibling-calls",
    "-fasynchronous-unwind-tables",
    "-fno-stack-clash-protection",
];

fn main() {
    for file in ["build.rs", "src/load/paths.c", "src/load/paths.h", "src/load/paths_run.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    // The flags of this workspace's Rust code ask for frame pointers, and so does `cc` where it adds debug information.
    cc::Build::new()
        .files(["src/load/paths.c", "src/load/paths_run.c"])
        .std("gnu11")
        .opt_level(2)
        .debug(false)
        .force_frame_pointer(false)
        .inherit_rustflags(false)
        .flags(FLAGS)
        .extra_warnings(true)
        .compile("podperf_paths");
}
