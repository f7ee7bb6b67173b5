/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The buckets of waits, compiled for the machine that builds: a line of nanoseconds in, the bucket out. */
#include <stdio.h>
#include <stdlib.h>

#include "histograms/histograms.h"
#include "histograms/bucket.h"

int main(void)
{
	char line[32];

	while (fgets(line, sizeof(line), stdin))
		printf("%u\n", bucket_of(strtoull(line, NULL, 10), PODPERF_HISTOGRAM_BUCKETS));
	return 0;
}
