#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the state of a process' main thread as JSON: its registers, its stack, its mappings, and the frames that
elfutils finds (`eu-stack`). The process is stopped meanwhile. See `../recorded_tests.rs`.

usage: snapshot.py PID, as root
"""

import ctypes
import json
import os
import platform
import re
import signal
import struct
import subprocess
import sys

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, PTRACE_GETREGSET, NT_PRSTATUS = 0x4206, 0x4207, 17, 0x4204, 1
MOST_STACK = 1 << 20
# The registers in DWARF's order, by their places in the kernel's structure; on arm64 they are x0 to x30, sp and pc.
ORDER = {"x86_64": [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16], "aarch64": list(range(33))}
SP = {"x86_64": 7, "aarch64": 31}


class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


def ptrace(request, pid, address, data):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, pid, address, data) < 0:
        sys.exit(f"snapshot.py: {os.strerror(ctypes.get_errno())}")


def registers(pid):
    ptrace(PTRACE_SEIZE, pid, None, None)
    ptrace(PTRACE_INTERRUPT, pid, None, None)
    os.waitpid(pid, 0x40000000)
    buffer = ctypes.create_string_buffer(1024)
    vector = Vector(ctypes.addressof(buffer), len(buffer))
    ptrace(PTRACE_GETREGSET, pid, NT_PRSTATUS, ctypes.addressof(vector))
    ptrace(PTRACE_DETACH, pid, None, signal.SIGSTOP)
    words = struct.unpack(f"<{vector.length // 8}Q", buffer.raw[: vector.length])
    return [words[at] for at in ORDER[platform.machine()]]


def main():
    pid = int(sys.argv[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        text = subprocess.run(["eu-stack", "-1", "-n", "0", "-p", str(pid)], stdout=subprocess.PIPE, text=True).stdout
        frames = [int(address, 16) for address in re.findall(r"^#\d+\s+(0x[0-9a-f]+)", text, re.MULTILINE)]
        found = registers(pid)
        maps = open(f"/proc/{pid}/maps").read()
        sp = found[SP[platform.machine()]]
        spans = [[int(part, 16) for part in line.split()[0].split("-")] for line in maps.splitlines()]
        end = next(end for start, end in spans if start <= sp < end)
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(sp)
            stack = memory.read(min(end - sp, MOST_STACK))
    finally:
        os.kill(pid, signal.SIGCONT)
    json.dump({"registers": found, "stack": stack.hex(), "maps": maps, "frames": frames}, sys.stdout)


main()
