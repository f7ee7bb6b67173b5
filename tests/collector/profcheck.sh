#!/bin/sh
# Build profcheck, the profiling group's own checker of OTLP profiles: profcheck.sh [OUT_DIR], default target/profcheck.
# Prints the path of the binary. profcheck/go.mod has its version, one that the module proxy holds; go.sum has what its
# modules hash to, since the checksum database does not know that version.
set -eu

who=profcheck
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/built-once.sh
. "$here/../built-once.sh"

build() {
	cd "$here/profcheck" &&
		nice go build -trimpath -ldflags='-s -w' -o "$built.part" \
			github.com/open-telemetry/sig-profiling/profcheck/cmd/profcheck
}

enter "${1:-$here/../../target/profcheck}"
obtain profcheck "$(cat "$here/profcheck/go.mod" "$here/profcheck/go.sum" | sha256sum | cut -c 1-16)" profcheck
echo "$built"
