/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Walks of stacks: a stack is walked, hashed to an id, and sent once. */
#ifndef PODPERF_WALK_BPF_H
#define PODPERF_WALK_BPF_H

#include "control.bpf.h"
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "hash.h"
#include "kernel.h"
#include "podperf.h"

/* The secret in all ids. The agent sets it: random, and the same in all generations that take over from one another. */
const volatile struct podperf_hash_key hash_key = {.point = 1, .sites = {1, 1, 1, 1, 1, 1, 1}};
/* False: stacks have no user frames, and no walk reads from user space. */
const volatile bool user_frames = true;
/* The number of sets in `stacks_sent`, a power of two, minus one. */
const volatile __u32 sent_mask = 0;

/*
 * Set -> the ids of stacks and wakers that were sent last. The agent removes ids that it has forgotten. The map is an
 * array, since the sampler may be an NMI and writes to it as well, and an array has no lock. Two writers at one moment
 * may lose an id: then its stack or waker is sent once more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_sent);
} stacks_sent SEC(".maps");

/* Records for the agent: stacks, call sites, wakers, long waits. In an NMI the kernel only tries to lock a ring. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} stack_ring SEC(".maps");

/*
 * Buffers for walked stacks, which are too large for the BPF stack. There are three, since the sampler may interrupt
 * the other programs, and these may interrupt the iterators.
 */
struct walk_buffer {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_stack);
};
struct walk_buffer walk_buffer SEC(".maps");
struct walk_buffer sampler_buffer SEC(".maps");
struct walk_buffer iterator_buffer SEC(".maps");

/*
 * Limits of code addresses: on any kernel, a program has code neither below LOWEST_CODE nor from 2^CODE_SHIFT above it.
 */
#define LOWEST_CODE 0x1000ULL
#define CODE_SHIFT 56

#define FRAMES_BYTES (PODPERF_MAX_FRAMES * sizeof(__u64))

/*
 * Sends `record` unless it was sent before. The agent is not woken up: it reads the ring several times a second, and a
 * wake-up here would cost more than the walk.
 */
static __always_inline void send_once(__u64 id, void *record, __u64 bytes)
{
	__u32 set = (id >> 1) & sent_mask;
	struct podperf_sent *sent = bpf_map_lookup_elem(&stacks_sent, &set);

	if (!sent)
		return;
#pragma unroll
	for (int i = 0; i < PODPERF_SENT_WAYS; i++) {
		if (sent->ids[i] == id)
			return;
	}
	if (bpf_ringbuf_output(&stack_ring, record, bytes, BPF_RB_NO_WAKEUP)) {
		drop(PODPERF_DROP_STACK_RING);
		return;
	}
#pragma unroll
	for (int i = PODPERF_SENT_WAYS - 1; i > 0; i--)
		sent->ids[i] = sent->ids[i - 1];
	sent->ids[0] = id;
}

/*
 * Hashes a stack of `user` and `kernel` bytes of frames, and sends it if it is new. Returns its id. Where code keeps no
 * frame pointers, a walk may end in a value of the program that is no address. Such a value is replaced: it is no part
 * of the stack, would make a new stack each time that it changes, and may be private. A stack without its user frames
 * (`cut`) is another one than the stack of a task that has none. While no user frames are taken, a sample of code in
 * user space has no frames. The verifier checks this function separately.
 */
__noinline __u64 take_stack(struct podperf_stack *stack, __u64 user, __u64 kernel, __u32 tgid, __u32 cut)
{
	__u64 frames, in_user, frame, outside, hash;

	if (!stack || user > FRAMES_BYTES || kernel > FRAMES_BYTES)
		return 0;
	if (user_frames && !user && !kernel) {
		drop(PODPERF_DROP_STACK_WALK);
		return 0;
	}
	in_user = user / sizeof(__u64);
	frames = in_user + kernel / sizeof(__u64);
	/* The first word holds the lengths: so lists of different lengths are never equal. It is 0 without frames. */
	hash = (__u64)cut << 32 | user << 16 | kernel;
	for (__u32 i = 0; i < 2 * PODPERF_MAX_FRAMES; i++) {
		if (i >= frames)
			break;
		frame = stack->frames[i];
		/* There is no branch here, since it would double the states of the verifier in each round. */
		outside = (frame - LOWEST_CODE) >> CODE_SHIFT;
		outside = ((outside | -outside) & (i - in_user)) >> 63;
		asm volatile("" : "+r"(outside));
		frame = (frame & (outside - 1)) | outside * PODPERF_NO_ADDRESS;
		stack->frames[i] = frame;
		hash = hash_word(hash, frame, hash_key.point);
	}
	hash = hash_id(hash); /* odd: a stack */
	stack->record = PODPERF_RECORD_STACK;
	stack->user_frames = user / sizeof(__u64);
	stack->kernel_frames = kernel / sizeof(__u64);
	stack->id = hash;
	stack->tgid = tgid;
	stack->cut = cut;
	send_once(hash, stack, offsetof(struct podperf_stack, frames) + user + kernel);
	return hash;
}

/* The address range of the function that switches tasks; 0: unknown. */
const volatile __u64 schedule_begin = 0;
const volatile __u64 schedule_end = 0;

/*
 * Number of frames above the scheduler's in a walk by its sensor: the program, and its callers. These frames change
 * when another tracer of the switch comes or goes, but the stack must stay the same.
 */
static __u32 sensor_frames;
#define MOST_SENSOR_FRAMES 12

static __always_inline bool is_scheduler(__u64 address)
{
	return address >= schedule_begin && address < schedule_end;
}

/*
 * Returns the number of frames above the scheduler's in `bytes` of kernel frames, or 0 if the scheduler is not there.
 * The verifier checks this function separately.
 */
__noinline __u32 frames_above_scheduler(struct podperf_stack *stack, __u64 user, __u64 bytes)
{
	if (!stack || user > FRAMES_BYTES || bytes > FRAMES_BYTES)
		return 0;
	for (__u32 i = 0; i < MOST_SENSOR_FRAMES; i++) {
		if (i * sizeof(__u64) >= bytes)
			break;
		if (is_scheduler(stack->frames[user / sizeof(__u64) + i]))
			return i;
	}
	return 0;
}

/*
 * Walks the kernel's part of the stack, behind `user` bytes of user frames. If `by_scheduler` is set, the part begins
 * at the scheduler. Returns its size in bytes, or a negative error.
 */
static __always_inline __s64 walk_kernel(void *ctx, struct podperf_stack *stack, __u64 user, bool by_scheduler)
{
	void *to = (void *)stack->frames + user;
	__u32 above = sensor_frames & BPF_F_SKIP_FIELD_MASK;
	__s64 bytes;

	if (!by_scheduler || !schedule_begin)
		return bpf_get_stack(ctx, to, FRAMES_BYTES, 0);
	if (above) {
		bytes = bpf_get_stack(ctx, to, FRAMES_BYTES, above);
		if (bytes > 0 && is_scheduler(*(__u64 *)to))
			return bytes;
	}
	bytes = bpf_get_stack(ctx, to, FRAMES_BYTES, 0);
	above = bytes > 0 ? frames_above_scheduler(stack, user, bytes) : 0;
	if (!above)
		return bytes;
	sensor_frames = above;
	return bpf_get_stack(ctx, to, FRAMES_BYTES, above & BPF_F_SKIP_FIELD_MASK);
}

/* Returns true if stacks of waits lack user frames that they would have, to cost less. */
static __always_inline bool user_frames_are_shed(void)
{
	return user_frames && is_shed(PODPERF_SHED_USER_FRAMES);
}

/*
 * Walks the stack of the current task into `stack`, and sends it if it is new. Returns its id, or 0 if there is none.
 * While user frames are shed, the stack of a wait has none. A walk by the scheduler's sensor is one of a wait.
 */
static __always_inline __u64 walk_to(void *ctx, struct podperf_stack *stack, bool by_scheduler)
{
	__u32 cut = by_scheduler && user_frames_are_shed() ? PODPERF_CUT_SHED : PODPERF_CUT_NOT;
	__s64 bytes = 0;
	__u64 user, kernel;

	if (user_frames && !cut)
		bytes = bpf_get_stack(ctx, stack->frames, FRAMES_BYTES, BPF_F_USER_STACK);
	user = bytes > 0 ? bytes : 0;
	if (user > FRAMES_BYTES)
		return 0;
	bytes = walk_kernel(ctx, stack, user, by_scheduler);
	kernel = bytes > 0 ? bytes : 0;
	/* Only a walk of code in user space finds no frames and does not fail. A thread that waits is in the kernel. */
	if (!user_frames && (bytes < 0 || (!kernel && by_scheduler))) {
		drop(PODPERF_DROP_STACK_WALK);
		return 0;
	}
	return take_stack(stack, user, kernel, bpf_get_current_pid_tgid() >> 32, cut);
}

/*
 * Reads the kernel's part of the stack of `task`, which sleeps, and sends it if it is new. The part begins below the
 * scheduler's functions. Returns its id, or 0 if there is none. The caller cannot be preempted.
 */
static __always_inline __u64 look_at(struct task_struct *task, struct podperf_stack *stack)
{
	__s64 bytes = bpf_get_task_stack(task, stack->frames, FRAMES_BYTES, 0);

	return bytes > 0 ? take_stack(stack, 0, bytes, task->tgid, PODPERF_CUT_NOT) : 0;
}

/*
 * Does the same for an iterator, which can be preempted. The kernel walks the stack into a buffer of this CPU, and
 * releases the buffer before it copies the frames. A task that runs in between may leave its own stack there. So the
 * frames are used only if this CPU has not switched tasks meanwhile, by the number of runs of `sched_switch`. Otherwise
 * the next reading looks again.
 */
static __always_inline __u64 look_preemptibly(struct task_struct *task, struct podperf_stack *stack)
{
	volatile struct podperf_cpu *cpu = this_cpu();
	__u64 switches;
	__s64 bytes;

	if (!cpu)
		return 0;
	switches = cpu->programs[PODPERF_PROGRAM_SCHED_SWITCH].runs;
	bytes = bpf_get_task_stack(task, stack->frames, FRAMES_BYTES, 0);
	if (bytes <= 0 || cpu->programs[PODPERF_PROGRAM_SCHED_SWITCH].runs != switches)
		return 0;
	return take_stack(stack, 0, bytes, task->tgid, PODPERF_CUT_NOT);
}

static __noinline __u64 walk_stack(void *ctx, bool by_scheduler)
{
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);

	return stack ? walk_to(ctx, stack, by_scheduler) : 0;
}

#endif
