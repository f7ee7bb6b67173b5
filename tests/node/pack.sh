#!/bin/sh
# Pack a directory as an image of one layer, in an archive that runtimes import: pack.sh ROOT OUT SETTINGS TAG...
# SETTINGS is the `config` of the image, in JSON. The image is for the architecture of this machine.
set -eu

root=$1 out=$2 settings=$3
shift 3
image=$(mktemp -d)
trap 'rm -rf "$image"' EXIT

tar -C "$root" --owner=0 --group=0 --numeric-owner -cf "$image/layer.tar" .
digest=$(sha256sum "$image/layer.tar" | cut -d ' ' -f 1)
case $(uname -m) in
aarch64) arch=arm64 ;;
*) arch=amd64 ;;
esac
cat >"$image/config.json" <<END
{"architecture": "$arch", "os": "linux", "config": $settings,
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
tags=$(printf ', "%s"' "$@")
cat >"$image/manifest.json" <<END
[{"Config": "config.json", "RepoTags": [${tags#, }], "Layers": ["layer.tar"]}]
END
tar -C "$image" -cf "$out" manifest.json config.json layer.tar
