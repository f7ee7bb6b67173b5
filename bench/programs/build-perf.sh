#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds a perf that has its BPF skeletons, for the side-by-side benchmark.
#
# Debian's own perf is built without them: `perf stat --bpf-counters`,
# `perf record --off-cpu` and `perf lock contention --use-bpf`, which the
# benchmark compares against, are missing from it. The source is Debian's package `linux-source-6.12`, so that nothing
# is fetched that the package manager does not check.
#
# usage: bench/programs/build-perf.sh [DIR]      (default target/bench-perf)
# The result is DIR/perf; a second run with the same source does nothing.

set -eu

source_version=6.12
source_archive=/usr/src/linux-source-$source_version.tar.xz
directory=${1:-target/bench-perf}

# What the build needs: `path or command` and the package that brings it.
needs="
$source_archive linux-source-$source_version
/usr/include/libelf.h libelf-dev
/usr/include/traceevent/event-parse.h libtraceevent-dev
/usr/include/zlib.h zlib1g-dev
bison bison
clang clang
flex flex
gcc gcc
llvm-strip llvm
make make
pkg-config pkg-config
python3 python3
xz xz-utils
"

missing_packages() {
	echo "$needs" | while read -r what package; do
		[ -n "$what" ] || continue
		[ -e "$what" ] || command -v "$what" >/dev/null 2>&1 || printf '%s ' "$package"
	done
}

install_missing() {
	packages=$(missing_packages)
	[ -n "$packages" ] || return 0
	if [ "$(id -u)" = 0 ]; then
		as_root=
	elif sudo -n true 2>/dev/null; then
		as_root=sudo
	else
		echo "build-perf: please install: $packages" >&2
		exit 1
	fi
	# The package list is split into words on purpose.
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $packages ||
		{ echo "build-perf: please install: $packages" >&2; exit 1; }
}

# The parts of the kernel that perf is built from: tools/, and what that uses
# of the rest. The headers of the BPF programs come from the running kernel's
# own types, /sys/kernel/btf/vmlinux.
unpack() {
	rm -rf "$tree"
	mkdir -p "$tree"
	tar -C "$tree" --strip-components=1 --wildcards -xJf "$source_archive" \
		--exclude='*/tools/testing/*' \
		"linux-source-$source_version/tools" \
		"linux-source-$source_version/Makefile" \
		"linux-source-$source_version/scripts" \
		"linux-source-$source_version/arch/arm64/tools" \
		"linux-source-$source_version/kernel/bpf/disasm.[ch]" \
		"linux-source-$source_version/include/uapi" \
		"linux-source-$source_version/arch/*/include/uapi"
}

# `perf lock contention` finds the locks of run queues through the kernel's symbol `runqueues`. A kernel without this
# symbol in /proc/kallsyms rejects perf's programs. This removes only the names of these locks.
leave_out_run_queues() {
	sed -i -e '/^extern struct rq runqueues __ksym;$/d' -e 's/bpf_per_cpu_ptr(&runqueues, i)/NULL/' \
		"$tree/tools/perf/util/bpf_skel/lock_contention.bpf.c"
}

build() {
	nice make -C "$tree/tools/perf" -j"$(nproc)" WERROR=0 BUILD_BPF_SKEL=1 \
		NO_LIBPYTHON=1 NO_LIBPERL=1 NO_SLANG=1 NO_GTK2=1 NO_JVMTI=1 \
		NO_LIBAUDIT=1 NO_LIBCRYPTO=1 NO_LIBUNWIND=1 \
		NO_LIBDW_DWARF_UNWIND=1 NO_LIBBABELTRACE=1 NO_LIBNUMA=1 \
		NO_LIBCAP=1 NO_LZMA=1 NO_LIBZSTD=1 NO_SDT=1 NO_DEMANGLE=1 \
		NO_AUXTRACE=1 NO_LIBDEBUGINFOD=1 NO_LIBPFM4=1 \
		O="$objects" "$objects/perf"
}

[ -e /sys/kernel/btf/vmlinux ] || {
	echo "build-perf: this kernel has no BTF, which the BPF skeletons are built from" >&2
	exit 1
}
install_missing
mkdir -p "$directory"
directory=$(cd "$directory" && pwd)
tree=$directory/source
objects=$directory/objects
stamp=$directory/built-from
# Size and time of the archive tell one package version from the next.
origin=$(stat -L -c '%s %Y' "$source_archive")

if [ -x "$directory/perf" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$origin" ]; then
	echo "build-perf: $directory/perf is up to date"
	exit 0
fi

unpack
grep -q ' runqueues$' /proc/kallsyms || leave_out_run_queues
rm -rf "$objects"
mkdir -p "$objects"
build >"$directory/build.log" 2>&1 || {
	tail -n 40 "$directory/build.log" >&2
	echo "build-perf: failed to build perf (the whole log is in $directory/build.log)" >&2
	exit 1
}
# The build goes on without what it does not find, so look at the outcome.
for skeleton in bperf_cgroup lock_contention off_cpu; do
	[ -e "$objects/util/bpf_skel/$skeleton.skel.h" ] || {
		echo "build-perf: perf was built without $skeleton (see $directory/build.log)" >&2
		exit 1
	}
done
cp "$objects/perf" "$directory/perf"
echo "$origin" >"$stamp"
rm -rf "$tree" "$objects"
echo "build-perf: built $directory/perf"
