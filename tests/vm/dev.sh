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
"$cargo" build --quiet --locked --workspace --bins --tests --message-format json-render-diagnostics >"$out/dev.json"
for program in podperf podperf-load kernel; do
	# The test's file name ends with a hash. A program goes without its debug information, which is most of its size: a
	# guest has its files in memory.
	strip --strip-debug -o "$programs.part/$program" \
		"$(sed -n "s|.*\"executable\":\"\([^\"]*/$program\(-[0-9a-f]\{16\}\)\{0,1\}\)\".*|\1|p" "$out/dev.json" | tail -n 1)"
done
rm -rf "$programs"
mv "$programs.part" "$programs"
echo "$programs"
