/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ABI of copies of user stacks, and of the recipes that prove a stack, see copies.bpf.h. */
#ifndef PODPERF_COPIES_H
#define PODPERF_COPIES_H

#include "podperf.h"

/* Size of a page of a copied stack in bytes. A kernel may have larger pages, and never smaller ones. */
#define PODPERF_PAGE 4096
/* The largest number of pages in one copy. */
#define PODPERF_COPY_PAGES 7
/* The largest part of a stack that is looked at, in pages above the one with the stack pointer. */
#define PODPERF_COPY_SPAN 256
/*
 * Number of bytes below the stack pointer that signals leave alone, by the ABI of x86-64. Functions keep data there, and
 * an epilogue the registers that it has restored. On arm64 no function relies on them.
 */
#define PODPERF_RED_ZONE 128
/* The size of the ring of copies, in bytes. */
#define PODPERF_COPY_RING (2 << 20)
/* Number of registers in a copy, by the numbers of DWARF; arm64: x0 to x30, sp, pc; x86-64 has 17. */
#define PODPERF_REGISTERS 33
/* The parts of a word in podperf_recipe.at: a distance of up to PODPERF_COPY_SPAN pages, a tag, and a mark. */
#define PODPERF_TAG_SHIFT 17
#define PODPERF_TAG_MASK ((1U << 14) - 1)
#define PODPERF_POINTER (1U << 31)
/* The largest number of recipes of one path. */
#define PODPERF_RECIPES 8
/* A check of a recipe reads fewer words than this at once; a power of two. */
#define PODPERF_RECIPE_NEAR 1024

/* The pages of a copy after the first one, counted from the page with the stack pointer; 0: no more. */
struct podperf_copy_pages {
	__u16 page[PODPERF_COPY_PAGES - 1];
	__u16 reserved[2];
};

/*
 * The registers and a part of the stack of a thread that goes to sleep, or that is sampled on the CPU. The first page
 * in `stack` is the one with the stack pointer, and only its bytes from PODPERF_RED_ZONE bytes below it on are valid.
 */
struct podperf_copy {
	/*
	 * For a wait: `stack` is the id of this copy, by which samples name it; `cgroup` and `tgid` are set, and all other
	 * fields are 0. For a sample on the CPU: the key of the sample, whose `stack` is 0.
	 */
	struct podperf_sample_key key;
	__u64 site;    /* the call site of a wait; 0: a sample on the CPU */
	__u64 path;    /* its path, see path_of */
	__u64 kernel;  /* id of the stack's kernel part; 0: there is none */
	__u64 proved;  /* shadow mode: the stack that a recipe has proved for this wait; 0: the stack is not known */
	__u64 ns;      /* of a sample, see podperf_sample_sum */
	__u64 at_ns;   /* CLOCK_MONOTONIC */
	__u64 code[3]; /* the process' start_code, end_code and start_stack: which program it is */
	__u64 registers[PODPERF_REGISTERS];
	__u32 is_named;                     /* 1: samples have named the call site, and wait for its stack */
	__u16 pages;                        /* number of pages in `stack` */
	__u16 page[PODPERF_COPY_PAGES - 1]; /* see podperf_copy_pages */
	__u16 reserved[3];
	__u8 stack[PODPERF_COPY_PAGES * PODPERF_PAGE]; /* only used bytes are sent */
};

/* Where on the stack of a wait the return addresses are. */
struct podperf_recipe {
	__u64 stack;   /* id of the stack that this proves */
	__u64 kernel;  /* id of its kernel part; 0: it has none */
	__u64 hash;    /* of the path, both ids and the words, see `agrees` */
	__u32 words;   /* number of words in `at` */
	__u32 near;    /* number of words above the stack pointer that are read at once */
	__u32 is_part; /* 1: callers of this stack are missing, so other stacks have these words, too */
	/*
	 * The return addresses, in words above the stack pointer. PODPERF_POINTER marks a pointer to the stack instead:
	 * it counts as its distance to the stack pointer, which is the same in all threads. The tag is the low bits of
	 * the value: most other stacks differ in the first tag that they do not share.
	 */
	__u32 at[PODPERF_MAX_FRAMES];
};

_Static_assert(PODPERF_COPY_SPAN *PODPERF_PAGE == 8 << PODPERF_TAG_SHIFT, "a distance fits below the tag");
_Static_assert(PODPERF_TAG_MASK << PODPERF_TAG_SHIFT == PODPERF_POINTER - (1U << PODPERF_TAG_SHIFT), "a tag fits, too");

#endif
