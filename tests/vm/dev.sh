#!/bin/sh
# Collect the agent, the load and ring 2 of a debug build, which need shared libraries: dev.sh. Prints the directory
# that holds them.
set -eu

sources=$(cd "$(dirname "$0")/../.." && pwd)
out=$sources/target/vm
programs=$out/dev-programs
cargo=${CARGO:-cargo}
rm -rf "$programs.part"
mkdir -p "$programs.part"
cd "$sources"

# The selection of `make test-build`, so that nothing is built: with another one, crates have other features.
"$cargo" build --quiet --locked --workspace --exclude podperf-bench --bins --tests --message-format json-render-diagnostics >"$out/dev.json"
# A program goes without its debug information, which is most of its size: a guest has its files in memory.
strip_to() {
	strip --strip-debug -o "$programs.part/$1" "$(sed -n "s|.*\"executable\":\"\([^\"]*/$1$2\)\".*|\1|p" "$out/dev.json" | tail -n 1)"
}
strip_to podperf ''
strip_to podperf-load ''
# The file name of a test ends with a hash. So does that of the agent's own tests.
strip_to kernel '-[0-9a-f]\{16\}'
rm -rf "$programs"
mv "$programs.part" "$programs"
echo "$programs"
