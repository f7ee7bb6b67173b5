#!/bin/sh
# Build what a node of the node ring is: build.sh. Prints the directory that holds `vmlinuz`, Debian's 6.12 cloud kernel,
# which needs no initramfs here, `root.ext4`, with containerd, runc, CNI plugins and the kubelet, and `tools.tar`, the
# image of pods. What differs between nodes comes at boot, from a second disk.
# Needs root: the files belong to it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$here/../.." && pwd)
mkdir -p "$sources/target/node"
out=$sources/target/node

# Kubernetes 1.36 wants containerd 2.
suite=forky
arch=$(dpkg --print-architecture)
packages=apparmor,bpftool,busybox-static,containerd,containernetworking-plugins,iptables,kmod,mount,runc,systemd
libraries='gcc-[0-9]+-base|lib.*|netbase|zlib1g'

# Two runs at once build it once.
exec 9>"$out/lock"
flock 9

kubernetes=$("$here/../kube/build.sh" --node 9>&-)
kernel=$("$here/../vm/unpack.sh" trixie "$arch" "linux-image-cloud-$arch" 'linux-(image|binary)-[0-9].*' 9>&-)
system=$("$here/../vm/unpack.sh" "$suite" "$arch" "$packages" "$(echo "$packages" | tr , '|')|$libraries" 9>&-)

# Another kubelet, other packages, or another guest make another file system.
key=$({
	readlink "$kubernetes"
	stat -c '%n %Y' "$kernel/boot/"vmlinuz* "$system"
	cat "$here/"*.sh "$here/guest/"*
} | sha256sum | cut -c 1-16)
built=$out/$key

build() {
	root=$out/root
	rm -rf "$root" "$built.part"
	mkdir -p "$root" "$built.part" &&
		cd "$root" &&
		mkdir -p dev etc/cni/net.d etc/containerd etc/kubernetes/manifests \
			etc/systemd/system/multi-user.target.wants opt/cni proc root run sys tmp usr/bin usr/lib usr/lib64 usr/sbin var/lib var/log &&
		for directory in bin lib lib64 sbin; do ln -s "usr/$directory" "$directory"; done &&
		ln -s ../run var/run &&
		cp -a "$system/etc" "$system/usr" . &&
		rm -rf usr/share/doc usr/share/man usr/share/locale usr/lib/*/gconv &&
		cp -a "$kernel/usr/lib/modules" usr/lib/ &&
		depmod -b . "$(ls usr/lib/modules)" &&
		cp "$kubernetes/kubelet" usr/bin/ &&
		# Packages that are only unpacked have no alternatives.
		for name in iptables iptables-save iptables-restore ip6tables; do
			ln -s xtables-nft-multi "usr/sbin/$name"
		done &&
		ln -s ../../usr/lib/cni opt/cni/bin &&
		for name in $(usr/bin/busybox --list); do
			[ -e "usr/bin/$name" ] || [ -e "usr/sbin/$name" ] || ln -s busybox "usr/bin/$name"
		done &&
		echo "root:x:0:0:root:/root:/bin/sh" >etc/passwd &&
		echo "root:x:0:" >etc/group &&
		: >etc/machine-id &&
		echo "127.0.0.1 localhost" >etc/hosts &&
		echo "nameserver 10.0.2.3" >etc/resolv.conf &&
		cp "$here/guest/init" usr/sbin/node-init &&
		cp "$here/guest/node" "$here/guest/console" usr/sbin/ &&
		cp "$here/guest/node.service" etc/systemd/system/ &&
		ln -s ../node.service etc/systemd/system/multi-user.target.wants/ &&
		# Nobody logs in.
		ln -s /dev/null etc/systemd/system/getty.target &&
		cp "$here/guest/containerd.toml" etc/containerd/config.toml &&
		cp "$here/guest/kubelet.yaml" etc/kubernetes/ &&
		cp "$here/guest/pods.conflist" etc/cni/net.d/ &&
		cp "$kernel/boot/"vmlinuz* "$built.part/vmlinuz" &&
		"$here/tools.sh" "$system/usr/bin/busybox" "$built.part/tools.tar" &&
		mke2fs -q -t ext4 -O ^has_journal -d "$root" "$built.part/root.ext4" 3G &&
		rm -rf "$root" &&
		mv "$built.part" "$built"
}

if [ ! -d "$built" ]; then
	# The ones before it.
	find "$out" -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	build >"$out/build.log" 2>&1 9>&- || {
		tail -n 10 "$out/build.log" >&2
		echo "node: failed to make its root file system (the whole log is $out/build.log)" >&2
		exit 1
	}
fi
echo "$built"
