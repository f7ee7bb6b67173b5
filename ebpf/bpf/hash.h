/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The keyed hashes that name stacks, wakers and call sites. A program chooses its own frames, registers and thread
 * names. Without the key, it could choose them so that its stack has the id of another program's stack. This file is
 * plain C: a test compiles it for the build machine.
 */
#ifndef PODPERF_HASH_H
#define PODPERF_HASH_H

#include "podperf.h"

/*
 * A prime, so that a polynomial of degree n has at most n roots. Two lists of n words that were chosen without knowing
 * `point` have the same hash for at most n of the 2^61 points.
 */
#define HASH_PRIME ((1ULL << 61) - 1)

/*
 * Adds a word to a list's hash. Returns (hash * point + word) modulo HASH_PRIME, without the last subtraction. `hash`
 * is at most 2^61 + 7, `point` is below 2^61. Words that differ by a multiple of the prime count as equal: callers pass
 * addresses or 32-bit words.
 */
static inline __u64 hash_word(__u64 hash, __u64 word, __u64 point)
{
	__u64 high = hash >> 32, low = (__u32)hash;
	__u64 point_high = point >> 32, point_low = (__u32)point;
	__u64 middle = high * point_low + low * point_high; /* times 2^32 */
	__u64 bottom = low * point_low;
	__u64 sum;

	/* 2^61 is 1 modulo the prime, so 2^64 is 8. */
	sum = (high * point_high << 3) + (middle >> 29) + ((middle & ((1ULL << 29) - 1)) << 32);
	sum += (bottom & HASH_PRIME) + (bottom >> 61) + (word & HASH_PRIME) + (word >> 61);
	return (sum & HASH_PRIME) + (sum >> 61);
}

/* Returns the id of a list of words: odd, and not 0. */
static inline __u64 hash_id(__u64 hash)
{
	if (hash >= HASH_PRIME)
		hash -= HASH_PRIME;
	return hash << 1 | 1;
}

/*
 * Returns the id of a call site, which is even. The id is made at each wait, so it must be fast: each word is
 * multiplied by a random odd factor. Words that differ in their low bits, such as the start times of tasks, nearly
 * always have different ids. If a call site is mistaken for another one, the checks of its stack find the error.
 */
static inline __u64 hash_site(const __u64 *words, const volatile __u64 *factors)
{
	__u64 hash = 0;

	for (int i = 0; i < PODPERF_SITE_WORDS; i++)
		hash += words[i] * factors[i];
	return (hash ^ hash >> 32) & ~1ULL;
}

/*
 * Adds a word of the stack to the hash of a recipe (`agrees` in copies.bpf.h). The agent makes the same hash. It has no
 * key: a recipe is only compared with stacks of the process that it was made for.
 */
static inline __u64 hash_slot(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
	return hash ^ hash >> 29;
}

#endif
