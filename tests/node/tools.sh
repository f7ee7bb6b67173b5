#!/bin/sh
# Pack the image of all pods but the agent's, as an archive that runtimes import: tools.sh BUSYBOX OUT. It holds a static
# busybox; a container without a command of its own does nothing, so it is the image of sandboxes as well.
set -eu

busybox=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# The directory of `mktemp` is for its owner only, and pods with other users read the image.
chmod 755 "$root"
mkdir -p "$root/bin" "$root/tmp"
cp "$busybox" "$root/bin/busybox"
for name in $("$busybox" --list); do
	[ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
done
"$here/pack.sh" "$root" "$out" '{"Env": ["PATH=/bin"], "Cmd": ["sleep", "infinity"]}' \
	registry.test/tools:1 registry.test/pause:1
