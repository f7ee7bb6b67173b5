/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Compares the numbers of system calls of arm64 with the kernel's header for all new architectures. */
#define __ARCH_WANT_NEW_STAT
#define __ARCH_WANT_RENAMEAT
#define __ARCH_WANT_SYS_CLONE3
#include <asm-generic/unistd.h>

#include "calls/calls.h"

#define CHECK(name, x86, arm64) _Static_assert(__NR_##name == arm64, #name);
PODPERF_COUNTED_OF_BOTH(CHECK)

int main(void)
{
	return 0;
}
