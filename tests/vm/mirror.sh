#!/bin/sh
# Prints the address of a Debian mirror: DEBIAN_MIRROR, or the one that this machine's own apt uses.
set -eu

mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(ORIGIN)/$(LABEL) $(REPO_URI)' 'Identifier: Packages' |
	sed -n 's|^Debian/Debian ||p' | head -n 1)}
if [ -z "$mirror" ]; then
	echo "vm: no Debian mirror among apt's sources (name one: DEBIAN_MIRROR=http://...)" >&2
	exit 1
fi
echo "$mirror"
