#!/bin/sh
# Installs a program of PyPI once a machine: python-once.sh PACKAGE VERSION PROGRAM. Prints the path of the program.
# It has an environment of its own in ~/.cache/podperf, where a second run finds it and asks no registry.
set -eu

package=$1
version=$2
program=$3
say() { echo "$package: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-$here/../target}/.cache}/podperf
if ! { mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; }; then
	say "not kept in $cache: not writable"
	cache=$here/../target/python
	mkdir -p "$cache"
fi
# An environment belongs to one Python.
python=$(python3 -c 'import sysconfig; print(sysconfig.get_python_version() + "-" + sysconfig.get_platform())') || python=none
venv=$cache/$package-$version-$python

# Two runs at once install it once.
exec 9>"$cache/$package.lock"
flock 9

if [ ! -e "$venv/done" ]; then
	say "installing $package $version in $venv (once)"
	{
		rm -rf "$venv" &&
			python3 -m venv "$venv" &&
			"$venv/bin/pip" install --quiet --disable-pip-version-check "$package==$version" &&
			touch "$venv/done"
	} >"$cache/$package.log" 2>&1 9>&- || {
		tail -n 20 "$cache/$package.log" >&2
		say "installation failed (Python 3 with venv is needed: Debian's python3-venv)"
		exit 1
	}
fi
echo "$venv/bin/$program"
