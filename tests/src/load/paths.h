// SPDX-License-Identifier: Apache-2.0
/*
 * Threads, their routes through the functions of the load `paths`, and the records of the paths that they noted.
 */
#ifndef PODPERF_PATHS_H
#define PODPERF_PATHS_H

#include <stdint.h>

/* The largest number of functions on a path. */
#define MOST_DEEP 30
#define ROUTES 20

/* The functions. `path_main` and `path_thread` begin the routes, and `path_sleep` and `path_spin` end them. */
enum function {
	PATH_MAIN,
	PATH_THREAD,
	PATH_SLEEP,
	PATH_SPIN,
	PATH_A,
	PATH_B,
	PATH_C,
	PATH_D,
	PATH_E,
	PATH_F,
	PATH_G,
	PATH_H,
	PATH_I,
	PATH_J,
	PATH_K,
	PATH_L,
	PATH_M,
	FUNCTIONS,
};

/* The time at the end of one path. */
struct record {
	unsigned char path[MOST_DEEP];
	unsigned int deep;
	uint64_t count;
	uint64_t ns;
	uint64_t queued_ns;
	uint64_t stack_bytes;
};

/* A thread with its routes and its records. */
struct walk {
	unsigned char route[ROUTES][MOST_DEEP];
	unsigned int sizes[ROUTES];
	/* The route that the thread is on, and the functions that are on its stack. */
	const unsigned char *to;
	unsigned char path[MOST_DEEP];
	unsigned int deep;
	/* Decides on the sizes of frames that are not known to the compiler. */
	unsigned int size;
	uint64_t length_ns;
	uint64_t random;
	/* The address after the last byte of the stack. */
	const char *top;
	int schedstat;
	int error;
	unsigned int rounds;
	int on_cpu;
	struct record records[2 * ROUTES];
	unsigned int used;
};

typedef void path_function(struct walk *walk);

/* The functions that a route may name, by their numbers. */
extern path_function *const path_functions[FUNCTIONS];

path_function path_main;
void *path_thread(void *walk);
const char *path_name(enum function function);

/* A step of the PCG generator. The high bits have the better randomness. */
static inline uint64_t next_random(struct walk *walk)
{
	walk->random = walk->random * 6364136223846793005ULL + 1442695040888963407ULL;
	return walk->random >> 33;
}

#endif
