/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Compares the numbers of system calls of x86-64 with the kernel's header, where it is installed. */
#ifdef __x86_64__
#include <asm/unistd_64.h>

#include "syscalls/syscalls.h"

#define CHECK(name, x86, arm64) _Static_assert(__NR_##name == x86, #name);
PODPERF_CALLS_OF_BOTH(CHECK)
PODPERF_CALLS_OF_X86(CHECK)
#endif

int main(void)
{
	return 0;
}
