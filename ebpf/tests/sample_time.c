/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The times of samples on one CPU, compiled for the machine that builds: a line `NOW IDLE SAMPLE` in, the time out. */
#include <stdbool.h>
#include <stdio.h>

#include "sample_time.h"

int main(void)
{
	struct podperf_cpu cpu = {};
	__u64 now, sample_ns;

	while (scanf("%llu %llu %llu", &now, &cpu.idle_ns, &sample_ns) == 3)
		printf("%llu\n", sample_time(&cpu, now, sample_ns));
	return 0;
}
