#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build the OpenTelemetry eBPF profiler for `podperf-bench stacks`: build-profiler.sh [OUT_DIR], default
# target/bench-profiler. Prints the path of the binary. A second run finds it in OUT_DIR; another OUT_DIR takes it from
# ~/.cache/podperf.
set -eu

# Its checksums, and those of its dependencies, are in the checksum database and in its own go.sum. It sends the layout of
# OTLP profiles that our own crate has (opentelemetry-proto 1.11, `v1development`).
module=go.opentelemetry.io/ebpf-profiler
version=v0.0.202633

who=profiler
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../../tests/built-once.sh"

# The profiler ends where it may not raise the limit of locked memory (CAP_SYS_RESOURCE), although kernels since 5.11 do
# not charge BPF to this limit. This turns the error into a warning, and nothing else.
go_on_without_limit() {
	sed -i 's/return nil, \(fmt\.Errorf(.*)\)$/log.Warnf("%v", \1)\n\t\treturn func() {}, nil/' "$1" && grep -q Warnf "$1"
}

# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
	cd "$out" &&
		rm -rf src &&
		downloaded=$(go mod download -json "$module@$version") &&
		cp -r "$(echo "$downloaded" | sed -n 's/^.*"Dir": "\(.*\)",$/\1/p')" src &&
		chmod -R u+w src &&
		cd src &&
		go_on_without_limit rlimit/rlimit.go &&
		nice go build -buildvcs=false -trimpath -ldflags='-s -w' -o "$built.part" . &&
		rm -rf "$out/src"
}

enter "${1:-$here/../../target/bench-profiler}"
obtain ebpf-profiler "$version" "the OpenTelemetry eBPF profiler $version"
# One name for the benchmark, whatever the version.
ln -sfn "$key" "$out/ebpf-profiler"
echo "$out/ebpf-profiler"
