/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Stacks are walked, hashed to an id, and sent once. */
#ifndef PODPERF_WALK_BPF_H
#define PODPERF_WALK_BPF_H

#include "drops.bpf.h"
#include "hash.h"
#include "kernel.h"
#include "podperf.h"

/* Set by the agent: random, and the same in all generations that take over from one another. */
const volatile struct podperf_hash_key hash_key = {.point = 1, .sites = {1, 1, 1, 1, 1, 1, 1}};
/* The number of sets in `stacks_sent`, a power of two, less one. */
const volatile __u32 sent_mask = 0;

/*
 * Set -> the ids that were sent last, of stacks and wakers. The agent removes ids that it has forgotten. An array, since the
 * sampler may be an NMI and writes to it as well, and an array has no lock. Two writers at one moment may lose an id; its stack
 * or waker is then sent once more.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_sent);
} stacks_sent SEC(".maps");

/* Records for the agent: stacks, places, wakers, long waits. In an NMI the kernel only tries to lock a ring. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} stack_ring SEC(".maps");

/* Where a stack is walked to: too large for the BPF stack. The sampler may interrupt the other programs, and they the iterators. */
struct walk_buffer {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_stack);
};
struct walk_buffer walk_buffer SEC(".maps");
struct walk_buffer sampler_buffer SEC(".maps");
struct walk_buffer iterator_buffer SEC(".maps");

/* No code of a program is below the first, nor above it by as much as this shift leaves, on any kernel. */
#define LOWEST_CODE 0x1000ULL
#define CODE_SHIFT 56

#define FRAMES_BYTES (PODPERF_MAX_FRAMES * sizeof(__u64))

/* Sends `record` unless it was sent before. No wake-up: the agent looks several times a second, and waking it here would
 * cost more than the walk. */
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

/* Hashes a stack of so many bytes of frames and sends it, if it is new. Where code keeps no frame pointers, a walk may end
 * in what is no address but a value of the program's: it is no part of the stack, would make a new one each time that it
 * changes, and is nobody's business. Verified by itself. */
__noinline __u64 take_stack(struct podperf_stack *stack, __u64 user, __u64 kernel, __u32 tgid)
{
	__u64 frames, in_user, frame, outside, hash;

	if (!stack || user > FRAMES_BYTES || kernel > FRAMES_BYTES)
		return 0;
	if (!user && !kernel) {
		drop(PODPERF_DROP_STACK_WALK);
		return 0;
	}
	in_user = user / sizeof(__u64);
	frames = in_user + kernel / sizeof(__u64);
	/* The first word holds the lengths, and is not 0: so lists of different lengths are never the same. */
	hash = user << 16 | kernel;
	for (__u32 i = 0; i < 2 * PODPERF_MAX_FRAMES; i++) {
		if (i >= frames)
			break;
		frame = stack->frames[i];
		/* Without a branch, which would make two states of the verifier's of each round. */
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
	send_once(hash, stack, offsetof(struct podperf_stack, frames) + user + kernel);
	return hash;
}

/* Where the function is that switches tasks; 0: not known. */
const volatile __u64 schedule_begin = 0;
const volatile __u64 schedule_end = 0;

/* How many frames are above the scheduler's in a walk by its sensor: the program, and what calls it. They change when
 * another tracer of the switch comes or goes, which must not change the stack. */
static __u32 sensor_frames;
#define MOST_SENSOR_FRAMES 8

static __always_inline bool is_scheduler(__u64 address)
{
	return address >= schedule_begin && address < schedule_end;
}

/* How many of `bytes` of kernel frames are above the scheduler's; 0: it is not there. Verified by itself. */
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

/* The kernel's part, after `user` bytes of the other; from the scheduler on where the walk is `by_scheduler`. Bytes. */
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

/* The stack of the current task, walked to `stack` and sent, if it is new; 0 when there is none. */
static __always_inline __u64 walk_to(void *ctx, struct podperf_stack *stack, bool by_scheduler)
{
	__s64 bytes;
	__u64 user, kernel;

	bytes = bpf_get_stack(ctx, stack->frames, FRAMES_BYTES, BPF_F_USER_STACK);
	user = bytes > 0 ? bytes : 0;
	if (user > FRAMES_BYTES)
		return 0;
	bytes = walk_kernel(ctx, stack, user, by_scheduler);
	kernel = bytes > 0 ? bytes : 0;
	return take_stack(stack, user, kernel, bpf_get_current_pid_tgid() >> 32);
}

/* The kernel's part of the stack of `task`, which sleeps; sent, if it is new. It begins below the scheduler's functions. 0: there
 * is none. */
static __always_inline __u64 look_at(struct task_struct *task, struct podperf_stack *stack)
{
	__s64 bytes = bpf_get_task_stack(task, stack->frames, FRAMES_BYTES, 0);

	return bytes > 0 ? take_stack(stack, 0, bytes, task->tgid) : 0;
}

static __noinline __u64 walk_stack(void *ctx, bool by_scheduler)
{
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);

	return stack ? walk_to(ctx, stack, by_scheduler) : 0;
}

#endif
