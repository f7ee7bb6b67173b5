#!/bin/sh
# Pack the image of all pods but the agent's, as an archive that runtimes import: tools.sh BUSYBOX OUT. It holds a static
# busybox; a container without a command of its own does nothing, so it is the image of sandboxes as well.
set -eu

busybox=$1 out=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root/layer/bin" "$root/layer/tmp" "$root/image"
cp "$busybox" "$root/layer/bin/busybox"
for name in $("$busybox" --list); do
	[ "$name" = busybox ] || ln -s busybox "$root/layer/bin/$name"
done
tar -C "$root/layer" --owner=0 --group=0 --numeric-owner -cf "$root/image/layer.tar" .
digest=$(sha256sum "$root/image/layer.tar" | cut -d ' ' -f 1)
case $(uname -m) in
aarch64) arch=arm64 ;;
*) arch=amd64 ;;
esac
cat >"$root/image/config.json" <<EOF
{"architecture": "$arch", "os": "linux",
 "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "infinity"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
EOF
cat >"$root/image/manifest.json" <<EOF
[{"Config": "config.json", "RepoTags": ["registry.test/tools:1", "registry.test/pause:1"], "Layers": ["layer.tar"]}]
EOF
tar -C "$root/image" -cf "$out" manifest.json config.json layer.tar
