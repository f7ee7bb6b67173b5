// SPDX-License-Identifier: Apache-2.0
/*
 * The routes of the load `paths`, and its threads. Routes are random, and the same in every run.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "paths.h"

/* Size of a function's name, with the semicolon after it. */
#define NAME_BYTES 16

static struct walk walks[2];

/*
 * Makes a route random, of at least `least` functions. Its first function and its leaf are given. At most one
 * function has the large frame.
 */
static void make_route(struct walk *walk, unsigned char *route, enum function first, unsigned int least)
{
	unsigned int length = least + (unsigned int)(next_random(walk) % (MOST_DEEP - least + 1)), at = 1;
	/* A sample on the CPU is copied once, without the pages beyond a large frame. */
	int may_be_large = !walk->on_cpu;

	route[0] = first;
	while (at < length - 1) {
		enum function function = PATH_A + next_random(walk) % (PATH_M - PATH_A + 1);

		if (function == PATH_L || (function == PATH_K && at + 2 > length - 1) ||
		    (function == PATH_H && (!may_be_large || next_random(walk) % 4)))
			continue;
		may_be_large &= function != PATH_H;
		route[at++] = function;
		if (function == PATH_K)
			route[at++] = PATH_L;
	}
	route[at] = walk->on_cpu ? PATH_SPIN : PATH_SLEEP;
}

/*
 * Swaps the first two neighbours from `at` on that differ and may change places. The frames stay of the same sizes.
 * Returns the place after them.
 */
static unsigned int make_alike(unsigned char *route, unsigned int at)
{
	for (; at < MOST_DEEP - 1; at++) {
		unsigned char one = route[at], other = route[at + 1];

		if (one < PATH_A || other < PATH_A || one == other || one == PATH_K || one == PATH_L || other == PATH_K ||
		    other == PATH_L)
			continue;
		route[at] = other;
		route[at + 1] = one;
		return at + 2;
	}
	return at;
}

/*
 * Makes the routes of a thread: eight random, three pairs, and six that are alike. Routes that are alike have the
 * same functions in another order, so the thread waits at the same instruction and with the same stack pointer.
 */
static void make_routes(struct walk *walk, enum function first, int on_cpu, unsigned int rounds)
{
	static const unsigned char is_alike[ROUTES] = {
		[9] = 1, [11] = 1, [13] = 1, [15] = 1, [16] = 1, [17] = 1, [18] = 1, [19] = 1,
	};
	unsigned int at = 1;

	memset(walk, 0, sizeof(*walk));
	walk->random = 17 + first;
	walk->on_cpu = on_cpu;
	walk->rounds = rounds;
	for (unsigned int i = 0; i < ROUTES; i++) {
		if (is_alike[i]) {
			memcpy(walk->route[i], walk->route[i - 1], MOST_DEEP);
			at = make_alike(walk->route[i], at);
			walk->sizes[i] = walk->sizes[i - 1];
		} else {
			make_route(walk, walk->route[i], first, i < 8 ? 6 : 24);
			walk->sizes[i] = (unsigned int)next_random(walk);
			at = 1;
		}
	}
}

/* Goes the routes of the main thread and of a second thread. Returns 0 or an error number. */
int podperf_paths_run(unsigned int rounds, int on_cpu)
{
	pthread_t thread;
	int error;

	make_routes(&walks[0], PATH_MAIN, on_cpu, rounds);
	make_routes(&walks[1], PATH_THREAD, on_cpu, rounds);
	error = pthread_create(&thread, NULL, path_thread, &walks[1]);
	if (error)
		return error;
	path_main(&walks[0]);
	error = pthread_join(thread, NULL);
	return walks[0].error ? walks[0].error : walks[1].error ? walks[1].error : error;
}

typedef void path_taker(void *to, const char *path, uint64_t count, uint64_t ns, uint64_t queued_ns,
			uint64_t stack_bytes);

/* Passes each path with its record: the functions' names, outermost first, with semicolons in between. */
void podperf_paths_each(path_taker *take, void *to)
{
	for (unsigned int i = 0; i < 2 * sizeof(walks->records) / sizeof(*walks->records); i++) {
		const struct walk *walk = &walks[i & 1];
		const struct record *record = &walk->records[i / 2];
		char text[MOST_DEEP * NAME_BYTES] = "";

		if (i / 2 >= walk->used)
			continue;
		for (unsigned int at = 0; at < record->deep; at++) {
			strcat(text, at ? ";" : "");
			strcat(text, path_name(record->path[at]));
		}
		take(to, text, record->count, record->ns, record->queued_ns, record->stack_bytes);
	}
}
