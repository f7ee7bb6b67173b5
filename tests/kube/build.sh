#!/bin/sh
# Build the `kube-apiserver` and `kubectl` that the kube ring runs: build.sh [OUT_DIR], default target/kube.
# Prints the directory that holds both. A second run finds them there; another OUT_DIR takes them from ~/.cache/podperf.
set -eu

# A patch release of the newest minor that the oldest supported Go builds.
version=1.36.3

say() { echo "kube: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/kube}
mkdir -p "$out"
out=$(cd "$out" && pwd)

key=kube-$version-$(uname -m)
built=$out/$key
cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/$key

# Two test runs at once build it once.
exec 9>"$out/lock"
flock 9

# `go install` refuses a module with `replace` lines, and Kubernetes replaces its parts with directories that its
# module does not hold. They are modules of their own too, v0.N.P beside v1.N.P: so a module of ours says that instead.
# -mod=mod completes it with what is compiled.
# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
	# The tool chain that is here, never a download of another.
	export GOTOOLCHAIN=local CGO_ENABLED=0
	minor=${version#*.}
	stamp=k8s.io/component-base/version
	stamp="-X $stamp.gitVersion=v$version -X $stamp.gitMajor=${version%%.*} -X $stamp.gitMinor=${minor%.*}"
	rm -rf "$out/src" &&
		mkdir "$out/src" &&
		cd "$out/src" &&
		go mod init podperf.dev/tests/kube &&
		requires=$(go list -m -f '{{.GoMod}}' "k8s.io/kubernetes@v$version") &&
		sed -n "s|^	\(k8s.io/[^ ]*\) => ./staging/.*|replace \1 => \1 v0.${version#*.}|p" "$requires" >>go.mod &&
		go mod edit -require "k8s.io/kubernetes@v$version" &&
		nice go build -mod=mod -trimpath -ldflags="-s -w $stamp" -o "$built.part/" \
			k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl
}

# A cache that cannot be written costs a build, nothing else.
keep() {
	mkdir -p "${cached%/*}" 2>/dev/null && cp -r "$built" "$cached.$$" 2>/dev/null && mv -T "$cached.$$" "$cached"
}

if [ -d "$built" ]; then
	:
elif [ -d "$cached" ]; then
	rm -rf "$built.part"
	cp -r "$cached" "$built.part"
	mv "$built.part" "$built"
else
	if ! command -v go >/dev/null; then
		say "no \`go\` in PATH: building Kubernetes needs Go 1.26 or newer (https://go.dev/dl)"
		exit 2
	fi
	say "building version $version in $out (a few minutes, once)"
	build >"$out/build.log" 2>&1 9>&- || {
		tail -n 30 "$out/build.log" >&2
		say "build failed with $(go version) (the whole log is $out/build.log)"
		exit 1
	}
	mv "$built.part" "$built"
	keep || say "not kept in ${cached%/*}: not writable"
fi

# One name for the tests, whatever the version.
ln -sfn "$key" "$out/bin"
echo "$out/bin"
