# Sourced by the scripts that build Go programs for tests: what they build is built once, and kept.
# shellcheck shell=sh

say() { echo "$who: $*" >&2; }

# enter DIRECTORY: it is $out from now on, of this run alone: two at once build once.
enter() {
	mkdir -p "$1"
	out=$(cd "$1" && pwd)
	exec 9>"$out/lock"
	flock 9
}

# obtain NAME VERSION WHAT: has $built, a file or a directory, in $out. If it is not there it comes from ~/.cache/podperf, else
# the function `build` makes it as $built.part.
obtain() {
	key=$1-$2-$(uname -m)
	built=$out/$key
	cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/$key
	[ -e "$built" ] && return
	rm -rf "$built.part"
	if [ -e "$cached" ]; then
		cp -r "$cached" "$built.part"
		mv "$built.part" "$built"
		return
	fi
	if ! command -v go >/dev/null; then
		say "no \`go\` in PATH: building $3 needs Go 1.26 or newer (https://go.dev/dl)"
		exit 2
	fi
	say "building $3 in $out (a few minutes, once)"
	# The tool chain that is here, never a download of another.
	export GOTOOLCHAIN=local CGO_ENABLED=0
	(build) >"$out/build.log" 2>&1 9>&- || {
		tail -n 30 "$out/build.log" >&2
		say "build failed with $(go version) (the whole log is $out/build.log)"
		exit 1
	}
	mv "$built.part" "$built"
	# A cache that cannot be written costs a build, nothing else.
	mkdir -p "${cached%/*}" 2>/dev/null && cp -r "$built" "$cached.$$" 2>/dev/null && mv -T "$cached.$$" "$cached" ||
		say "not kept in ${cached%/*}: not writable"
}
