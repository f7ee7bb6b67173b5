#!/bin/sh
# Installs what building (`build`, `image`, `release`), checking (`lint`, `fuzz`), testing (`test`, `rings`, `chart`, `vm`, `e2e`),
# landing (`ci`) or measuring (`bench`) needs, where it is missing.
# As root or with sudo it uses apt-get; elsewhere it names the packages and fails.
set -eu

missing=""
guest() { # What guests and their programs come from.
	need dpkg has_program dpkg-deb
	need debian-archive-keyring test -e /usr/share/keyrings/debian-archive-keyring.gpg
	need util-linux has_program unshare
}
image() { # What builds the image where there is no container registry.
	need buildah has_program buildah
	need debootstrap has_program debootstrap
}
release() { # Programs that pack and push a release.
	need skopeo has_program skopeo
	need jq has_program jq
}
lint() {
	need clang-format has_program clang-format
	need shellcheck has_program shellcheck
	need python3-venv python3 -c 'import ensurepip'
}
test_() {
	need prometheus has_program promtool
	need jq has_program jq
	need bpftool has_program bpftool
	need util-linux has_program setpriv
	need strace has_program strace
	need curl has_program curl
	need etcd-server has_program etcd
	need faketime has_program faketime
	need musl-tools has_program musl-gcc
	need chromium has_program chromium
	need python3-venv python3 -c 'import ensurepip'
}
vm() {
	guest
	need cpio has_program cpio
	need debootstrap has_program debootstrap
}
need() { # need PACKAGE TEST...: PACKAGE is missing when TEST fails
	package=$1
	shift
	"$@" >/dev/null 2>&1 || missing="$missing $package"
}
has_program() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1"; }
has_libclang() {
	[ -n "${LIBCLANG_PATH:-}" ] && return
	# Not libclang-cpp, which other packages bring along.
	{
		PATH="$PATH:/usr/sbin:/sbin" ldconfig -p
		ls /usr/lib/llvm-*/lib /usr/lib64
	} 2>/dev/null | grep -Eq 'libclang(-[0-9]+)?\.so'
}

has_program cargo >/dev/null || {
	echo "setup: no cargo (install Rust 1.95 or newer: https://rustup.rs)" >&2
	exit 1
}
need clang has_program "${CLANG:-clang}"
need libclang-dev has_libclang
need libbpf-dev test -e /usr/include/bpf/bpf_helpers.h
need gcc has_program cc
case "${1:-build}" in
build) ;;
lint) lint ;;
fuzz) need g++ has_program c++ ;;
bench)
	need bpftool has_program bpftool
	need bpftrace has_program bpftrace
	need libbpf-tools has_program offcputime
	need g++ has_program c++
	need elfutils has_program eu-stack
	need musl-tools has_program musl-gcc
	need nginx-light has_program nginx
	need nodejs has_program node
	need postgresql ls -d /usr/lib/postgresql
	need redis-server has_program redis-server
	need strace has_program strace
	need util-linux has_program unshare
	;;
test) test_ ;;
rings)
	test_
	need npm has_program npm
	;;
ci)
	lint
	test_
	vm
	;;
chart)
	need prometheus has_program promtool
	need etcd-server has_program etcd
	need python3-venv python3 -c 'import ensurepip'
	;;
vm) vm ;;
image)
	guest
	image
	;;
release)
	need buildah has_program buildah
	release
	;;
rehearsal)
	guest
	image
	release
	need curl has_program curl
	need python3 has_program python3
	;;
e2e)
	guest
	image
	release
	need e2fsprogs has_program mke2fs
	need kmod has_program depmod
	need etcd-server has_program etcd
	need prometheus has_program promtool
	;;
*)
	echo "usage: setup.sh [build|image|release|rehearsal|lint|fuzz|bench|test|rings|ci|chart|vm|e2e]" >&2
	exit 2
	;;
esac

[ -n "$missing" ] || exit 0
echo "setup: missing packages:$missing"
if [ "$(id -u)" = 0 ]; then
	sudo=""
elif command -v sudo >/dev/null; then
	sudo=sudo
else
	echo "setup: neither root nor sudo (install these packages, then try again:$missing)" >&2
	exit 1
fi
if ! command -v apt-get >/dev/null; then
	echo "setup: no apt-get (install what these Debian packages hold, then try again:$missing)" >&2
	exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# One at a time: apt-get ends where it finds another at work.
exec 9<"$0"
flock 9
$sudo apt-get update -qq
# Only what is named: the packages must not start servers of their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
	$sudo chmod +x $policy
	trap '$sudo rm -f $policy' EXIT
fi
# shellcheck disable=SC2086 # one word per package
$sudo apt-get install -qq -y --no-install-recommends $missing
