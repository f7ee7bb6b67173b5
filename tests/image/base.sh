#!/bin/sh
# Make the base image of the Dockerfile without a container registry: base.sh NAME DIRECTORY. Debian by debootstrap, and
# this machine's Rust in the place where the official image has its own. Needs root.
set -eu

name=$1 root=$2
suite=${name##*-}

here=$(cd "$(dirname "$0")" && pwd)
mirror=$("$here/../vm/mirror.sh")
rm -rf "$root"
debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev \
	--keyring=/usr/share/keyrings/debian-archive-keyring.gpg "$suite" "$root" "$mirror"
# Proxies and the like, as this machine's apt has them, and whom it trusts.
apt-config dump Acquire >"$root/etc/apt/apt.conf.d/00host"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
rm -rf "$root/var/cache/apt" "$root/var/lib/apt/lists"

cargo=$root/usr/local/cargo
mkdir -p "$cargo"
tar -C "$(rustc --print sysroot)" -c bin lib | tar -C "$cargo" -x

container=$(buildah from scratch)
buildah add --quiet "$container" "$root" / >/dev/null
buildah config --env PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
	--env CARGO_HOME=/usr/local/cargo "$container"
buildah commit --quiet --rm "$container" "$name" >/dev/null
rm -rf "$root"
