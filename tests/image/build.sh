#!/bin/sh
# Build the agent's image with the Dockerfile, on a machine without a container registry, and save it for runtimes to
# import. Prints the archive's path. What was built from the same sources is found again, here or in ~/.cache/podperf.
# Needs root; the images and layers lie below target/image.
set -eu

# What is mounted meanwhile is seen by nobody else, and gone when it ends.
[ "${1:-}" = apart ] || exec unshare --mount "$0" apart

say() { echo "image: $*" >&2; }

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
out=$sources/target/image
mkdir -p "$out"

# As in the Dockerfile.
base=docker.io/library/rust:1.95-trixie
# No registry: a runtime takes what was imported to it.
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$sources/Cargo.toml" | head -n 1)
name=localhost/podperf:$version

cd "$sources"
# Of the context, all that the program is made of.
key=$(find Dockerfile .dockerignore .cargo Cargo.toml Cargo.lock LICENSE agent ebpf tests/Cargo.toml -type f |
	sort | xargs sha256sum | sha256sum | cut -c 1-16)-$(uname -m)
archive=$out/podperf-$key.tar
cached=${XDG_CACHE_HOME:-${HOME:-$out}/.cache}/podperf/image

# Two runs at once build it once.
exec 9>"$out/lock"
flock 9

# The images of this machine, if it has any, stay apart.
cat >"$out/storage.conf" <<EOF
[storage]
driver = "overlay"
graphroot = "$out/storage"
runroot = "$out/run"
EOF
export CONTAINERS_STORAGE_CONF="$out/storage.conf"
# What is built in the Dockerfile's cache mounts is kept there.
mkdir -p "$out/tmp"
export TMPDIR="$out/tmp"
# No runtime, no network of its own: a machine that is itself a container has neither.
export BUILDAH_ISOLATION=chroot

build() {
	# Of one that was interrupted.
	buildah rm --all >/dev/null || return 1
	if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
		"$here/base.sh" "$base" "$out/base" || return 1
	fi
	revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
	version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
	# As old as its sources, so that the same sources are the same bytes.
	epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
	buildah bud --layers --pull-never --tag "$name" --timestamp "$epoch" \
		--build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
		--build-arg "CREATED=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)" . &&
		# Those before it, too.
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
