#!/bin/sh
# Run a command of a cross build: cross.sh ARCH [NAME=VALUE...] COMMAND..., in the directory of the sources.
# It runs in a Debian of its own (below target/vm, about 2 GB), where the compiler has the standard library of other
# architectures. The sources and cargo's downloads are seen there under their own names. Needs root for chroot and
# mounts, which nobody else sees and which end with the command.
set -eu

arch=$1
shift
case $arch in
aarch64) debian=arm64 ;;
*)
	echo "vm: no cross build for \`$arch\` (run it on such a machine)" >&2
	exit 1
	;;
esac

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
root=$sources/target/vm/cross-$arch
cargo_home=${CARGO_HOME:-$HOME/.cargo}
sudo=""
[ "$(id -u)" = 0 ] || sudo="sudo"

# The only release whose compiler is new enough and whose packages are always there.
suite=sid
packages="cargo rustc libstd-rust-dev:$debian gcc gcc-aarch64-linux-gnu libc6-dev-$debian-cross clang libclang-dev
	libbpf-dev linux-libc-dev:$debian ca-certificates"

prepare() {
	mirror=$("$here/mirror.sh") || return 1
	$sudo rm -rf "$root.part"
	# shellcheck disable=SC2086 # one word per package
	$sudo debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
		$suite "$root.part" "$mirror" &&
		# Proxies and the like, as this machine's apt has them.
		apt-config dump Acquire | $sudo tee "$root.part/etc/apt/apt.conf.d/00host" >/dev/null &&
		$sudo chroot "$root.part" dpkg --add-architecture $debian &&
		$sudo chroot "$root.part" apt-get -q update &&
		$sudo env DEBIAN_FRONTEND=noninteractive chroot "$root.part" \
			apt-get -q install -y --no-install-recommends $packages &&
		$sudo rm -rf "$root.part/var/cache/apt" &&
		$sudo mv "$root.part" "$root"
}

if [ ! -d "$root" ]; then
	echo "vm: making a Debian for the cross build in $root (two minutes, once)" >&2
	mkdir -p "${root%/*}"
	prepare >"$root.log" 2>&1 || {
		tail -n 10 "$root.log" >&2
		echo "vm: failed to make it (the whole log is $root.log)" >&2
		exit 1
	}
fi

# The one there reaches no network.
cd "$sources"
cargo fetch --quiet --locked --target "$arch-unknown-linux-gnu"
# shellcheck disable=SC2016 # expanded inside
exec $sudo unshare --mount sh -c '
	root=$1 sources=$2 cargo_home=$3 user=$4
	shift 4
	mkdir -p "$root$sources" "$root$cargo_home"
	mount --bind "$sources" "$root$sources"
	mount --bind "$cargo_home" "$root$cargo_home"
	mount -t proc proc "$root/proc"
	# chroot does not change to a directory below the new root.
	exec chroot --userspec="$user" "$root" sh -c "cd \"\$0\" && exec env \"\$@\"" "$sources" "$@"
' sh "$root" "$sources" "$cargo_home" "$(id -u):$(id -g)" \
	HOME=/tmp PATH=/usr/bin:/bin CARGO_HOME="$cargo_home" CARGO_NET_OFFLINE=true \
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc "$@"
