#!/usr/bin/env bash
# The tests that must pass before a change lands, behind `make test`, which has built them: unit tests; then all that runs
# beside other tests; then, on a machine that runs nothing else, the tests that are alone. A guest begins first. It is one
# thread, so it has a higher priority, if the user may set one: else it would be the last to end.
# shellcheck disable=SC2030,SC2031 # each ring has a shell of its own
set -uo pipefail
cd "$(dirname "$0")/.." || exit

units="--lib --test bucket --test calls --test hash --test programs --test sample_time"
rings="e2e kube chart rules faults kernel"
logs=target/landing
status=0

# run ARGUMENT...: replaces its shell. A test that hangs must not hold the machine's lock for ever. The programs
# that measure are for whole rings.
run() { exec timeout --kill-after=30 40m "${CARGO:-cargo}" test --locked --workspace --exclude podperf-bench --no-fail-fast "$@"; }
# part NAME START: tells how long it took.
part() { echo "land: $1 took $((SECONDS - $2)) s"; }

rm -rf "$logs"
mkdir -p "$logs"
# Each job is a process group, so that all of it ends with this script.
set -m
declare -A jobs
trap 'for job in $(jobs -pr); do kill -- "-$job" 2>/dev/null; done' EXIT
nice -n -5 make --no-print-directory vm-land >"$logs/guest.log" 2>&1 &
jobs[guest]=$!
# A ring whose programs are still being built waits for them.
nice make --no-print-directory test-tools >"$logs/tools.log" 2>&1 &
jobs[tools]=$!

start=$SECONDS
# shellcheck disable=SC2086 # one word per argument
(run $units) || status=1
part units "$start"

start=$SECONDS
for ring in $rings; do
	(export PODPERF_LANDING=beside && run --test "$ring" >"$logs/$ring.log" 2>&1) &
	jobs[$ring]=$!
done
for job in "${!jobs[@]}"; do
	wait "${jobs[$job]}" || {
		echo "land: \`$job\` failed"
		status=1
	}
done
cat "$logs"/*.log
part "what runs beside others" "$start"

for ring in $rings; do
	start=$SECONDS
	(export PODPERF_LANDING=alone && run --test "$ring") || status=1
	part "\`$ring\` alone" "$start"
done
exit $status
