#!/bin/sh
# Pack the Prometheus of tests/prometheus/build.sh as an image, with the paths of the project's own image:
# prometheus.sh OUT. Prints OUT.
set -eu

out=$1
here=$(cd "$(dirname "$0")" && pwd)
programs=$("$here/../prometheus/build.sh")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

chmod 755 "$root"
mkdir "$root/bin"
cp "$programs/prometheus" "$programs/promtool" "$root/bin/"
"$here/pack.sh" "$root" "$out" '{"Env": ["PATH=/bin"], "Entrypoint": ["/bin/prometheus"]}' prom/prometheus:tests
echo "$out"
