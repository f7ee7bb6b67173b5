#!/bin/sh
# Pack what a guest boots: initramfs.sh OUT PROGRAMS TREE..., where PROGRAMS is a directory of programs and each
# TREE one that unpack.sh made. Of the trees it takes programs and shared libraries, no data.
set -eu

out=$(realpath -m "$1") programs=$(realpath "$2")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$out.root
rm -rf "$root"
mkdir -p "$root/dev" "$root/etc" "$root/proc" "$root/run" "$root/sys" "$root/tmp" "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64"
for directory in bin sbin lib lib64; do
	ln -s "usr/$directory" "$root/$directory"
done
for tree; do
	tree=$(realpath "$tree")
	# -L: a link may lead to what is not taken.
	for part in bin sbin lib lib64; do
		(cd "$tree/usr" && find "$part/" -maxdepth 2 \( -type f -o -type l \) \( -name '*.so*' -o -path '*bin/*' \) 2>/dev/null |
			cpio -pdmu --quiet "$root/usr") || :
	done
done
cp -r "$programs" "$root/podperf"
cp "$here/init" "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet) >"$out.part"
rm -rf "$root"
mv "$out.part" "$out"
