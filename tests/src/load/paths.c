// SPDX-License-Identifier: Apache-2.0
/*
 * Functions without frame pointers that call each other along fixed routes, and note which of them are on the stack.
 *
 * Each function puts its id on a list before it calls the next one, and takes it off afterwards. At the end of a route
 * the thread waits or spins, and adds the time to the record of its list. So the program knows its stacks without an
 * unwinder. All functions of a path are in one section. The name of a frame follows from its address there, and needs
 * no symbols.
 */
#define _GNU_SOURCE
#include <alloca.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "paths.h"

#if __has_attribute(noclone)
#define ONE_BODY __attribute__((noinline, noclone))
#else
#define ONE_BODY __attribute__((noinline))
#endif
#define PATH_CODE ONE_BODY __attribute__((section("podperf_paths")))

/* Size of the frame that leaves out many pages of the stack, in bytes. */
#define LARGE_FRAME (80 << 10)
/* Lengths of the waits. Every fourth route has the long one, after which the agent looks at the waker. */
#define SHORT_WAIT_NS 2000000
#define LONG_WAIT_NS 12000000
/* The shortest spin, and the number of nanoseconds by which a spin may be longer. */
#define SPIN_NS 500000
#define SPIN_MORE_NS 3000000
/* The steps between two looks at the clock: about 0.4 ms. A look takes about 1 us. */
#define SPIN_STEPS 400000

static volatile long source = 3;
static volatile double fraction = 1.5;

static inline void enter(struct walk *walk, enum function function)
{
	walk->path[walk->deep++] = function;
}

static inline void leave(struct walk *walk)
{
	walk->deep--;
}

static inline void call_next(struct walk *walk)
{
	path_functions[walk->to[walk->deep]](walk);
}

/* Makes the compiler believe that the memory is read and written. It is not touched. */
static inline void keep(void *memory)
{
	__asm__ volatile("" : : "r"(memory) : "memory");
}

static uint64_t now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Adds to the record of the functions that are on the stack. */
static void note(struct walk *walk, uint64_t count, uint64_t ns, uint64_t queued_ns, const char *sp)
{
	uint64_t stack_bytes = (uint64_t)(walk->top - sp);
	struct record *record = walk->records;

	while (record < walk->records + walk->used &&
	       (record->deep != walk->deep || memcmp(record->path, walk->path, walk->deep)))
		record++;
	if (record == walk->records + walk->used) {
		if (walk->used == sizeof(walk->records) / sizeof(*record)) {
			walk->error = ENOSPC;
			return;
		}
		walk->used++;
		record->deep = walk->deep;
		memcpy(record->path, walk->path, walk->deep);
	}
	record->count += count;
	record->ns += ns;
	record->queued_ns += queued_ns;
	if (record->stack_bytes < stack_bytes)
		record->stack_bytes = stack_bytes;
}

/* Returns the number of times that the calling thread went to sleep. */
static uint64_t sleeps(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_THREAD, &usage) ? 0 : (uint64_t)usage.ru_nvcsw;
}

/* Returns the time in which the calling thread was ready to run and had no CPU. */
static uint64_t queued(const struct walk *walk)
{
	char text[128] = "";
	unsigned long long ns = 0;

	if (pread(walk->schedstat, text, sizeof(text) - 1, 0) > 0)
		sscanf(text, "%*u %llu", &ns);
	return ns;
}

PATH_CODE void path_sleep(struct walk *walk)
{
	struct timespec length = {.tv_nsec = (long)walk->length_ns};
	uint64_t sleeps_before = sleeps(), queued_before = queued(walk), start, end;

	enter(walk, PATH_SLEEP);
	start = now(CLOCK_MONOTONIC);
	if (nanosleep(&length, NULL))
		walk->error = errno;
	end = now(CLOCK_MONOTONIC);
	note(walk, sleeps() - sleeps_before, end - start, queued(walk) - queued_before, (const char *)&length);
	leave(walk);
}

PATH_CODE void path_spin(struct walk *walk)
{
	uint64_t state = 1, start, end;
	char here;

	keep(&here);
	enter(walk, PATH_SPIN);
	start = now(CLOCK_THREAD_CPUTIME_ID);
	do {
		for (unsigned int step = 0; step < SPIN_STEPS; step++) {
			state = state * 6364136223846793005ULL ^ step;
			__asm__ volatile("" : "+r"(state));
		}
		end = now(CLOCK_THREAD_CPUTIME_ID);
	} while (end < start + walk->length_ns);
	note(walk, 1, end - start, 0, &here);
	leave(walk);
}

/* The smallest frame. */
PATH_CODE void path_a(struct walk *walk)
{
	enter(walk, PATH_A);
	call_next(walk);
	leave(walk);
}

PATH_CODE void path_b(struct walk *walk)
{
	char room[200];

	keep(room);
	enter(walk, PATH_B);
	call_next(walk);
	keep(room);
	leave(walk);
}

/* The size of the frame is known at run time only. */
PATH_CODE void path_c(struct walk *walk)
{
	char *room = alloca(16 + walk->size % 512);

	keep(room);
	enter(walk, PATH_C);
	call_next(walk);
	keep(room);
	leave(walk);
}

/* The frame grows in a loop. */
PATH_CODE void path_d(struct walk *walk)
{
	enter(walk, PATH_D);
	for (unsigned int i = 0; i <= walk->size % 7; i++)
		keep(alloca(16 + 8 * i));
	call_next(walk);
	leave(walk);
}

/* The values in use take all registers that a callee saves. */
PATH_CODE void path_e(struct walk *walk)
{
	long one = source, two = source, three = source, four = source, five = source, six = source, seven = source;

	enter(walk, PATH_E);
	call_next(walk);
	source = (one ^ two ^ three ^ four ^ five ^ six ^ seven) | 1;
	leave(walk);
}

/* The function has two ends, and the code after the first end has another frame than the end. */
PATH_CODE void path_f(struct walk *walk)
{
	enter(walk, PATH_F);
	if (walk->size & 1) {
		char room[72];
		long one = source, two = source;

		keep(room);
		call_next(walk);
		keep(room);
		source = (one ^ two) | 1;
		leave(walk);
		return;
	}
	call_next(walk);
	leave(walk);
}

PATH_CODE void path_g(struct walk *walk)
{
	unsigned int count = 1 + walk->size % 40;
	long room[count];
	long one = source, two = source, three = source;

	keep(room);
	enter(walk, PATH_G);
	call_next(walk);
	keep(room);
	source = (one ^ two ^ three) | 1;
	leave(walk);
}

/* Most pages of the frame are never touched. */
PATH_CODE void path_h(struct walk *walk)
{
	char room[LARGE_FRAME];

	keep(room);
	enter(walk, PATH_H);
	call_next(walk);
	keep(room);
	leave(walk);
}

PATH_CODE void path_i(struct walk *walk)
{
	char room[1000];

	keep(room);
	enter(walk, PATH_I);
	call_next(walk);
	keep(room);
	leave(walk);
}

PATH_CODE void path_j(struct walk *walk)
{
	double half = fraction, other = fraction;

	enter(walk, PATH_J);
	call_next(walk);
	fraction = half < other ? half : other;
	leave(walk);
}

PATH_CODE void path_l(struct walk *walk, long b, long c, long d, long e, long f, long g, long h, long i, long j)
{
	enter(walk, PATH_L);
	call_next(walk);
	source = (b ^ c ^ d ^ e ^ f ^ g ^ h ^ i ^ j) | 1;
	leave(walk);
}

/* The stack pointer moves for the arguments of the call. `path_l` always follows. */
PATH_CODE void path_k(struct walk *walk)
{
	long one = source;

	enter(walk, PATH_K);
	path_l(walk, one, 2, one + 3, 4, 5, one + 6, 7, one + 8, 9);
	source = one | 1;
	leave(walk);
}

/* The frame begins at a multiple of 64 bytes. */
PATH_CODE void path_m(struct walk *walk)
{
	char room[64] __attribute__((aligned(64)));

	keep(room);
	enter(walk, PATH_M);
	call_next(walk);
	keep(room);
	leave(walk);
}

/* Goes all routes as many times as wanted. The order differs in each round. */
static inline void go(struct walk *walk)
{
	for (unsigned int round = 0; round < walk->rounds && !walk->error; round++) {
		for (unsigned int i = 0; i < ROUTES; i++) {
			unsigned int route = (i * 7 + round * 3) % ROUTES;

			walk->to = walk->route[route];
			walk->size = walk->sizes[route];
			walk->length_ns = route % 4 ? SHORT_WAIT_NS : LONG_WAIT_NS;
			if (walk->on_cpu)
				walk->length_ns = SPIN_NS + next_random(walk) % SPIN_MORE_NS;
			call_next(walk);
		}
	}
}

static void prepare(struct walk *walk)
{
	walk->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
	if (walk->schedstat < 0)
		walk->error = errno;
}

/* The main thread's stack ends above the environment. */
PATH_CODE void path_main(struct walk *walk)
{
	prepare(walk);
	walk->top = (const char *)environ;
	enter(walk, PATH_MAIN);
	go(walk);
	leave(walk);
}

/* The C library places a thread's own data on top of its stack. */
PATH_CODE void *path_thread(void *argument)
{
	struct walk *walk = argument;

	prepare(walk);
	walk->top = (const char *)pthread_self();
	enter(walk, PATH_THREAD);
	go(walk);
	leave(walk);
	return NULL;
}

/* `path_main` and `path_thread` only begin routes. `path_l` is called with other arguments, by `path_k` alone. */
path_function *const path_functions[FUNCTIONS] = {
	[PATH_SLEEP] = path_sleep, [PATH_SPIN] = path_spin, [PATH_A] = path_a, [PATH_B] = path_b, [PATH_C] = path_c,
	[PATH_D] = path_d,	   [PATH_E] = path_e,	    [PATH_F] = path_f, [PATH_G] = path_g, [PATH_H] = path_h,
	[PATH_I] = path_i,	   [PATH_J] = path_j,	    [PATH_K] = path_k, [PATH_M] = path_m,
};

#define NAMED(function) {#function, (void (*)(void))function}

static const struct {
	const char *name;
	void (*begin)(void);
} named[FUNCTIONS] = {
	[PATH_MAIN] = NAMED(path_main), [PATH_THREAD] = NAMED(path_thread), [PATH_SLEEP] = NAMED(path_sleep),
	[PATH_SPIN] = NAMED(path_spin), [PATH_A] = NAMED(path_a),	    [PATH_B] = NAMED(path_b),
	[PATH_C] = NAMED(path_c),	[PATH_D] = NAMED(path_d),	    [PATH_E] = NAMED(path_e),
	[PATH_F] = NAMED(path_f),	[PATH_G] = NAMED(path_g),	    [PATH_H] = NAMED(path_h),
	[PATH_I] = NAMED(path_i),	[PATH_J] = NAMED(path_j),	    [PATH_K] = NAMED(path_k),
	[PATH_L] = NAMED(path_l),	[PATH_M] = NAMED(path_m),
};

const char *path_name(enum function function)
{
	return named[function].name;
}

/* The begin of the file in memory, and the end of the section. The linker defines both. */
extern const Elf64_Ehdr __ehdr_start __attribute__((visibility("hidden")));
extern const char __stop_podperf_paths[] __attribute__((visibility("hidden")));

typedef void place_taker(void *to, const char *name, uint64_t begin, uint64_t end);

/* Passes each function with its addresses as the file counts them. */
void podperf_paths_places(place_taker *take, void *to)
{
	uint64_t base = __ehdr_start.e_type == ET_DYN ? (uintptr_t)&__ehdr_start : 0;

	for (unsigned int i = 0; i < FUNCTIONS; i++) {
		uint64_t begin = (uintptr_t)named[i].begin, end = (uintptr_t)__stop_podperf_paths;

		/* The function ends where the next one in memory begins. */
		for (unsigned int other = 0; other < FUNCTIONS; other++) {
			uint64_t next = (uintptr_t)named[other].begin;

			if (next > begin && next < end)
				end = next;
		}
		take(to, named[i].name, begin - base, end - base);
	}
}
