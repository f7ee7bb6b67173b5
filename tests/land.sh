#!/usr/bin/env bash
# The tests that must pass before a change lands, behind `make test`, which has built them: unit tests; then all that runs
# beside other tests, with the tools of other rings and one guest on the CPU time that they leave; then, on a machine that
# runs nothing else, the tests that are alone.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

units="--lib --test bucket --test calls --test contexts --test hash --test sample_time"
rings="e2e kube faults kernel"
aside="chart rules"
logs=target/landing
status=0

run() { ${CARGO:-cargo} test --locked --workspace --no-fail-fast "$@"; }
# part NAME START: tells how long it took.
part() { echo "land: $1 took $((SECONDS - $2)) s"; }

rm -rf "$logs"
mkdir -p "$logs"

start=$SECONDS
# shellcheck disable=SC2086 # one word per argument
run $units || status=1
part units "$start"

start=$SECONDS
declare -A jobs
trap 'kill "${jobs[@]}" 2>/dev/null || :' EXIT
# A ring whose programs are still being built waits for them.
nice make --no-print-directory test-tools >"$logs/tools.log" 2>&1 &
jobs[tools]=$!
chrt --idle 0 make --no-print-directory vm-land >"$logs/guest.log" 2>&1 &
jobs[guest]=$!
for ring in $rings; do
	PODPERF_LANDING=beside run --test "$ring" >"$logs/$ring.log" 2>&1 &
	jobs[$ring]=$!
done
# One after the other: these keep a CPU busy each, and more tests at a time only wait for each other.
for ring in $aside; do
	PODPERF_LANDING=beside run --test "$ring" >"$logs/$ring.log" 2>&1 || {
		echo "land: \`$ring\` failed"
		status=1
	}
done
for job in "${!jobs[@]}"; do
	wait "${jobs[$job]}" || {
		echo "land: \`$job\` failed"
		status=1
	}
done
jobs=()
cat "$logs"/*.log
part "what runs beside others" "$start"

for ring in $rings $aside; do
	start=$SECONDS
	PODPERF_LANDING=alone run --test "$ring" || status=1
	part "\`$ring\` alone" "$start"
done
exit $status
