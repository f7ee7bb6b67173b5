// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Measures calls of functions that the configuration or a recording names. The agent attaches both programs to each of
 * them, with a cookie that says which function it is: as kprobe and kretprobe, or as uprobe and uretprobe. Both are of
 * one kind of program.
 *
 * If the kernel itself calls a function while it changes a hash table, the kernel refuses that table to the program,
 * and the call counts as a drop.
 */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "drops.bpf.h"
#include "functions.bpf.h"
#include "histograms/observe.bpf.h"
#include "kernel.h"
#include "tasks.bpf.h"

/* The programs in the order of sensor.rs. */
enum functions_program {
	FUNCTIONS_END,
	FUNCTIONS_BEGIN,
	FUNCTIONS_PROGRAMS,
};

SENSOR_PROGRAMS(functions, FUNCTIONS_PROGRAMS)

/* Returns true if the current call counts. An interrupt has a stack of its own; its calls are not the task's. */
static __always_inline bool is_call_of(struct task_struct *task, __u64 cookie, __u64 stack)
{
	return task->pid && (!(cookie & PODPERF_FUNCTION_OF_KERNEL) || is_on_stack_of(task, (void *)stack));
}

/* Returns the place of the function in the row. */
static __always_inline __u32 function_of(__u64 cookie)
{
	return cookie & (PODPERF_FUNCTIONS - 1);
}

/*
 * Returns true if a call that begins at `stack` shows that the end of an earlier call was missed. At the same place,
 * two probes of one file may report the same call; a function of the kernel has one probe.
 */
static __always_inline bool misses_end(struct podperf_call *earlier, __u64 cookie, __u64 stack)
{
	return stack > earlier->stack || cookie & PODPERF_FUNCTION_OF_KERNEL;
}

/* Returns the number of the recording that borrows the place; 0 for a function of the configuration. */
static __always_inline __u32 recording_of(__u64 cookie)
{
	return cookie >> PODPERF_RECORDING_SHIFT & PODPERF_LAST_RECORDING;
}

/*
 * Returns the program that a thread runs, with the recording: what an earlier recording left in its place is as a call
 * of another program.
 */
static __always_inline __u32 program_of_lent(struct task_struct *task, __u64 cookie)
{
	return (__u32)task->self_exec_id << PODPERF_RECORDING_SHIFT | recording_of(cookie);
}

/*
 * Begins a call. Stacks grow downwards, so a call within a call of the same function has a lower stack pointer, and is
 * part of the outer call. A call from the same place or from further up takes the place of the earlier call, and so
 * does a call in another program: a thread does not return to the program that it has replaced.
 */
static __always_inline void begin_call(struct task_struct *task, __u64 cookie, __u64 stack)
{
	__u64 key = key_of_call(task->pid, function_of(cookie));
	struct podperf_call *outer = bpf_map_lookup_elem(&functions_calls, &key), call = {};

	call.program = task->self_exec_id;
	if (outer) {
		if (outer->program == call.program) {
			if (stack < outer->stack)
				return;
			if (misses_end(outer, cookie, stack))
				drop(FUNCTIONS_DROP_MISSED_END);
		}
		forget_call(key, outer);
	}
	/* While sensors are shed, no call begins; those that have begun end as always. */
	if (is_shed(PODPERF_SHED_SENSORS))
		return;
	call.stack = stack;
	call.share = sensor_share(cgroup_id(task));
	call.since_ns = bpf_ktime_get_ns();
	if (!take_share(&functions_shares, &functions_calls, call.share) ||
	    bpf_map_update_elem(&functions_calls, &key, &call, BPF_NOEXIST)) {
		drop(PODPERF_DROP_SENSOR_TABLE);
		give_share(&functions_shares, call.share);
	}
}

/* Begins a call of a function of a recording, as `begin_call` does. */
static __always_inline void begin_lent_call(struct task_struct *task, __u64 cookie, __u64 stack)
{
	__u64 key = key_of_call(task->pid, function_of(cookie));
	struct podperf_call *outer = bpf_map_lookup_elem(&functions_lent, &key), call = {};

	call.program = program_of_lent(task, cookie);
	if (outer && outer->program == call.program) {
		if (stack < outer->stack)
			return;
		if (misses_end(outer, cookie, stack))
			drop(FUNCTIONS_DROP_MISSED_END);
	}
	if (is_shed(PODPERF_SHED_SENSORS)) {
		if (outer)
			bpf_map_delete_elem(&functions_lent, &key);
		return;
	}
	call.stack = stack;
	call.since_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&functions_lent, &key, &call, BPF_ANY))
		drop(PODPERF_DROP_SENSOR_TABLE);
}

/* Counts a begin of a function of a recording. */
static __always_inline void count_begin(__u64 cookie)
{
	__u32 key = function_of(cookie);
	__u64 *begun = bpf_map_lookup_elem(&functions_begun, &key);

	if (begun)
		__sync_fetch_and_add(begun, 1);
}

SEC("kprobe")
int functions_begin(struct pt_regs *ctx)
{
	struct podperf_runs *account = functions_account(FUNCTIONS_BEGIN);
	struct task_struct *current = bpf_get_current_task_btf();
	__u64 cookie, stack = ctx->sp, began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	cookie = bpf_get_attach_cookie(ctx);
	if (recording_of(cookie))
		count_begin(cookie);
	if (is_call_of(current, cookie, stack)) {
		if (recording_of(cookie))
			begin_lent_call(current, cookie, stack);
		else
			begin_call(current, cookie, stack);
	}
	end_own_run(account, began);
	return 0;
}

/*
 * Returns true if a call that ends at `stack` is a call within `outer`. On x86-64 a return takes the return address off
 * the stack; arm64 has it in a register.
 */
static __always_inline bool ends_within(struct podperf_call *outer, __u64 stack)
{
#if defined(__TARGET_ARCH_x86)
	return stack <= outer->stack;
#else
	return stack < outer->stack;
#endif
}

/*
 * Removes the call that ends, and returns the time of its begin. Returns 0 for a call whose begin was not seen, and for
 * a call within a call.
 */
static __always_inline __u64 take_call(struct task_struct *task, __u64 cookie, __u64 stack)
{
	__u64 key = key_of_call(task->pid, function_of(cookie)), since_ns;
	struct podperf_call *call = bpf_map_lookup_elem(&functions_calls, &key);

	if (!call || ends_within(call, stack))
		return 0;
	since_ns = call->since_ns;
	forget_call(key, call);
	return since_ns;
}

/* Does the same for a function of a recording. The call of another recording is none of this one. */
static __always_inline __u64 take_lent_call(struct task_struct *task, __u64 cookie, __u64 stack)
{
	__u64 key = key_of_call(task->pid, function_of(cookie)), since_ns;
	struct podperf_call *call = bpf_map_lookup_elem(&functions_lent, &key);

	if (!call || call->program != program_of_lent(task, cookie) || ends_within(call, stack))
		return 0;
	since_ns = call->since_ns;
	bpf_map_delete_elem(&functions_lent, &key);
	return since_ns;
}

/* Ends a call, and counts it. Threads that call functions of programs may preempt one another here. */
static __always_inline void end_call(struct task_struct *task, __u64 cookie, __u64 stack)
{
	__u64 now_ns = bpf_ktime_get_ns(), since_ns;
	struct podperf_functions *row;

	since_ns = recording_of(cookie) ? take_lent_call(task, cookie, stack) : take_call(task, cookie, stack);
	if (!since_ns)
		return;
	row = functions_row(cgroup_id(task));
	if (row)
		observe(row->first, function_of(cookie), PODPERF_FUNCTIONS, PODPERF_HISTOGRAM_BUCKETS,
			now_ns - since_ns, true);
}

SEC("kretprobe")
int functions_end(struct pt_regs *ctx)
{
	struct podperf_runs *account = functions_account(FUNCTIONS_END);
	struct task_struct *current = bpf_get_current_task_btf();
	__u64 cookie, stack = ctx->sp, began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	cookie = bpf_get_attach_cookie(ctx);
	if (is_call_of(current, cookie, stack))
		end_call(current, cookie, stack);
	end_own_run(account, began);
	return 0;
}
