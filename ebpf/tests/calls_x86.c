/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Compares the numbers of system calls of x86-64, and of errnos, with the headers, where they are installed. */
#ifdef __x86_64__
#include <asm/unistd_64.h>
#include <errno.h>

#include "calls/calls.h"

#define CHECK(name, x86, arm64) _Static_assert(__NR_##name == x86, #name);
PODPERF_COUNTED_OF_BOTH(CHECK)
PODPERF_COUNTED_OF_X86(CHECK)

#define CHECK_ERRNO(name, number) _Static_assert(name == number, #name);
PODPERF_ERRNOS(CHECK_ERRNO)
#endif

int main(void)
{
	return 0;
}
