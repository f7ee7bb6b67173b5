# Sourced by the scripts that build images without a container registry. They have $here (this directory) and $out.
# shellcheck shell=sh disable=SC2154

# As in the Dockerfile.
base=docker.io/library/rust:1.95-trixie

# The images of this machine, if it has any, stay apart.
open_store() {
	mkdir -p "$out/tmp"
	cat >"$out/storage.conf" <<-END
		[storage]
		driver = "overlay"
		graphroot = "$out/storage"
		runroot = "$out/run"
	END
	export CONTAINERS_STORAGE_CONF="$out/storage.conf"
	# The Dockerfile's cache mounts lie there.
	export TMPDIR="$out/tmp"
	# No runtime, no network of its own: a machine that is itself a container has neither.
	export BUILDAH_ISOLATION=chroot
}

# Containers of an interrupted build go, and the base image is made once.
make_base() {
	buildah rm --all >/dev/null || return 1
	buildah inspect --type image "$base" >/dev/null 2>&1 || "$here/base.sh" "$base" "$out/base"
}
