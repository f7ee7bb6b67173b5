#!/bin/sh
# Build Prometheus 3 and its promtool: build.sh [OUT_DIR], default target/prometheus. Prints the directory that holds
# them. A second run finds them there; another OUT_DIR takes them from ~/.cache/podperf.
set -eu

# Go 1.26.0 builds it. 3.16 needs Go 1.26.7.
version=3.13.5

who=prometheus
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../built-once.sh"

# `go install` refuses a module with `replace` lines, so a module of ours requires it. -mod=mod completes that module
# with what is compiled. Kubernetes is the only service discovery that the examples use; with all the others the build
# compiles the clients of twenty clouds. The pages of the web server are not built.
# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
	module=github.com/prometheus/prometheus
	minor=${version#*.}
	rm -rf "$out/src" &&
		mkdir "$out/src" &&
		cd "$out/src" &&
		go mod init podperf.dev/tests/prometheus &&
		# Version 3.N.P is the module's v0.3NN.P.
		go mod edit -require "$module@v0.$(printf '3%02d' "${minor%.*}").${version##*.}" &&
		nice go build -mod=mod -trimpath -tags remove_all_sd,enable_kubernetes_sd \
			-ldflags="-s -w -X github.com/prometheus/common/version.Version=$version" \
			-o "$built.part/" "$module/cmd/prometheus" "$module/cmd/promtool"
}

enter "${1:-$here/../../target/prometheus}"
obtain prometheus "$version" "Prometheus $version"
# One name for the tests, whatever the version.
ln -sfn "$key" "$out/bin"
echo "$out/bin"
