// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Measures some system calls from their entry to their return. */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "histograms/observe.bpf.h"
#include "kernel.h"
#include "latencies.bpf.h"
#include "syscalls/syscalls.bpf.h"

/* The programs in the order of sensor.rs. */
enum latencies_program {
	LATENCIES_SYS_EXIT,
	LATENCIES_SYS_ENTER,
	LATENCIES_PROGRAMS,
};

SENSOR_PROGRAMS(latencies, LATENCIES_PROGRAMS)

#define MEASURED_VALUE(name) MEASURED_##name,

/* The histograms of a row, in their order. */
enum measured_call {
	PODPERF_MEASURED_CALLS(MEASURED_VALUE) MEASURED_CALLS,
};

_Static_assert(MEASURED_CALLS <= 16, "the masks");
_Static_assert(sizeof(struct podperf_latencies) == __builtin_offsetof(struct podperf_latencies, read) +
						       MEASURED_CALLS * PODPERF_LATENCY_WORDS * sizeof(__u64),
	       "the order of enum measured_call");

/* The number of a system call -> 1 + enum measured_call; 0: it has no histogram. */
#define MEASURED_PLACE(name) [CALL_NUMBER_##name] = 1 + MEASURED_##name,
const volatile __u8 measured_places[CALL_NUMBERS] = {PODPERF_MEASURED_CALLS(MEASURED_PLACE)};

/* Task -> its measured call. The kernel frees it with the task, so a thread that ends in a call leaves nothing. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct podperf_measured_call);
} latencies_of_tasks SEC(".maps");

/* Returns the call with this number, enum measured_call, or MEASURED_CALLS if it is not measured. */
static __always_inline __u64 measured_call(struct pt_regs *regs, __s64 number)
{
	__u64 place;

	if (number < 0 || number >= CALL_NUMBERS || !is_64(regs))
		return MEASURED_CALLS;
	place = measured_places[number];
	return place && latencies_chosen >> (place - 1) & 1 ? place - 1 : MEASURED_CALLS;
}

/*
 * Returns true if these programs see the end of a call that began so, or have seen it. The generation before this one
 * may have seen the begin. An earlier generation may not: if the one between did not measure the call, its end was
 * missed. While sensors are shed, ends are missed.
 */
static __always_inline bool sees_end_of(struct podperf_measured_call *measured)
{
	return measured->since_ns && measured->since_ns >= orders.sensors_since_ns &&
	       measured->generation + 1 >= generation;
}

static __always_inline void begin_measured(__u64 call)
{
	struct podperf_measured_call *measured =
	    bpf_task_storage_get(&latencies_of_tasks, bpf_get_current_task_btf(), NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!measured) {
		drop(PODPERF_DROP_SENSOR_TABLE);
		return;
	}
	if (measured->generation == generation && sees_end_of(measured))
		drop(LATENCIES_DROP_MISSED_END);
	measured->call = call;
	measured->generation = generation;
	measured->since_ns = bpf_ktime_get_ns();
}

/*
 * Ends a call. One that began as another call does not count. On kernels that preempt programs, another thread may come
 * here meanwhile.
 */
static __always_inline void end_measured(__u64 call)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct podperf_measured_call *measured = bpf_task_storage_get(&latencies_of_tasks, task, NULL, 0);
	struct podperf_latencies *row;
	__u64 since_ns;
	bool is_whole;

	if (!measured || !measured->since_ns)
		return;
	since_ns = measured->since_ns;
	is_whole = measured->call == call && sees_end_of(measured);
	measured->since_ns = 0;
	if (!is_whole)
		return;
	row = latencies_row(cgroup_id(task));
	if (row)
		observe(row->read, call, MEASURED_CALLS, PODPERF_LATENCY_BUCKETS, bpf_ktime_get_ns() - since_ns, true);
}

/* Begins or ends the call with this number. There are as many ends, so both are left out while sensors are shed. */
static __always_inline int begin_or_end(enum latencies_program program, struct pt_regs *regs, __s64 number)
{
	struct podperf_runs *account = latencies_account(program);
	__u64 began, call;

	if (!account || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	began = begin_own_run(account);
	call = measured_call(regs, number);
	if (call < MEASURED_CALLS && program == LATENCIES_SYS_ENTER)
		begin_measured(call);
	else if (call < MEASURED_CALLS)
		end_measured(call);
	end_own_run(account, began);
	return 0;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(latencies_sys_enter, struct pt_regs *regs, long number)
{
	return begin_or_end(LATENCIES_SYS_ENTER, regs, number);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(latencies_sys_exit, struct pt_regs *regs, long returned)
{
	return begin_or_end(LATENCIES_SYS_EXIT, regs, CALL_NUMBER(regs));
}
