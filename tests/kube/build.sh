#!/bin/sh
# Build the parts of Kubernetes that the tests run: build.sh [--node] [OUT_DIR], default target/kube. Without --node
# they are `kube-apiserver` and `kubectl`; with it what a cluster with nodes has beside them, which takes longer.
# Prints the directory that holds them. A second run finds them there; another OUT_DIR takes them from ~/.cache/podperf.
set -eu

# A patch release of the newest minor that the oldest supported Go builds.
version=1.36.3

who=kube
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../built-once.sh"

parts="kube-apiserver kubectl"
name=kube
link=bin
if [ "${1:-}" = --node ]; then
	parts="kube-controller-manager kube-scheduler kubelet"
	name=kube-node
	link=node-bin
	shift
fi

# `go install` refuses a module with `replace` lines, and Kubernetes replaces its parts with directories that its
# module does not hold. They are modules of their own too, v0.N.P beside v1.N.P: so a module of ours says that instead.
# -mod=mod completes it with what is compiled.
# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
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
		# shellcheck disable=SC2046 # one package per word
		nice go build -mod=mod -trimpath -ldflags="-s -w $stamp" -o "$built.part/" \
			$(printf 'k8s.io/kubernetes/cmd/%s ' $parts)
}

enter "${1:-$here/../../target/kube}"
obtain "$name" "$version" "$parts of Kubernetes $version"
# One name for the tests, whatever the version.
ln -sfn "$key" "$out/$link"
echo "$out/$link"
