#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Draws what a real service waits for: picture.sh PODPERF BROWSER FILE.png. The service is Debian's PostgreSQL under pgbench,
# which is a neighbour. Each has a cgroup of its own. Needs root and Debian's packages postgresql and chromium.
set -eu

podperf=$1 browser=$2 file=$3
service=shop.slice/postgres.service
port=54329
here=$(cd "$(dirname "$0")" && pwd)
root=$(findmnt --noheadings --output TARGET --types cgroup2 | head -n 1)
server=$root/$service
clients=$root/shop.slice/pgbench.service

end() {
	echo 1 >"$server/cgroup.kill"
	echo 1 >"$clients/cgroup.kill"
	sleep 1
	rm -rf "$work"
	rmdir "$server" "$clients" "$root/shop.slice"
}
# Prints the process of pgbench that runs transactions. Debian's wrapper starts it by its whole path.
client() {
	while read -r pid; do
		if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -Eq '^([^ ]*/)?pgbench .* -T '; then echo "$pid"; fi
	done <"$server/cgroup.procs"
}

# Fails if there is such a slice: all that runs in these cgroups is killed at the end.
mkdir "$root/shop.slice" "$server" "$clients"
work=$(mktemp -d)
trap end EXIT
trap 'exit 1' INT TERM
mkdir "$work/data"
chmod 711 "$work"
chown 65534:65534 "$work/data"
sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$server" \
	"$here/programs/servers/run.sh" postgres "$work/data" "$port" 2>"$work/log" &
tries=0
until pid=$(client) && [ -n "$pid" ]; do
	tries=$((tries + 1))
	[ $tries -lt 60 ] || {
		tail -n 20 "$work/log" >&2
		echo "picture: PostgreSQL has no clients after a minute" >&2
		exit 1
	}
	sleep 1
done
echo "$pid" >"$clients/cgroup.procs"
"$podperf" record "/$service" --duration 30s -o "$work/page.html"
"$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --force-color-profile=srgb --virtual-time-budget=3000 \
	--window-size=1100,790 --user-data-dir="$work/browser" --screenshot="$work/picture.png" "file://$work/page.html"
cp "$work/picture.png" "$file"
