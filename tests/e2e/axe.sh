#!/bin/sh
# Fetches axe-core from npm once a machine, and prints the path of its script. It is licensed under MPL-2.0, and only tests
# run it. It is kept in ~/.cache/podperf, where a second run finds it and asks no registry.
set -eu

version=4.14.1
# npm's `dist.integrity` of this version, in hexadecimal digits.
sha512=1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5

say() { echo "axe-core: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-$here/../../target}/.cache}/podperf
if ! { mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ]; }; then
	say "not kept in $cache: not writable"
	cache=$here/../../target/axe-core
	mkdir -p "$cache"
fi
script=$cache/axe-core-$version.js

# Two runs at once fetch it once.
exec 9>"$cache/axe-core.lock"
flock 9

if [ ! -e "$script" ]; then
	say "fetching axe-core $version into $cache (once)"
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	{
		cd "$work" &&
			npm pack --silent "axe-core@$version" &&
			echo "$sha512  axe-core-$version.tgz" | sha512sum --check &&
			tar -xzf "axe-core-$version.tgz" package/axe.min.js &&
			mv package/axe.min.js "$script.part" &&
			mv "$script.part" "$script"
	} >"$cache/axe-core.log" 2>&1 9>&- || {
		tail -n 20 "$cache/axe-core.log" >&2
		say "fetching failed (npm and a network are needed)"
		exit 1
	}
fi
echo "$script"
