/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The bucket of a wait. The borders are powers of two of a second, as Prometheus' native histograms (schema 0) and
 * OpenTelemetry's exponential histograms (scale 0) have them, so the agent exports the counts as they are. Bucket 0 holds waits
 * of at most 2^-18 s (3.8 us), bucket n waits above 2^(n-19) s up to 2^(n-18) s, and the last bucket also all longer
 * ones.
 */
#ifndef PODPERF_HISTOGRAM_BUCKET_H
#define PODPERF_HISTOGRAM_BUCKET_H

#include <linux/types.h>

/*
 * Number of units of 2^-30 s in 2^32 ns, rounded down. The error at a border is below a nanosecond, and below 256 ns for
 * waits of 2^31 ns (2.1 s) and more.
 */
#define PODPERF_UNITS 4611686018ULL
/* A wait shorter than this, in nanoseconds, is in bucket 0. */
#define PODPERF_FIRST_NS 3814
/* Number of bits of the upper border of bucket 0 in units. */
#define PODPERF_FIRST_BITS 12

/* Returns the number of bits of `value`: 0 for 0. */
static inline __u32 bits_of(__u64 value)
{
	__u32 bits = 0;

	if (value >> 32) {
		value >>= 32;
		bits += 32;
	}
	if (value >> 16) {
		value >>= 16;
		bits += 16;
	}
	if (value >> 8) {
		value >>= 8;
		bits += 8;
	}
	if (value >> 4) {
		value >>= 4;
		bits += 4;
	}
	if (value >> 2) {
		value >>= 2;
		bits += 2;
	}
	if (value >> 1) {
		value >>= 1;
		bits += 1;
	}
	return bits + value;
}

/* Returns the bucket of a wait of `ns` nanoseconds, of `buckets` buckets. */
static inline __u32 bucket_of(__u64 ns, __u32 buckets)
{
	__u64 units;
	__u32 bits;

	/* From 2^39 ns (550 s) on the product would not fit 64 bits. Such a wait is in the last bucket anyway. */
	if (ns >= 1ULL << 39)
		return buckets - 1;
	/* Most waits for a CPU are this short. */
	if (ns < PODPERF_FIRST_NS)
		return 0;
	units = ns < 1ULL << 31 ? ns * PODPERF_UNITS >> 32 : (ns >> 8) * PODPERF_UNITS >> 24;
	bits = bits_of(units);
	if (bits <= PODPERF_FIRST_BITS)
		return 0;
	bits -= PODPERF_FIRST_BITS;
	return bits < buckets ? bits : buckets - 1;
}

#endif
