// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts system calls and their errors when they return. One hook has all that is needed: the kernel keeps the number
 * of the call in the saved registers. There is no hook at the entry, no clock, and no hash table unless namespaces are
 * chosen.
 */
#include "calls.bpf.h"
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "kernel.h"
#include "syscalls/syscalls.bpf.h"

/* The program, as in sensor.rs. */
enum calls_program {
	CALLS_SYS_EXIT,
	CALLS_PROGRAMS,
};

SENSOR_PROGRAMS(calls, CALLS_PROGRAMS)

#define COUNTED_VALUE(name, x86, arm64) COUNTED_##name,
#define ERRNO_VALUE(name, number) ERRNO_##name,
#define ERROR_VALUE(call, name) ERROR_##call##_##name,

/* The words of calls in a row, in their order. */
enum counted_call {
	COUNTED_OTHER,
	PODPERF_COUNTED_OF_BOTH(COUNTED_VALUE) PODPERF_COUNTED_OF_X86(COUNTED_VALUE) COUNTED_CALLS,
};

/* The words of errors in a row, in their order: first those of any call that has no word of its own for its errno. */
enum counted_error {
	ERRNO_OTHER,
	PODPERF_ERRNOS(ERRNO_VALUE) ERRNOS,
	BEFORE_ERRORS = ERRNOS - 1,
	PODPERF_ERRORS(ERROR_VALUE) COUNTED_ERRORS,
};

/* The number of places for errnos in `error_places`. */
#define ERRNO_PLACES 64
_Static_assert(COUNTED_CALLS <= 256 && COUNTED_ERRORS <= 256 && ERRNOS <= ERRNO_PLACES, "the masks");
_Static_assert(sizeof(struct podperf_calls) ==
		   __builtin_offsetof(struct podperf_calls, other) + (COUNTED_CALLS + COUNTED_ERRORS) * sizeof(__u64),
	       "the order of the enumerations");
_Static_assert(__builtin_offsetof(struct podperf_calls, other_other) ==
		   __builtin_offsetof(struct podperf_calls, other) + COUNTED_CALLS * sizeof(__u64),
	       "the order of enum counted_call");

/* The number of a system call -> enum counted_call. */
#if defined(__TARGET_ARCH_x86)
#define COUNTED_PLACE(name, x86, arm64) [x86] = COUNTED_##name,
#define COUNTED_HERE PODPERF_COUNTED_OF_BOTH(COUNTED_PLACE) PODPERF_COUNTED_OF_X86(COUNTED_PLACE)
#elif defined(__TARGET_ARCH_arm64)
#define COUNTED_PLACE(name, x86, arm64) [arm64] = COUNTED_##name,
#define COUNTED_HERE PODPERF_COUNTED_OF_BOTH(COUNTED_PLACE)
#endif
const volatile __u8 counted_places[CALL_NUMBERS] = {COUNTED_HERE};

/* Errnos from here on are "other". */
#define ERRNO_NUMBERS 256
/* The largest errno. Smaller return values are addresses or numbers. */
#define MAX_ERRNO 4095

/* An errno -> the word of calls that have none of their own for it. */
#define ERRNO_PLACE(name, number) [number] = ERRNO_##name,
const volatile __u8 errno_places[ERRNO_NUMBERS] = {PODPERF_ERRNOS(ERRNO_PLACE)};

/* enum counted_call, and a value of `errno_places` -> the word of this error; 0 if it has none of its own. */
#define ERROR_PLACE(call, name) [COUNTED_##call][ERRNO_##name] = ERROR_##call##_##name,
const volatile __u8 error_places[COUNTED_CALLS][ERRNO_PLACES] = {PODPERF_ERRORS(ERROR_PLACE)};

/*
 * The kernel's own errnos for a call that a signal interrupts: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and
 * ERESTART_RESTARTBLOCK in include/linux/errno.h. After this hook the kernel makes them EINTR, or begins the call
 * again.
 */
#define FIRST_RESTART 512
#define LAST_RESTART 516
#define EINTR_NUMBER 4

/* Returns `value`, which is at most `most`, one less than a power of two. The verifier then knows the bound. */
#define BOUNDED(value, most)                                 \
	({                                                   \
		__u64 value_ = (value);                      \
		asm volatile("%0 &= " #most : "+r"(value_)); \
		value_;                                      \
	})

/* Returns the system call that returns, enum counted_call. */
static __always_inline __u64 returning_call(struct pt_regs *regs)
{
	__s64 number = CALL_NUMBER(regs);

	/* The kernel has removed the number of the call that ends the handler of a signal. */
	if (number < 0)
		return COUNTED_rt_sigreturn;
	if (number >= CALL_NUMBERS || !is_64(regs))
		return COUNTED_OTHER;
	return counted_places[number];
}

/* Returns true for calls that return 0 in the child that they make, which made no call. */
static __always_inline bool makes_child(__u64 call)
{
	return call == COUNTED_clone || call == COUNTED_clone3 || call == COUNTED_fork || call == COUNTED_vfork;
}

/* Returns the word of an error of this call, enum counted_error. */
static __always_inline __u64 error_of(__u64 call, __u64 error)
{
	__u64 place, own;

	if (error >= FIRST_RESTART && error <= LAST_RESTART)
		error = EINTR_NUMBER;
	if (error >= ERRNO_NUMBERS)
		return ERRNO_OTHER;
	place = BOUNDED(errno_places[BOUNDED(error, 255)], 63);
	call = BOUNDED(call, 255);
	if (call >= COUNTED_CALLS)
		return place;
	own = error_places[call][place];
	return own ? own : place;
}

/* Adds 1 to a word. The addition is atomic: on kernels that preempt programs, another one may come here meanwhile. */
static __always_inline void count_one(__u64 *words, __u64 at, __u64 number)
{
	at = BOUNDED(at, 255);
	if (at < number)
		__sync_fetch_and_add(&words[at], 1);
}

static __always_inline void count_call(struct pt_regs *regs, long returned)
{
	__u64 call = returning_call(regs), error = -returned, cgroup = cgroup_id(bpf_get_current_task_btf());
	/* The end of a handler returns a register of the interrupted code. */
	bool has_failed = error && error <= MAX_ERRNO && call != COUNTED_rt_sigreturn;
	struct podperf_calls *row;

	if (!returned && makes_child(call))
		return;
	if ((calls_errors_only && !has_failed) || !calls_chose(cgroup))
		return;
	row = calls_row(cgroup);
	if (!row)
		return;
	if (!calls_errors_only)
		count_one(&row->other, call, COUNTED_CALLS);
	if (has_failed)
		count_one(&row->other_other, error_of(call, error), COUNTED_ERRORS);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(calls_sys_exit, struct pt_regs *regs, long returned)
{
	struct podperf_runs *account = calls_account(CALLS_SYS_EXIT);
	__u64 began;

	if (!account || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	began = begin_own_run(account);
	count_call(regs, returned);
	end_own_run(account, began);
	return 0;
}
