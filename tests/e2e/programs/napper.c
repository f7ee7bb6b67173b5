/* Naps the given number of times, each time the given number of milliseconds, in functions with known names. */
#include <stdlib.h>

#include "nap.h"

static __attribute__((noinline)) void podperf_nap_inner(long milliseconds)
{
	nap(milliseconds);
	__asm__ volatile("" ::: "memory");
}

static __attribute__((noinline)) void podperf_nap_outer(long milliseconds)
{
	podperf_nap_inner(milliseconds);
	__asm__ volatile("" ::: "memory");
}

int main(int argc, char **argv)
{
	long times = argc > 1 ? atol(argv[1]) : 1000000;
	while (times--)
		podperf_nap_outer(argc > 2 ? atol(argv[2]) : 20);
	return 0;
}
