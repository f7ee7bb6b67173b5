#!/usr/bin/env bash
# Runs whole rings of tests, one after the other, and keeps the result of each in docs/rings.md. Only `make` calls it:
#   rings.sh run [RING...]    runs the rings that have no passed run of the inputs of HEAD: those that are named, or all
#   rings.sh check [RING...]  prints the rings that have none, and fails if there is one; --release stands for all that a
#                             release needs
# The inputs of a ring are files and folders of the repository. A run counts for the ids that git gives them, so a change
# of another folder leaves it valid.
set -euo pipefail
cd "$(dirname "$0")/.."

page=docs/rings.md
# What `make rings` runs, in this order. `deny` asks an advisory database, and `node` boots a cluster: each has its own door.
rings=(kernel e2e kube faults rules chart guests fuzz)

say() { echo "rings: $*" >&2; }

# inputs RING: what the outcome of the ring depends on.
inputs() {
	case $1 in
	kernel | faults) echo ebpf agent "tests/$1" tests/src Cargo.lock ;;
	e2e) echo ebpf agent tests/e2e tests/src tests/collector config Cargo.lock ;;
	kube) echo ebpf agent tests/kube tests/src charts config Cargo.lock ;;
	rules) echo agent tests/rules tests/src charts config docs Cargo.lock ;;
	chart) echo agent tests/chart tests/src charts config docs Cargo.lock ;;
	guests) echo ebpf agent/src tests/kernel tests/src tests/vm Cargo.lock ;;
	fuzz) echo agent/src tests/fuzz Cargo.lock ;;
	deny) echo Cargo.lock deny.toml ;;
	node) echo ebpf agent tests/node tests/src charts Dockerfile Cargo.lock ;;
	*)
		say "no ring \`$1\` (${rings[*]} deny node)"
		exit 2
		;;
	esac
}

# id PATH: what git calls its contents at HEAD. The pages of results are no part of docs.
id() {
	if [ "$1" = docs ]; then
		git ls-tree HEAD:docs | grep -Ev '	(rings\.md|kernels\.md|kernels)$' | git mktree
	else
		git rev-parse "HEAD:$1"
	fi
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
is_valid() { [ "$(cell "$1" 2)" = 0 ] && [ "$(cell "$1" 7)" = "$(ids "$1")" ]; }

# due RING: prints why the ring must run, and fails; nothing if it need not. `kernels` stands for the columns of that page.
due() {
	local column name changed old=0 ebpf
	if [ "$1" = kernels ]; then
		ebpf=$(id ebpf | cut -c 1-12)
		for column in docs/kernels/*.txt; do
			name=$(basename "$column" .txt)
			if ! grep -q "^programs: $ebpf\$" "$column" || grep -q ' FAILED' "$column"; then
				echo "kernels: \`$name\` has not passed with the programs of HEAD (make vm ROWS=$name)"
				old=1
			fi
		done
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
	guests) make vm-x86 ;;
	fuzz) make fuzz FUZZ_SECONDS="${FUZZ_SECONDS:-15}" ;;
	deny) make deny ;;
	node) make e2e ;;
	*) ${CARGO:-cargo} test --locked --workspace --no-fail-fast --test "$1" ;;
	esac
}

# counts LOG: passed, failed and ignored tests in it. Guests and fuzzers have lines of their own.
counts() {
	awk '
		/^test result: /       { passed += $4; failed += $6; ignored += $8 }
		/^vm: .* passed, .* unsupported, / { sub(/^.*\): /, ""); passed += $1; ignored += $3; failed += $5 }
		/^Done [0-9]+ runs in / { passed++ }
		/^(advisories|bans|licenses|sources).* ok/ { passed++ }
		END { print passed + 0, failed + 0, ignored + 0 }
	' "$1"
}

# record RING PASSED FAILED IGNORED SECONDS: writes the ring's line, in the place of the one before.
record() {
	local line
	line="| $1 | $2 | $3 | $4 | $5 | $(date -u +%F) | $(git rev-parse --short=12 HEAD) | $(ids "$1") |"
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
	unset PODPERF_LANDING
	mkdir -p target/rings
	for ring; do
		if is_valid "$ring"; then
			say "$ring: passed with these inputs on $(cell "$ring" 5)"
			continue
		fi
		log=target/rings/$ring.log
		start=$SECONDS
		code=0
		run "$ring" 2>&1 | tee "$log" || code=$?
		took=$((SECONDS - start))
		read -r passed failed ignored < <(counts "$log")
		# A ring that ends without a count has failed, whatever it says.
		[ "$code" = 0 ] && [ "$passed" -gt 0 ] || failed=$((failed > 0 ? failed : 1))
		case $ring in kernel | e2e | kube | faults | rules | chart) target/debug/podperf-ignored "$log" || failed=$((failed + 1)) ;; esac
		say "$ring: $passed passed, $failed failed, $ignored ignored in $took s"
		[ "$failed" = 0 ] || status=1
		# shellcheck disable=SC2046 # one path per word
		if [ -n "$(git status --porcelain -- $(inputs "$ring"))" ]; then
			say "$ring: not recorded, since its inputs have changes (commit them, then run it again)"
			status=1
			continue
		fi
		record "$ring" "$passed" "$failed" "$ignored" "$took"
	done
	exit $status
	;;
*)
	say "usage: rings.sh run|check [RING...]"
	exit 2
	;;
esac
