#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run one load of `podperf-bench servers` or `stacks` until it is killed: run.sh NAME DIR PORT. It keeps its files in DIR, which
# belongs to the user nobody, and listens at 127.0.0.1:PORT.
set -eu

name=$1 dir=$2 port=$3
here=$(cd "$(dirname "$0")" && pwd)
# Debian's own programs, and not those of a user.
PATH=/usr/bin:/bin:/usr/sbin:$PATH
# Servers refuse to run as root, or should not.
nobody() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }

cd "$dir"
case $name in
python) nobody python3 "$here/work.py" threads ;;
cpp | cpp-pointers)
	# The functions of Debian's C library keep no frame pointers in either.
	case $name in cpp) pointers=-fomit-frame-pointer ;; *) pointers=-fno-omit-frame-pointer ;; esac
	c++ -O2 "$pointers" -pthread -o deep "$here/deep.cpp"
	nobody ./deep
	;;
musl)
	musl-gcc -O2 -fomit-frame-pointer -o musl "$here/../../../tests/e2e/programs/musl.c"
	# It ends with its stdin, and after 100 s.
	while :; do sleep 100 | nobody ./musl; done
	;;
node)
	nobody node -e "require('http').createServer((_, answer) => setTimeout(() => answer.end('podperf\\n'), 1)).listen($port, '127.0.0.1')" &
	nobody python3 "$here/work.py" http "$port"
	;;
go)
	# The cache belongs to root; the program does not.
	GO111MODULE=off CGO_ENABLED=0 go build -o work "$here/work.go"
	nobody ./work
	;;
java)
	javac -d classes "$here/Work.java"
	nobody java -cp classes Work
	;;
nginx)
	cat >nginx.conf <<-END
		daemon off;
		worker_processes 2;
		pid $dir/pid;
		error_log $dir/error.log;
		events {}
		http {
			access_log off;
			client_body_temp_path $dir/body;
			proxy_temp_path $dir/proxy;
			fastcgi_temp_path $dir/fastcgi;
			uwsgi_temp_path $dir/uwsgi;
			scgi_temp_path $dir/scgi;
			server {
				listen 127.0.0.1:$port;
				return 200 "podperf";
			}
		}
	END
	nobody nginx -e "$dir/error.log" -c "$dir/nginx.conf" &
	nobody python3 "$here/work.py" http "$port"
	;;
redis)
	nobody redis-server --port "$port" --bind 127.0.0.1 --save 1 1 --dir "$dir" >redis.log &
	nobody python3 "$here/work.py" redis "$port"
	;;
postgres)
	# Debian keeps the programs of each version in a directory of their own.
	for programs in /usr/lib/postgresql/*/bin; do PATH=$PATH:$programs; done
	export PATH PGHOST=127.0.0.1 PGPORT="$port" PGUSER=nobody PGDATABASE=postgres
	nobody initdb --pgdata data --username nobody --auth trust >initdb.log
	nobody postgres -D data -p "$port" -h 127.0.0.1 -k "$dir" >postgres.log 2>&1 &
	for _ in $(seq 300); do
		! nobody pg_isready --quiet || break
		sleep 0.1
	done
	nobody pgbench --initialize --quiet 2>pgbench.log
	nobody pgbench -c 4 -j 2 -R 300 -T 100000 >>pgbench.log 2>&1
	;;
*)
	echo "run.sh: no load \`$name\`" >&2
	exit 1
	;;
esac
