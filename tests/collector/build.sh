#!/bin/sh
# Build the OpenTelemetry Collector of builder-config.yaml: build.sh [OUT_DIR], default target/otelcol.
# Prints the path of the binary. A second run finds it in OUT_DIR; another OUT_DIR takes it from ~/.cache/podperf.
set -eu

say() { echo "collector: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
config=$here/builder-config.yaml
out=${1:-$here/../../target/otelcol}
mkdir -p "$out"
out=$(cd "$out" && pwd)

key=$(sha256sum "$config" | cut -c 1-16)-$(uname -m)
binary=$out/otelcol-$key
cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/otelcol-$key

# Two test runs at once build it once.
exec 9>"$out/lock"
flock 9

# The builder writes the sources only. Its own `go mod tidy` also wants the modules that nothing but the tests of
# dependencies need, and not every module proxy holds those; `go get` and `go build` ask for what is compiled.
# One `&&` chain, since `set -e` does not hold inside a condition.
build() {
	# The tool chain that is here, never a download of another.
	export GOTOOLCHAIN=local CGO_ENABLED=0
	collector=go.opentelemetry.io/collector
	parts=$(sed -n 's/^  - gomod: *\([^ ]*\) \([^ ]*\)$/\1@\2/p' "$config")
	rm -rf "$out/src" &&
		GOBIN=$out/bin nice go install "$collector/cmd/builder@v$version" &&
		cd "$out" &&
		nice bin/builder --skip-get-modules --skip-compilation --config "$config" &&
		cd src &&
		go mod init podperf.dev/tests/otelcol &&
		echo "$parts" | nice xargs go get "$collector/otelcol@v$version" &&
		nice go build -mod=mod -trimpath -ldflags='-s -w' -o otelcol .
}

# A cache that cannot be written costs a build, nothing else.
keep() {
	mkdir -p "${cached%/*}" 2>/dev/null && cp "$binary" "$cached.$$" 2>/dev/null && mv "$cached.$$" "$cached"
}

if [ -x "$binary" ]; then
	:
elif [ -x "$cached" ]; then
	cp "$cached" "$binary.part"
	mv "$binary.part" "$binary"
else
	if ! command -v go >/dev/null; then
		say "no \`go\` in PATH: building the Collector needs Go 1.26 or newer (https://go.dev/dl)"
		exit 2
	fi
	version=$(sed -n 's/^  version: *//p' "$config")
	say "building version $version in $out (a few minutes, once)"
	build >"$out/build.log" 2>&1 9>&- || {
		tail -n 30 "$out/build.log" >&2
		say "build failed with $(go version) (the whole log is $out/build.log)"
		exit 1
	}
	mv "$out/src/otelcol" "$binary"
	keep || say "not kept in ${cached%/*}: not writable"
fi

# One name for the tests, whatever the key.
ln -sfn "${binary##*/}" "$out/otelcol"
echo "$out/otelcol"
