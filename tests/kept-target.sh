#!/bin/sh
# With CI set, keeps `target` in podperf's cache, so that a new checkout compiles the workspace and not three hundred crates
# of others. What an earlier checkout built of the workspace is removed first. Only `.ci/run` calls it, with a lock for as
# long as it runs: another checkout then has a `target` of its own.
set -eu
cd "$(dirname "$0")/.."

[ -n "${CI:-}" ] && [ ! -e target ] || exit 0
kept=${XDG_CACHE_HOME:-$HOME/.cache}/podperf/target
mkdir -p "$kept" 2>/dev/null || exit 0
ln -s "$kept" target
rm -rf target/landing target/rings target/debug/podperf* target/lint/doc
for folder in target target/lint; do
	[ ! -d "$folder/debug" ] || CARGO_TARGET_DIR=$folder ${CARGO:-cargo} clean --quiet --locked \
		-p podperf -p podperf-bench -p podperf-ebpf -p podperf-tests
done
