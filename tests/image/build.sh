#!/bin/sh
# Build the agent's image with the Dockerfile, on a machine without a container registry, and save it for runtimes to
# import. Prints the archive's path. An archive of the same sources is found again, here or in ~/.cache/podperf.
# Needs root; the images and layers lie below target/image.
set -eu

# What is mounted meanwhile is seen by nobody else, and gone when it ends.
[ "${1:-}" = apart ] || exec unshare --mount "$0" apart

say() { echo "image: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
out=$sources/target/image
mkdir -p "$out"

# shellcheck source=tests/image/store.sh
. "$here/store.sh"
# No registry: a runtime takes what was imported to it.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$sources/Cargo.toml" | head -n 1)
name=localhost/podperf:$version

cd "$sources"
# The key covers all that the program is made of. It holds no commit, so the program says `unknown`: an image of an earlier
# commit with the same sources is found again, and a tree with changes is no commit. Releases name theirs.
key=$(find Dockerfile .dockerignore .cargo Cargo.toml Cargo.lock LICENSE agent ebpf bench/Cargo.toml tests/Cargo.toml -type f |
	sort | xargs sha256sum | sha256sum | cut -c 1-16)-$(uname -m)
archive=$out/podperf-$key.tar
cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/image

# Two runs at once build it once.
exec 9>"$out/lock"
flock 9

open_store

build() {
	make_base || return 1
	# The same sources are the same bytes, whenever they are built.
	buildah bud --layers --pull-never --tag "$name" --timestamp 0 --build-arg "VERSION=$version" . &&
		# Older archives go, too.
		rm -f "$out"/podperf-*.tar* &&
		buildah push --quiet "$name" "docker-archive:$archive.part:$name" &&
		mv "$archive.part" "$archive"
}

# A cache that cannot be written costs a build, nothing else. It holds the last image only.
keep() {
	mkdir -p "$cached" 2>/dev/null && cp "$archive" "$cached/new.$$" 2>/dev/null || return 1
	rm -f "$cached"/podperf-*.tar
	mv "$cached/new.$$" "$cached/${archive##*/}"
}

if [ -e "$archive" ]; then
	:
elif [ -e "$cached/${archive##*/}" ]; then
	cp "$cached/${archive##*/}" "$archive.part"
	mv "$archive.part" "$archive"
else
	say "building it from the Dockerfile (ten minutes at first, then two)"
	build >"$out/build.log" 2>&1 9>&- || {
		tail -n 20 "$out/build.log" >&2
		say "failed (the whole log is $out/build.log)"
		exit 1
	}
	keep || say "not kept in $cached: not writable"
fi
echo "$archive"
