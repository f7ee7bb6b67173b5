#!/bin/sh
# Build what a guest runs, without shared libraries: build.sh ARCH, as the kernel names it. Prints the directory that
# holds the agent, the same with another layout, the load, and ring 2.
set -eu

arch=$1

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
out=$sources/target/vm
target=$arch-unknown-linux-gnu
name=$(echo "$target" | tr a-z- A-Z_)
mkdir -p "$out"

if [ "$arch" = "$(uname -m)" ]; then
	through="env"
else
	through="$here/cross.sh $arch"
fi
# With `unwind: frame-pointers`, stacks are walked by them.
build() {
	$through \
		CARGO_TARGET_DIR="$out/$arch" \
		"CARGO_TARGET_${name}_RUSTFLAGS=-C target-feature=+crt-static -C force-frame-pointers=yes" \
		cargo build --quiet --locked --profile vm --target "$target" --message-format json-render-diagnostics \
		-p podperf -p podperf-ebpf -p podperf-tests "$@" >"$out/$arch.json"
}

# take PROGRAM AS: what was built last.
take() {
	# The test's file name ends with a hash.
	file=$(sed -n "s|.*\"executable\":\"\([^\"]*/$1\(-[0-9a-f]*\)\{0,1\}\)\".*|\1|p" "$out/$arch.json")
	cp "$file" "$programs.part/$2"
}

programs=$out/$arch-programs
rm -rf "$programs.part"
mkdir "$programs.part"
# For tests of upgrades, see tests/other-layout.sh.
build --bin podperf --features podperf-ebpf/other-layout
take podperf podperf-other-layout
build --bin podperf --bin podperf-load --test kernel
for program in podperf podperf-load kernel; do
	take $program $program
done
rm -rf "$programs"
mv "$programs.part" "$programs"
echo "$programs"
