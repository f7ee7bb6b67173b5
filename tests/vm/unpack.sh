#!/bin/sh
# Unpack Debian packages of any release and architecture without installing them: unpack.sh SUITE ARCH PACKAGES PATTERN.
# Takes PACKAGES (one, or several with commas between them) and those of their dependencies whose whole name matches
# PATTERN (an extended regular expression), and prints the directory that holds them. A second run finds them there; another checkout takes them from
# ~/.cache/podperf/vm. Both are safe to delete, which is also how newer packages are had.
# They come from the mirror that this machine's own apt uses for Debian, or from DEBIAN_MIRROR.
set -eu

suite=$1 arch=$2 package=$3 pattern=$4

say() { echo "vm: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../target/vm
mkdir -p "$out/packages"
out=$(cd "$out" && pwd)

key=$suite-$arch-$package
tree=$out/$key
debs=$out/packages/$key
cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/vm/$key

# Two runs at once fetch it once.
exec 9>"$out/packages/$key.lock"
flock 9

# The suites of the guests stay apart from those of this machine: apt gets lists and a state of their own.
apt() {
	command=$1
	shift
	"$command" -q \
		-o Dir::Etc::sourcelist="$lists/sources.list" -o Dir::Etc::sourceparts=- \
		-o Dir::State="$lists" -o Dir::State::status="$lists/status" -o Dir::Cache="$lists/cache" \
		-o APT::Architecture="$arch" -o APT::Architectures="$arch" \
		-o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@"
}

fetch() {
	mirror=$("$here/mirror.sh") || return 1
	lists=$out/packages/apt-$suite-$arch
	rm -rf "$debs.part"
	mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$debs.part"
	: >"$lists/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$lists/sources.list"
	# shellcheck disable=SC2046 # one word per package
	apt apt-get update &&
		apt apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
			--no-enhances $(echo "$package" | tr , ' ') | grep -Ex "[a-z0-9][a-z0-9.+-]*" | sort -u | grep -Ex "$pattern" >"$debs.names" &&
		cd "$debs.part" &&
		apt apt-get download $(cat "$debs.names") &&
		mv "$debs.part" "$debs"
}

# A cache that cannot be written costs a download, nothing else.
keep() {
	mkdir -p "${cached%/*}" 2>/dev/null && cp -r "$debs" "$cached.$$" 2>/dev/null && mv -T "$cached.$$" "$cached"
}

if [ ! -d "$tree" ]; then
	if [ -d "$cached" ]; then
		rm -rf "$debs"
		cp -r "$cached" "$debs"
	elif [ ! -d "$debs" ]; then
		say "fetching $package of $suite for $arch"
		fetch >"$debs.log" 2>&1 9>&- || {
			tail -n 5 "$debs.log" >&2
			say "failed to fetch $package of $suite for $arch (the whole log is $debs.log)"
			exit 1
		}
		keep 9>&- || say "not kept in ${cached%/*}: not writable"
	fi
	rm -rf "$tree.part"
	mkdir "$tree.part"
	for deb in "$debs"/*.deb; do
		dpkg-deb -x "$deb" "$tree.part"
	done
	mv "$tree.part" "$tree"
fi
echo "$tree"
