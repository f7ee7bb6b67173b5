#!/bin/sh
# Install kubernetes-validate in an environment of its own: validator.sh [OUT_DIR], default target/chart.
# Prints the path of the program. A second run finds it there.
set -eu

# It holds the schemas of Kubernetes up to the minor version of its own.
version=1.37.0

say() { echo "chart: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/chart}
mkdir -p "$out"
out=$(cd "$out" && pwd)
venv=$out/validate-$version

# Two test runs at once install it once.
exec 9>"$out/validate.lock"
flock 9

if [ ! -e "$venv/done" ]; then
	say "installing kubernetes-validate $version in $venv (once)"
	{
		rm -rf "$venv" &&
			python3 -m venv "$venv" &&
			"$venv/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$version" &&
			touch "$venv/done"
	} >"$out/validate.log" 2>&1 || {
		tail -n 20 "$out/validate.log" >&2
		say "installation failed (Python 3 with venv is needed: Debian's python3-venv)"
		exit 1
	}
fi
echo "$venv/bin/kubernetes-validate"
