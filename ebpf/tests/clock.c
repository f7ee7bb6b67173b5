/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The times of switches on one CPU, compiled for the machine that builds: a line `CLOCK NOW` in, with the time of the run
 * queue and CLOCK_MONOTONIC; the time of the switch and 1 if the clocks were compared, else 0, out.
 */
#include <stdbool.h>
#include <stdio.h>

#include "clock.h"

int main(void)
{
	struct podperf_cpu cpu = {};
	__u64 clock, now;
	bool compares;

	while (scanf("%llu %llu", &clock, &now) == 2) {
		compares = !clocks_are_compared(&cpu, clock);
		if (compares)
			compare_clocks(&cpu, clock, now);
		printf("%llu %d\n", clock + cpu.clock_behind_ns, compares);
	}
	return 0;
}
