// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Records the system calls of some cgroups for a while: the number of each call, its errors and its times. It is an
 * object of its own, which the agent loads for one recording and unloads at its end, so that there is no hook and no
 * memory without a recording. It has no generation, and shares no map with other programs.
 *
 * The programs are at raw tracepoints: to load them, the agent need not keep the kernel's types in memory.
 */
#include "kernel.h"
#include "recorded_calls.h"

/* True for a recording of all cgroups. */
const volatile bool records_all = false;

/* 0 -> 1 while calls count, written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} recording SEC(".maps");

/* The id of each recorded cgroup, written by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PODPERF_RECORDED_CGROUPS);
	__type(key, __u64);
	__type(value, __u64);
} recorded_cgroups SEC(".maps");

/* The number of a call -> its sums, read by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PODPERF_RECORDED_NUMBERS + 1);
	__type(key, __u32);
	__type(value, struct podperf_recorded_call);
} recorded_calls SEC(".maps");

/* 0 -> the totals, read by the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_recorded_totals);
} recorded_totals SEC(".maps");

struct call_of_task {
	__u64 since_ns; /* 0: the thread is in no call that counts */
	__u32 number;
	__u32 reserved;
};

/* Task -> its call. Only threads of recorded cgroups have one. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call_of_task);
} calls_of_tasks SEC(".maps");

/* One run in so many is timed, as in cpu.bpf.h. */
#define TIMED_EVERY 61

/* The largest errno. Smaller return values are addresses or numbers. */
#define MAX_ERRNO 4095

#if defined(__TARGET_ARCH_x86)
#define SAVED_MODE bpf_core_field_offset(struct pt_regs, cs)
#define IS_64(mode) ((mode) == USER_CS)
#define SAVED_NUMBER(regs) ((__s64)BPF_CORE_READ(regs, orig_ax))
#define RT_SIGRETURN 15
#elif defined(__TARGET_ARCH_arm64)
#define SAVED_MODE bpf_core_field_offset(struct pt_regs, pstate)
#define IS_64(mode) (!((mode)&MODE_32))
#define SAVED_NUMBER(regs) ((__s64)BPF_CORE_READ(regs, syscallno))
#define RT_SIGRETURN 139
#endif

/* Returns true for a call of a 64-bit program. These registers come as a number, so a helper reads them. */
static __always_inline bool has_64_bits(struct pt_regs *regs)
{
	__u8 mode = 0;

	bpf_probe_read_kernel(&mode, sizeof(mode), (void *)regs + SAVED_MODE);
	return IS_64(mode);
}

/* Returns true for `exit` and `exit_group`. 32-bit programs have the numbers of i386 and arm. */
static __always_inline bool never_returns(__u64 number, bool is_64)
{
#if defined(__TARGET_ARCH_x86)
	return is_64 ? number == 60 || number == 231 : number == 1 || number == 252;
#else
	return is_64 ? number == 93 || number == 94 : number == 1 || number == 248;
#endif
}

/* Returns true for `clone`, `fork` and the like. They return 0 in the child that they make, which made no call. */
static __always_inline bool makes_child(__u64 number, bool is_64)
{
	if (number == 435)
		return true;
	if (!is_64)
		return number == 2 || number == 120 || number == 190;
#if defined(__TARGET_ARCH_x86)
	return number == 56 || number == 57 || number == 58;
#else
	return number == 220;
#endif
}

static __always_inline bool is_recorded(void)
{
	__u64 id;

	if (records_all)
		return true;
	id = bpf_get_current_cgroup_id();
	return bpf_map_lookup_elem(&recorded_cgroups, &id);
}

/* Returns the totals of this CPU, or NULL while calls do not count. */
static __always_inline struct podperf_recorded_totals *counting_totals(void)
{
	__u32 at = 0;
	__u64 *counts = bpf_map_lookup_elem(&recording, &at);

	return counts && *(volatile __u64 *)counts ? bpf_map_lookup_elem(&recorded_totals, &at) : NULL;
}

/* Adds to a word. It is atomic: on kernels that preempt programs, another one may come here meanwhile. */
static __always_inline void add(__u64 *word, __u64 more)
{
	__sync_fetch_and_add(word, more);
}

/* Raises a word to a value. It tries again if another program has changed the word meanwhile. */
static __always_inline void raise(__u64 *word, __u64 to)
{
	__u64 was;

#pragma unroll
	for (int tries = 0; tries < 4; tries++) {
		was = *(volatile __u64 *)word;
		if (was >= to || __sync_val_compare_and_swap(word, was, to) == was)
			return;
	}
}

/* Returns the start of a run, or 0 if the run is not timed. */
static __always_inline __u64 begin_run(struct podperf_recorded_totals *totals)
{
	__u32 run = totals->runs;

	add(&totals->runs, 1);
	return run * 2654435769U <= ~0U / TIMED_EVERY ? bpf_ktime_get_ns() : 0;
}

static __always_inline void end_run(struct podperf_recorded_totals *totals, __u64 began)
{
	if (began)
		add(&totals->run_ns, (bpf_ktime_get_ns() - began) * TIMED_EVERY);
}

/* Returns the record of the current task, and makes it if it is new. */
static __always_inline struct call_of_task *make_record(struct podperf_recorded_totals *totals)
{
	struct call_of_task *call;

	call = bpf_task_storage_get(&calls_of_tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!call)
		add(&totals->unnoted, 1);
	return call;
}

static __always_inline void begin_call(struct podperf_recorded_totals *totals, struct pt_regs *regs, __u64 number)
{
	bool is_64 = has_64_bits(regs);
	struct call_of_task *call;

	if (never_returns(number, is_64))
		return;
	call = make_record(totals);
	if (!call)
		return;
	if (call->since_ns)
		add(&totals->unseen_end, 1);
	call->number = is_64 && number < PODPERF_RECORDED_NUMBERS ? number : PODPERF_RECORDED_NUMBERS;
	add(&totals->begun, 1);
	/* The time of this program is not that of the call. */
	call->since_ns = bpf_ktime_get_ns();
}

SEC("raw_tp/sys_enter")
int recorded_sys_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct podperf_recorded_totals *totals = counting_totals();
	__u64 began;

	if (!totals)
		return 0;
	began = begin_run(totals);
	if (is_recorded())
		begin_call(totals, (struct pt_regs *)ctx->args[0], ctx->args[1]);
	end_run(totals, began);
	return 0;
}

static __always_inline void charge_call(__u32 number, __u64 ns, __s64 returned)
{
	struct podperf_recorded_call *sums = bpf_map_lookup_elem(&recorded_calls, &number);

	if (!sums)
		return;
	add(&sums->calls, 1);
	/* The end of a handler of a signal returns a register of the interrupted code. */
	if (returned < 0 && returned >= -MAX_ERRNO && number != RT_SIGRETURN)
		add(&sums->errors, 1);
	add(&sums->ns, ns);
	raise(&sums->max_ns, ns);
	raise(&sums->max_not_ns, ~ns);
}

/*
 * A return to a thread in no call that counts. The first return of a thread belongs to a call that began before the
 * recording or in another cgroup, unless it is the begin of a child. A call that the kernel refuses before its entry
 * has a return only.
 */
static __always_inline void end_other(struct podperf_recorded_totals *totals, bool is_first, struct pt_regs *regs,
				      __s64 returned)
{
	if (!is_first) {
		add(&totals->not_entered, 1);
		return;
	}
	if (make_record(totals) && (returned || !makes_child(SAVED_NUMBER(regs), has_64_bits(regs))))
		add(&totals->began_before, 1);
}

/* Ends a call in the cgroup in which it began: the thread may have moved. */
static __always_inline void end_call(struct podperf_recorded_totals *totals, struct pt_regs *regs, __s64 returned)
{
	struct call_of_task *call = bpf_task_storage_get(&calls_of_tasks, bpf_get_current_task_btf(), NULL, 0);

	if (!call || !call->since_ns) {
		if (is_recorded())
			end_other(totals, !call, regs, returned);
		return;
	}
	charge_call(call->number, bpf_ktime_get_ns() - call->since_ns, returned);
	call->since_ns = 0;
	add(&totals->ended, 1);
}

SEC("raw_tp/sys_exit")
int recorded_sys_exit(struct bpf_raw_tracepoint_args *ctx)
{
	struct podperf_recorded_totals *totals = counting_totals();
	__u64 began;

	if (!totals)
		return 0;
	began = begin_run(totals);
	end_call(totals, (struct pt_regs *)ctx->args[0], ctx->args[1]);
	end_run(totals, began);
	return 0;
}

/* The kernel offers its GPL-only helpers to programs with a GPL licence only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
