#!/bin/sh
# Build `podperf-other-layout` beside `podperf` in target/debug: the same agent, whose programs keep everything in other
# places (ebpf/build/other.rs). Tests of upgrades go from the one to the other. Prints its path.
set -eu

cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
programs=${CARGO_TARGET_DIR:-target}/debug

# Both are of one target directory, so that what they need is built once; the name is the last one's.
"$cargo" build --locked --workspace --bin podperf --features podperf-ebpf/other-layout "$@"
cp "$programs/podperf" "$programs/podperf-other-layout.part"
mv "$programs/podperf-other-layout.part" "$programs/podperf-other-layout"
"$cargo" build --locked --workspace "$@"
echo "$programs/podperf-other-layout"
