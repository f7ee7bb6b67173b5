#!/bin/sh
# Build the OpenTelemetry Collector of builder-config.yaml: build.sh [OUT_DIR], default target/otelcol.
# Prints the path of the binary. A second run finds it in OUT_DIR; another OUT_DIR takes it from ~/.cache/podperf.
set -eu

who=collector
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../built-once.sh"

config=$here/builder-config.yaml
version=$(sed -n 's/^  version: *//p' "$config")

# The builder writes the sources only. Its own `go mod tidy` also wants the modules that nothing but the tests of
# dependencies need, and not every module proxy holds those; `go get` and `go build` ask for what is compiled.
# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
	collector=go.opentelemetry.io/collector
	parts=$(sed -n 's/^  - gomod: *\([^ ]*\) \([^ ]*\)$/\1@\2/p' "$config")
	rm -rf "$out/src" &&
		GOBIN=$out/bin nice go install "$collector/cmd/builder@v$version" &&
		cd "$out" &&
		nice bin/builder --skip-get-modules --skip-compilation --config "$config" &&
		cd src &&
		go mod init podperf.dev/tests/otelcol &&
		echo "$parts" | nice xargs go get "$collector/otelcol@v$version" &&
		nice go build -mod=mod -trimpath -ldflags='-s -w' -o "$built.part" .
}

enter "${1:-$here/../../target/otelcol}"
obtain otelcol "$(sha256sum "$config" | cut -c 1-16)" "version $version of the Collector"
# One name for the tests, whatever the key.
ln -sfn "$key" "$out/otelcol"
echo "$out/otelcol"
