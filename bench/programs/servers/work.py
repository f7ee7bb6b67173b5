# SPDX-License-Identifier: Apache-2.0
"""The Python load of `podperf-bench servers`, and the clients of the other loads.

usage: work.py threads | http PORT | redis PORT

`threads` is a program of its own: two threads hand an item over a queue all the time, and others sort, match and sleep
in nested functions. The clients make 200 requests a second over one connection.
"""

import http.client
import queue
import random
import re
import socket
import sys
import threading
import time

PAUSE = 0.005


def hand_over(from_queue, to_queue):
    while True:
        to_queue.put(from_queue.get())


def nested(depth, work):
    if depth:
        nested(depth - 1, work)
    else:
        work()


def sort_and_match():
    words = [str(random.random()) for _ in range(200)]
    words.sort(key=lambda word: word[::-1])
    re.sub(r"\d", lambda match: match.group() * 2, "".join(words[:20]))
    time.sleep(0.01)


def repeat(work):
    while True:
        work()


def threads():
    there, back = queue.Queue(), queue.Queue()
    there.put(0)
    works = [lambda: hand_over(there, back), lambda: hand_over(back, there)]
    works += [lambda: repeat(lambda: nested(20, sort_and_match))] * 2
    works += [lambda: repeat(lambda: nested(30, lambda: time.sleep(0.02)))] * 4
    for work in works:
        threading.Thread(target=work).start()


def ask_http(port):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while True:
        connection.request("GET", "/")
        connection.getresponse().read()
        time.sleep(PAUSE)


def ask_redis(port):
    connection = socket.create_connection(("127.0.0.1", port))
    while True:
        connection.sendall(b"INCR podperf\r\n")
        connection.recv(64)
        time.sleep(PAUSE)


def when_up(ask, port):
    for _ in range(300):
        try:
            ask(port)
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit(f"no server at port {port}")


if sys.argv[1] == "threads":
    threads()
else:
    when_up({"http": ask_http, "redis": ask_redis}[sys.argv[1]], int(sys.argv[2]))
