/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Copies of user stacks. Most code keeps no frame pointers, so the kernel cannot walk its stack. The agent can, by the
 * unwind tables of the files, from the registers and the part of the stack that is copied here. It answers with a
 * recipe: where on the stack the return addresses are, and their hash. With the recipe, a later wait of any thread of
 * the process proves the same stack by a few loads, and is not copied again.
 */
#ifndef PODPERF_COPIES_BPF_H
#define PODPERF_COPIES_BPF_H

#include "copies.h"
#include "hash.h"
#include "kernel.h"
#include "podperf.h"
#include "walk.bpf.h"

/* True if user stacks are copied for the agent; false if the kernel walks them by frame pointers. */
const volatile bool copies_enabled = false;

/* Copies for the agent. It reads them 6 to 100 times a second without being woken up. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, PODPERF_COPY_RING);
} copy_ring SEC(".maps");

/*
 * Buffers for copies, one for each CPU. There are two maps, since the sampler may interrupt the other programs. They
 * are no per-CPU arrays, which would take their memory also if nothing is copied.
 */
struct copy_buffer {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_copy);
};
struct copy_buffer copy_buffer SEC(".maps");
struct copy_buffer sampler_copy SEC(".maps");

/* Path -> the pages that the agent needs to unwind its stack. The agent writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_copy_pages);
} copy_pages SEC(".maps");

/*
 * Path, plus twice the number of the recipe (from 0 to PODPERF_RECIPES - 1) -> a recipe. The agent writes it. A path
 * has several recipes if threads wait there on several stacks. No number below that of a recipe is left out.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_recipe);
} recipes SEC(".maps");

/*
 * The id of a copy -> the id of its stack. The agent writes it. A thread that sleeps for long is thus charged under its
 * stack, which it may share with many other threads.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} copied_stacks SEC(".maps");

/*
 * The most words that one wait reads alone, see recipe_words: those of two deep stacks of a path that differ in their
 * outermost calls only. A program may have more of them, and pays with copies, for which it has a budget.
 */
#define MOST_FAR_WORDS (2 * PODPERF_MAX_FRAMES)

/* The words of the stack that recipes are compared with. */
struct recipe_words {
	__u64 word[PODPERF_RECIPE_NEAR];
	__u32 have; /* number of words that were read at once */
	__u32 far;  /* number of other words that were read */
	__u64 name; /* hash of the path and of the words that were compared last; see ANY_STACK */
};
/* One for each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct recipe_words);
} recipe_words SEC(".maps");

/* The largest part of a stack that is looked at, in bytes above the stack pointer. */
#define STACK_SPAN ((__u64)PODPERF_COPY_SPAN * PODPERF_PAGE)

/*
 * Returns the end of the stack above `sp`. The main thread's stack ends where the arguments begin. The C libraries
 * place the data of other threads on top of their stacks: on x86-64, thread-local variables below the thread pointer.
 * Memory above the end is not part of the stack, and may be secret. The end of other stacks, such as those of
 * goroutines, is not known.
 */
static __always_inline __u64 stack_end(struct task_struct *task, __u64 sp)
{
	__u64 end = sp + STACK_SPAN, main = task->mm->start_stack, thread = thread_pointer(task);

	if (main > sp && main < end)
		end = main;
	if (thread > sp && thread < end)
		end = thread;
	return end;
}

/* Number of pages above the first one that are copied from the stack pointer up; the others are copied at the end. */
#define PAGES_ABOVE 2

/*
 * Copies the page that `sp` is in, from the red zone on, and then the wanted pages, up to `end`. Without `wanted`, it
 * copies the next pages up to one that is not in memory, and the last ones before `end`: large frames in between have
 * pages that were never touched. Sets the copied pages, and returns the number of bytes of `copy->stack` in use. The
 * verifier checks this function separately.
 */
__noinline __u32 copy_the_pages(struct podperf_copy *copy, struct podperf_copy_pages *wanted, __u64 sp, __u64 end)
{
	__u64 skip = sp & (PODPERF_PAGE - 1), base = sp - skip, size, top, last = 0;
	__u32 used, copied = 0;
	bool has_hole = false;

	if (!copy)
		return 0;
	copy->pages = 0;
	if (end <= sp)
		return 0;
	top = (end - 1 - base) / PODPERF_PAGE;
	/* The part of the red zone in the page before is left out: another read may fail. */
	skip = skip > PODPERF_RED_ZONE ? skip - PODPERF_RED_ZONE : 0;
	/* Hides the relations of these values from the compiler, which would remove the masks. */
	asm volatile("" : "+r"(skip));
	skip &= PODPERF_PAGE - 1;
	size = PODPERF_PAGE - skip;
	if (size > end - base - skip)
		size = end - base - skip;
	asm volatile("" : "+r"(size));
	size &= 2 * PODPERF_PAGE - 1;
	if (size > PODPERF_PAGE || bpf_probe_read_user(copy->stack + skip, size, (void *)(base + skip)))
		return 0;
	used = skip + size;
	for (__u32 i = 0; i < PODPERF_COPY_PAGES - 1; i++) {
		__u64 page = i + 1, from;

		if (wanted)
			page = wanted->page[i];
		else if (i >= PAGES_ABOVE)
			page = top + i >= PODPERF_COPY_PAGES - 2 ? top + i - (PODPERF_COPY_PAGES - 2) : 0;
		else if (has_hole)
			continue;
		from = base + page * PODPERF_PAGE;
		if (page <= last || page >= PODPERF_COPY_SPAN || from >= end)
			continue;
		size = PODPERF_PAGE;
		if (size > end - from)
			size = end - from;
		asm volatile("" : "+r"(size));
		size &= 2 * PODPERF_PAGE - 1;
		if (copied >= PODPERF_COPY_PAGES - 1 || size > PODPERF_PAGE)
			break;
		if (bpf_probe_read_user(copy->stack + (copied + 1) * PODPERF_PAGE, size, (void *)from)) {
			has_hole = true;
			continue;
		}
		copy->page[copied++] = page;
		last = page;
		used = copied * PODPERF_PAGE + size;
	}
	copy->pages = copied + 1;
	return used;
}

/* Returns true if the stack of `task` can be copied: it has memory and is a program of 64 bits. */
static __always_inline bool has_copy(struct task_struct *task)
{
	return copies_enabled && task->mm && !(task->flags & PF_OF_KERNEL) &&
	       is_64((struct pt_regs *)bpf_task_pt_regs(task));
}

/*
 * The bytes of the ring that may be in use when a copy is made. Copies of waits leave the rest to samples on the CPU,
 * whose number is limited. A cgroup that has spent its share leaves more, so that others find room for theirs.
 */
#define RING_FOR_ALL (PODPERF_COPY_RING - 2 * sizeof(struct podperf_copy))
#define RING_FOR_SHARES (PODPERF_COPY_RING / 8 * 7)
#define RING_BEYOND_SHARES (PODPERF_COPY_RING / 8 * 5)

/*
 * Copies the user stack of `task`, which is current, and sends the copy. `copy` has the key of what the stack is for.
 * Returns false if it could not be sent. If no page could be read, the registers alone are sent. Nothing is copied while
 * more than `most` bytes of the ring are used.
 */
static __always_inline bool send_copy(struct task_struct *task, struct podperf_copy *copy,
				      struct podperf_copy_pages *wanted, __u64 most)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 sp = regs->sp, end;
	__u32 used;

	if (bpf_ringbuf_query(&copy_ring, BPF_RB_AVAIL_DATA) > most)
		goto full;
	copy->code[0] = task->mm->start_code;
	copy->code[1] = task->mm->end_code;
	copy->code[2] = task->mm->start_stack;
	copy_registers(copy->registers, regs);
	end = stack_end(task, sp);
	/* Where the end is not known, the last pages before it are not those of a stack: the next ones are copied. */
	if (!wanted && end == sp + STACK_SPAN)
		end = (sp & ~(__u64)(PODPERF_PAGE - 1)) + PODPERF_COPY_PAGES * PODPERF_PAGE;
	used = copy_the_pages(copy, wanted, sp, end);
	asm volatile("" : "+r"(used));
	if (used > sizeof(copy->stack))
		return false;
	if (!bpf_ringbuf_output(&copy_ring, copy, offsetof(struct podperf_copy, stack) + used, BPF_RB_NO_WAKEUP))
		return true;
full:
	drop(PODPERF_DROP_COPY_RING);
	return false;
}

/*
 * Returns the id of a copy that was made at `now`. It is even, as the ids of call sites are. Within 26 days, two copies
 * have the same id only if the CPUs n and n + 4096 copy in one nanosecond.
 */
static __always_inline __u64 copy_id(__u64 now)
{
	return now << 13 | (bpf_get_smp_processor_id() & 4095) << 1;
}

/*
 * Walks the kernel's part of the current task's stack, and sends it if it is new, as a stack without its user frames.
 * Returns its id; 0: it has none.
 */
static __always_inline __u64 kernel_part(void *ctx, struct podperf_stack *stack, bool by_scheduler)
{
	__s64 bytes = walk_kernel(ctx, stack, 0, by_scheduler);

	return bytes > 0 ? take_stack(stack, 0, bytes, bpf_get_current_pid_tgid() >> 32, PODPERF_CUT_COPY) : 0;
}

/* Returns the stack of a copy if the agent has found it, else the id itself. Other ids stay as they are. */
static __always_inline __u64 stack_of_copy(__u64 id)
{
	__u64 *stack;

	if (!copies_enabled || (id & 1) || !id)
		return id;
	stack = bpf_map_lookup_elem(&copied_stacks, &id);
	return stack ? *stack : id;
}

#if defined(__TARGET_ARCH_arm64)
/* Removes the signature (pointer authentication) of an address in code: it depends on the stack pointer. */
#define WITHOUT_SIGNATURE(word) ((word)&1ULL << 55 ? (word) : (word) & ((1ULL << 48) - 1))
#else
#define WITHOUT_SIGNATURE(word) (word)
#endif

/*
 * Returns 1 if the stack above `sp` holds the words of `recipe` where it says, 0 if not, and -1 if they cannot be read
 * or are too many. The hash includes what the recipe is for: a recipe that is replaced meanwhile does not agree. The
 * recipes of other stacks end at the first word with another tag, and read no further. The verifier checks this function
 * separately.
 */
__noinline int agrees(struct podperf_recipe *recipe, __u64 path, __u64 kernel, __u64 stack, __u64 sp)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct recipe_words *words = bpf_map_lookup_elem(&recipe_words, &cpu);
	__u64 hash, near, word;

	if (!recipe || !words)
		return -1;
	hash = hash_slot(0, path);
	near = recipe->near & (PODPERF_RECIPE_NEAR - 1);
	for (__u32 i = 0; i < PODPERF_MAX_FRAMES; i++) {
		__u64 place = recipe->at[i], at = place & ((1U << PODPERF_TAG_SHIFT) - 1);
		__u64 base = -(place / PODPERF_POINTER) & sp;

		if (i >= recipe->words)
			break;
		if (at >= near) {
			if (words->far++ >= MOST_FAR_WORDS ||
			    bpf_probe_read_user(&word, sizeof(word), (void *)(sp + at * sizeof(word))))
				return -1;
		} else {
			if (at >= words->have) {
				if (bpf_probe_read_user(words->word, near * sizeof(word), (void *)sp))
					return -1;
				words->have = near;
			}
			word = words->word[at & (PODPERF_RECIPE_NEAR - 1)];
		}
		word = WITHOUT_SIGNATURE(word) - base;
		if ((word ^ place >> PODPERF_TAG_SHIFT) & PODPERF_TAG_MASK)
			return 0;
		hash = hash_slot(hash, word);
	}
	words->name = hash;
	return hash_slot(hash_slot(hash, kernel), stack) == recipe->hash;
}

/* There is a recipe of the expected stack, but it does not agree. This is no id of a stack: those are odd. */
#define DISAGREES 2ULL
/* Several recipes agree, and only the kernel's part tells which of their stacks it is. This is no id either. */
#define AMBIGUOUS 4ULL
/*
 * In place of the expected stack: the first whole stack is taken that a recipe proves, whatever its kernel part is. Then
 * `recipe_words` has a name of the user frames, else 0. All recipes of the same words give the same name.
 */
#define ANY_STACK 6ULL
/* The kernel's part of a stack is not compared: because nothing depends on it, or because it was not walked. */
#define ANY_PART (~0ULL)
#define UNKNOWN_PART (~1ULL)

/*
 * Returns the id of the current task's stack if a recipe of `path` proves it by the words above `sp`, and if its kernel
 * part is `kernel`. Prefers the stack `expected`, and whole stacks. Returns 0, DISAGREES or, without the kernel's part,
 * AMBIGUOUS if the stack is not proved. The verifier checks this function separately.
 */
__noinline __u64 stack_by_recipe(__u64 path, __u64 sp, __u64 expected, __u64 kernel)
{
	__u64 whole = 0, part = 0, result = 0;
	__u32 cpu = bpf_get_smp_processor_id();
	struct recipe_words *words = bpf_map_lookup_elem(&recipe_words, &cpu);

	if (!words)
		return 0;
	words->have = 0;
	words->far = 0;
	for (__u64 i = 0; i < PODPERF_RECIPES; i++) {
		__u64 key = path + 2 * i, stack, of_kernel;
		struct podperf_recipe *recipe = bpf_map_lookup_elem(&recipes, &key);
		bool is_part;
		int answer;

		if (!recipe)
			break;
		of_kernel = recipe->kernel;
		if (kernel < UNKNOWN_PART && of_kernel != kernel)
			continue;
		stack = recipe->stack;
		is_part = recipe->is_part;
		answer = agrees(recipe, path, of_kernel, stack, sp);
		if (answer <= 0) {
			if (!answer && stack == expected)
				result = DISAGREES;
			continue;
		}
		if ((stack == expected || expected == ANY_STACK) && !is_part)
			return stack;
		if (!is_part)
			whole = whole && whole != stack && kernel == UNKNOWN_PART ? AMBIGUOUS : stack;
		else if (stack == expected)
			part = stack;
		else if (!part || part != expected)
			part = part && part != stack && kernel == UNKNOWN_PART ? AMBIGUOUS : stack;
	}
	words->name = 0;
	if (whole)
		return whole;
	return part ? part : result;
}

#endif
