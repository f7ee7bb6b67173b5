#!/usr/bin/env bash
# Runs whole rings of tests, one after the other, and keeps the result of each in docs/rings.md. Only `make` calls it:
#   rings.sh run [RING...]    runs the rings that have no passed run of the inputs of HEAD: those that are named, or all.
#                             With ALL=1, also those that have one
#   rings.sh check [RING...]  prints the rings that have none, and fails if there is one; --release stands for all that a
#                             release needs
# The inputs of a ring are files and folders of the repository. A run counts for the ids that git gives them, so a change
# of another folder leaves it valid.
set -euo pipefail
cd "$(dirname "$0")/.."
# A checkout that a machine of CI shares with a container belongs to another user.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=$PWD
# No test must see it.
all=${ALL:-}
unset ALL

page=docs/rings.md
# The rings of `make rings`, in this order. `deny` needs no machine of its own, and `node` boots a cluster.
rings=(units kernel e2e kube faults rules chart guests fuzz)

say() { echo "rings: $*" >&2; }

# The pages of results: runs and benchmarks change them, and the tests that read them are in each landing, too.
results='docs/(benchmarks\.md|rings\.md|kernels\.md|kernels/.*)'
# What is compiled, and how; and how the tests are run.
built="Cargo.lock Cargo.toml .cargo rust-toolchain.toml agent ebpf tests/Cargo.toml tests/src tests/built-once.sh tests/other-layout.sh"
built="$built Makefile setup.sh tests/rings.sh tests/ignored.txt"
pages="$(git ls-files ':(glob)*.md' | xargs) charts config docs"

# inputs RING: what the outcome of the ring depends on, a file or folder per word.
inputs() {
	case $1 in
	units) echo "$built bench tests/fuzz tests/land.sh config charts docs" ;;
	kernel) echo "$built tests/kernel" ;;
	e2e) echo "$built tests/e2e tests/collector tests/prometheus charts config docs/command.md" ;;
	kube) echo "$built tests/kube tests/collector tests/prometheus $pages" ;;
	faults) echo "$built tests/faults" ;;
	# Its rules are about all files.
	rules) echo . ;;
	chart) echo "$built tests/chart tests/python-once.sh tests/kube tests/prometheus tests/collector $pages" ;;
	guests) echo "$built tests/kernel tests/vm" ;;
	fuzz) echo "$built tests/fuzz" ;;
	deny) echo "Cargo.lock deny.toml" ;;
	node) echo "$built bench tests/node tests/image tests/kube tests/vm tests/chart tests/prometheus charts config docs/quickstart.md Dockerfile .ci" ;;
	*)
		say "no ring \`$1\` (${rings[*]} deny node)"
		exit 2
		;;
	esac
}

# id PATH: what git calls its contents at HEAD, without the pages of results; `none` if it is not there.
id() {
	case $1 in
	. | docs) git ls-tree -r HEAD -- "$1" | grep -Ev "	$results\$" | git hash-object --stdin ;;
	*) git rev-parse --verify --quiet "HEAD:$1" || echo none ;;
	esac
}

# ids RING: its inputs with their ids, as the page has them.
ids() {
	local path text=
	for path in $(inputs "$1"); do
		text="$text $path:$(id "$path" | cut -c 1-12)"
	done
	echo "${text# }"
}

# cell RING NUMBER: a column of the ring's line.
cell() { sed -n "s/^| $1 | //p" "$page" | awk -F ' \\| ' -v number="$2" '{ sub(/ \|$/, ""); print $number }'; }

# is_valid RING: whether its last run passed, with the inputs of HEAD.
is_valid() {
	local now
	now=$(ids "$1")
	[ "$(cell "$1" 2)" = 0 ] && [ "$(cell "$1" 7)" = "$now" ] && [[ $now != *:none* ]]
}

# due RING: prints why the ring must run, and fails; nothing if it need not. `kernels` stands for the columns of that page.
due() {
	local record name changed old=0 ebpf
	if [ "$1" = kernels ]; then
		ebpf=$(id ebpf | cut -c 1-12)
		for name in $(sed -n 's/^|  | \(5\.10 .*\) |$/\1/p' docs/kernels.md | tr -d '|'); do
			record=docs/kernels/$name.txt
			if ! grep -qx "programs: $ebpf" "$record" 2>/dev/null || ! grep -q ' passed$' "$record" || grep -q ' FAILED' "$record"; then
				echo "kernels: \`$name\` has not passed with the programs of HEAD (make vm ROWS=$name)"
				old=1
			fi
		done
		[ -n "${name:-}" ] || { echo "kernels: no columns in docs/kernels.md"; old=1; }
		return $old
	fi
	is_valid "$1" && return
	changed=$(comm -13 <(cell "$1" 7 | tr ' ' '\n' | sort) <(ids "$1" | tr ' ' '\n' | sort) | cut -d : -f 1 | xargs)
	echo "$1: no passed run with ${changed:-these inputs} as of HEAD (make rings-$1)"
	return 1
}

# run RING: the door behind it.
run() {
	case $1 in
	units)
		read -ra units < <(sed -n 's/^units="\(.*\)"$/\1/p' tests/land.sh)
		"$CARGO" test --locked --workspace --no-fail-fast "${units[@]}"
		;;
	guests) make vm-x86 ;;
	fuzz) make fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-15}" ;;
	deny) make deny ;;
	node) make e2e ARGS= ;;
	*) "$CARGO" test --locked --workspace --no-fail-fast --test "$1" ;;
	esac
}

# counts LOG: passed, failed and ignored tests in it. Guests and fuzzers have lines of their own.
counts() {
	awk '
		/^test result: /       { passed += $4; failed += $6; ignored += $8 }
		/^vm: .* passed, .* unsupported, / { sub(/^.*\): /, ""); passed += $1; ignored += $3; failed += $5 }
		/^stat::number_of_executed_units: [1-9]/ { passed++ }
		/^bans ok/ { passed++ }
		END { print passed + 0, failed + 0, ignored + 0 }
	' "$1"
}

# state RING: the commit and its ids of the ring's inputs; fails if one of them has changes that are not committed.
state() {
	local changes
	# shellcheck disable=SC2046 # one path per word
	changes=$(git status --porcelain -- $(inputs "$1") ':!docs/rings.md' ':!docs/benchmarks.md' ':!docs/kernels.md' ':!docs/kernels') || return
	[ -z "$changes" ] && echo "$(git rev-parse --short=12 HEAD) | $(ids "$1")"
}

# record RING PASSED FAILED IGNORED SECONDS STATE: writes the ring's line, in the place of the one before.
record() {
	local line
	line="| $1 | $2 | $3 | $4 | $5 | $(date -u +%F) | $6 |"
	{
		grep -v "^| $1 | " "$page"
		echo "$line"
	} >"$page.part"
	mv "$page.part" "$page"
}

case ${1:-} in
check)
	shift
	[ "${1:-}" != --release ] || set -- "${rings[@]}" deny node kernels
	[ $# -gt 0 ] || set -- "${rings[@]}"
	missing=0
	for ring; do
		due "$ring" || missing=1
	done
	exit $missing
	;;
run)
	shift
	[ $# -gt 0 ] || set -- "${rings[@]}"
	status=0
	# All tests, each once, at the usual length.
	unset PODPERF_LANDING PODPERF_ONLY PODPERF_SHARE PODPERF_KILLS PODPERF_SEED
	# Some tests compare what the agent costs, so it is optimized a little. A landing has no time to compile that. The
	# loads stay as they are: what a program costs is part of many tests.
	mkdir -p target/rings
	printf '#!/bin/sh\nexec "%s" --config profile.dev.package.podperf.opt-level=1 "$@"\n' "${CARGO:-cargo}" >target/rings/cargo
	chmod +x target/rings/cargo
	export CARGO=$PWD/target/rings/cargo
	for ring; do
		before=$(state "$ring") || before=
		if [ -z "$all" ] && [ -n "$before" ] && is_valid "$ring"; then
			say "$ring: passed with these inputs on $(cell "$ring" 5)"
			continue
		fi
		# What runs must be built of what is recorded.
		make --no-print-directory rings-build || {
			say "$ring: it cannot be built"
			status=1
			continue
		}
		log=target/rings/$ring.log
		start=$SECONDS
		code=0
		run "$ring" 2>&1 | tee "$log" || code=$?
		took=$((SECONDS - start))
		read -r passed failed ignored < <(counts "$log")
		# A ring that ends without a count has failed, whatever it says.
		[ "$code" = 0 ] && [ "$passed" -gt 0 ] || failed=$((failed > 0 ? failed : 1))
		case $ring in units | kernel | e2e | kube | faults | rules | chart) target/debug/podperf-ignored "$log" || failed=$((failed + 1)) ;; esac
		say "$ring: $passed passed, $failed failed, $ignored ignored in $took s"
		[ "$failed" = 0 ] || status=1
		if [ -z "$before" ] || [ "$(state "$ring")" != "$before" ]; then
			say "$ring: not recorded, since its inputs have changed, or changes are not committed (commit them, then run it again)"
			status=1
			continue
		fi
		record "$ring" "$passed" "$failed" "$ignored" "$took" "$before"
	done
	exit $status
	;;
*)
	say "usage: rings.sh run|check [RING...]"
	exit 2
	;;
esac
