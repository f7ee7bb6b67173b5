//! Compares the list of system calls with the kernel's headers, when the C compiler runs.
#![expect(clippy::unwrap_used, reason = "where nothing else can be told, the test fails")]

mod header;

#[test]
fn the_numbers_of_system_calls_are_the_kernels() {
    header::run("calls_x86", String::new());
    header::run("calls_arm64", String::new());
}
