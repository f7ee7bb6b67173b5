/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ABI between the BPF programs and the agent: limits, drop reasons and the values of the maps. User space gets
 * its types from this very file (bindgen), so nothing is written twice. Fixed-width types, explicit padding, no
 * pointers, no bitfields.
 */
#ifndef PODPERF_H
#define PODPERF_H

#include <linux/types.h>

/*
 * Of what stays in the kernel when the agent ends: another one when any of it is in another place, or means something else.
 * What is in another place is found by its name (layout.txt); what means something else needs another name.
 */
#define PODPERF_LAYOUT 5
/* Fields that are carried over from a task's record of another layout, at most. */
#define PODPERF_CARRIED 20
/* One perf event array, and one unrolled read, per event: the programs' size grows with it. */
#define PODPERF_MAX_EVENTS 16
/* Groups are placed on the PMU whole, and share their enabled and running times. */
#define PODPERF_MAX_GROUPS 8
/* The kernel's own limit on a stack's depth (kernel.perf_event_max_stack). */
#define PODPERF_MAX_FRAMES 127
#define PODPERF_NO_ADDRESS 1 /* a user frame that cannot be one */
/* Words that tell one call site from another, see hash.h. */
#define PODPERF_SITE_WORDS 7
/* Ids in one set of `stacks_sent`. */
#define PODPERF_SENT_WAYS 4
/* The kernel cuts the paths of its cgroup tracepoints here (TRACE_CGROUP_PATH_LEN). */
#define PODPERF_PATH_MAX 1024

/* Ids of rows that are no cgroup. */
#define PODPERF_NOBODY 0ULL  /* before the first switch: not charged to anyone */
#define PODPERF_IDLE (~0ULL) /* the idle task */

/*
 * Spread ids over slots: multiplied (by 2^32 over the golden ratio), folded, multiplied. A cgroup's files take ids of
 * the same sequence, so the ids of cgroups lie some 20 to 60 apart. Their low bits, or one multiplication, would leave
 * most slots empty at one distance or another.
 */
#define PODPERF_SLOT_SPREAD 0x9E3779B9U
#define PODPERF_SLOT_FOLD 15
/* Ids that one run of `forget` takes: a raw tracepoint has no more arguments. */
#define PODPERF_FORGET_MAX 12

/* What time was spent on. The first ones are how a task left the CPU, in the order of the agent's WaitState. */
enum podperf_activity {
	PODPERF_INTERRUPTIBLE,
	PODPERF_UNINTERRUPTIBLE,
	PODPERF_RUN_QUEUE, /* runnable, but another task had the CPU */
	PODPERF_THROTTLED, /* the same, since its cgroup's quota was used up */
	PODPERF_WAITS,     /* so many are told apart in rows */
	PODPERF_ON_CPU = PODPERF_WAITS,
	PODPERF_ACTIVITIES,
};

/* What could not be counted; each is a label of podperf_bpf_drops_total. */
enum podperf_drop {
	PODPERF_DROP_TASK_STORAGE, /* no memory for a task's record: its facts are lost until it gets one */
	PODPERF_DROP_TASK_BUSY,    /* settled on two CPUs at once: charged at the next switch instead */
	PODPERF_DROP_CGROUP_TABLE, /* `cgroups` or `rows_by_id` is full: facts and counts are lost */
	PODPERF_DROP_EVENT_READ,   /* a perf counter could not be read */
	PODPERF_DROP_STACK_WALK,   /* neither a kernel nor a user stack: the wait counts without one */
	PODPERF_DROP_STACK_MEMO,   /* the walked stack could not be remembered: walked again next time */
	PODPERF_DROP_STACK_RING,   /* `stack_ring` was full: the stack or waker is sent the next time */
	PODPERF_DROP_SAMPLE_TABLE, /* neither a table nor a row has room: the time is in no profile */
	PODPERF_DROP_SAMPLE_STACK, /* the cgroup is over its share of the table: the time is its own, but of unknown stack */
	PODPERF_DROP_LONG_WAIT,   /* `stack_ring` was full: a long wait is aggregated instead */
	PODPERF_DROP_CGROUP_RING, /* `cgroup_ring` was full: found again by a walk of the tree */
	PODPERF_DROP_STACK_SHED,  /* stacks are shed, see `shed`: the wait counts without one */
	PODPERF_DROP_SAMPLE_BUSY, /* the kernel had locked the table: as for SAMPLE_STACK, but a larger table would not help */
	PODPERF_DROPS,
};

/* Filters of samples: alternatives, each with a bit in podperf_sample_key.filters, and the terms of all of them. */
#define PODPERF_FILTERS 16
#define PODPERF_FILTER_TERMS 64
#define PODPERF_COMM_MAX 16

enum podperf_filter_field {
	PODPERF_FILTER_AT_LEAST, /* the wait is at least `value` ns long; what runs is not */
	PODPERF_FILTER_THREAD,   /* the thread's id is `value` */
	PODPERF_FILTER_COMM,     /* the first `value` bytes of the thread's name are those of `comm` */
};

/* Value of `filter_terms`: one term of an alternative, all of which must hold. */
struct podperf_filter_term {
	__u32 field; /* enum podperf_filter_field */
	__u32 bit;
	__u32 negated;
	__u32 reserved;
	__u64 value;
	char comm[PODPERF_COMM_MAX];
};

/* What the agent gives up while podperf costs too much; bits of podperf_orders.shed. */
enum podperf_shed {
	PODPERF_SHED_STACKS = 1,
};

/* The programs that have an account in podperf_cpu.programs. Each value is named like its program. */
enum podperf_program {
	PODPERF_PROGRAM_SCHED_SWITCH,
	PODPERF_PROGRAM_CGROUP_ATTACH_TASK,
	PODPERF_PROGRAM_FLUSH,
	PODPERF_PROGRAM_FORGET,
	PODPERF_PROGRAM_CGROUP_MKDIR,
	PODPERF_PROGRAM_CGROUP_RENAME,
	PODPERF_PROGRAM_CGROUP_RMDIR,
	PODPERF_PROGRAM_SAMPLE,
	PODPERF_PROGRAM_SCHED_WAKING,
	PODPERF_PROGRAM_COLLECT,
	PODPERF_PROGRAM_TASK_NEWTASK,
	PODPERF_PROGRAMS,
};

/* Every so many runs of a hot program one is timed. A prime: workloads switch in rhythms. */
#define PODPERF_TIMED_EVERY 61

/* Shared by all generations of programs, of whatever layout: it never changes. */
struct podperf_handover {
	__u64 generation; /* who counts */
	__u64 since_ns;   /* when the first one was loaded, CLOCK_MONOTONIC */
};

/* Value of `description`: a piece of a text. */
#define PODPERF_DESCRIPTION_PIECE 256

/* A field of a task's record, there and here. */
struct podperf_carried {
	__u16 from; /* where it is in the record of another layout */
	__u16 to;
	__u32 size; /* 8, 4 or 1; 0: no field */
};

/* The agent's orders for all CPUs. */
struct podperf_orders {
	__u32 shed;            /* enum podperf_shed */
	__u32 epoch;           /* which of the two tables of samples is written: even, odd */
	__u32 terms;           /* how many of `filter_terms` there are */
	__u32 sample_busy;     /* a sample's time is 1: what its CPU was not idle since the last one; 0: `sample_ns` */
	__u64 births_since_ns; /* from when on every task that is born gets its record, CLOCK_MONOTONIC */
};

/* Value of `controls`, by CPU: the agent's orders for its counters. */
struct podperf_control {
	__u32 events; /* bit n: counter n is open on this CPU */
	__u32 boot;   /* another one: the CPU was offline, and its counters began anew */
};

/* What a program did on a CPU. */
struct podperf_runs {
	__u64 runs;
	__u64 ns; /* estimated from the runs that were timed */
};

/* Value of `rows` and `rows_by_id`, per CPU, and of `rows_so_far`. What every switch writes is in the first 64 bytes. */
struct podperf_cgroup {
	__u64 id; /* whose it is; 0: free */
	__u64 run_ns;
	__u64 voluntary;
	__u64 involuntary;
	__u64 offcpu_ns[PODPERF_WAITS];
	__u64 migrations;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 counts[PODPERF_MAX_EVENTS];
	/* Of the group's leader, while this cgroup was on the CPU; hardware groups only. */
	__u64 enabled_ns[PODPERF_MAX_GROUPS];
	__u64 running_ns[PODPERF_MAX_GROUPS];
	__u64 unprofiled_ns[PODPERF_WAITS]; /* the part of offcpu_ns that is in no table of samples */
};

/* Value of `cpus`, by CPU. */
struct podperf_cpu {
	__u64 cgroup;   /* on whose account what is on the CPU runs */
	__u64 since_ns; /* when that came on, CLOCK_MONOTONIC; 0: not known */
	__u64 idle_ns;
	__u64 switches_recovered; /* unreported switch-ins, told by the run time */
	__u64 recovered_ns;       /* from the last reported switch to these: its counts went to who came on then */
	__u64 unprofiled_ns;      /* waits that are in no table of samples, for the reasons in `drops` */
	__u64 walks;              /* stacks walked, the others were remembered */
	__u64 checks;             /* of these, walks of a trusted place, to check it */
	__u64 checks_wrong;       /* of these, those that found another stack than the remembered one */
	__u64 waits;              /* waits that should have a stack */
	__u64 sampled_out;        /* of these, short ones over the budget of walks: others stand for them */
	__u64 shadow_waits;       /* of these, remembered ones that were walked all the same, see `shadow` */
	__u64 shadow_wrong;       /* of these, those whose remembered stack was another one */
	__u64 shadow_ns;          /* the lengths of `shadow_waits` */
	__u64 shadow_wrong_ns;    /* and of `shadow_wrong`, but for those that were looked at */
	__u64 walks_paid_ns;      /* up to when the budget of walks is spent, CLOCK_MONOTONIC */
	__u64 sampled_ns;         /* time of the last sample, CLOCK_MONOTONIC */
	__u64 sampled_idle_ns;    /* `idle_ns` at the last sample */
	__u32 known;              /* bit n: counts[n] is what counter n last read, and not of an earlier life of it */
	__u32 boot;               /* of the control when the counters were last read */
	__s32 pid;                /* of what is on the CPU; 0: the idle task */
	__u32 reserved32[3];
	struct podperf_runs programs[PODPERF_PROGRAMS];
	__u64 counts[PODPERF_MAX_EVENTS];
	__u64 uncounted[PODPERF_MAX_EVENTS]; /* of counts, what nobody was charged for: before the first reading */
	__u64 enabled_ns[PODPERF_MAX_GROUPS];
	__u64 running_ns[PODPERF_MAX_GROUPS];
	__u64 reserved[5]; /* whole cache lines: each CPU writes its own */
};

/*
 * Key and value of `samples`: time by stack.
 *
 * `stack` is the id of a walked stack (odd), of a place whose stack is not known yet (even, see PODPERF_RECORD_PLACE), or
 * 0 without either.
 */
struct podperf_sample_key {
	__u64 stack;
	__u64 seen; /* the id of the kernel's part of it, taken while the task slept; 0: nobody looked */
	__u64 cgroup;
	__u64 waker; /* who ended the wait, see PODPERF_RECORD_WAKER; 0: not known */
	__u32 tgid;
	__u16 activity; /* enum podperf_activity */
	__u16 filters;  /* bit n: filter n lets it pass */
};

struct podperf_sample_sum {
	__u64 ns;        /* without queued_ns */
	__u64 queued_ns; /* from the ends of these waits until the tasks had a CPU */
	__u64 count;     /* waits, or samples on the CPU */
	__u64 last_ns;   /* end of the last one, CLOCK_MONOTONIC */
};

/* Shares of the budget of walks, and of a table of samples. A cgroup's id says which is its share. */
#define PODPERF_WALK_SHARES 64
#define PODPERF_SAMPLE_SHARES 1024

/* The tables of samples: two of waits, which are written in turn, and two of time on the CPU. */
enum podperf_sample_table {
	PODPERF_WAITS_EVEN,
	PODPERF_WAITS_ODD,
	PODPERF_ONCPU_EVEN,
	PODPERF_ONCPU_ODD,
	PODPERF_SAMPLE_TABLES,
};

/* Value of `samples_used`: the keys in one table. */
struct podperf_samples_used {
	__u32 keys;
	__u32 by_cgroup[PODPERF_SAMPLE_SHARES];
};

/* Value of `stacks_sent`: the ids of this set that were sent last, the newest first; 0: none. */
struct podperf_sent {
	__u64 ids[PODPERF_SENT_WAYS];
};

/* The secret in all ids, see hash.h. Random; it stays as long as ids that were made with it are compared. */
struct podperf_hash_key {
	__u64 point;                     /* below 2^61 */
	__u64 sites[PODPERF_SITE_WORDS]; /* odd */
};

/* Records of `stack_ring` begin with their kind. */
enum podperf_stack_record {
	PODPERF_RECORD_STACK,
	PODPERF_RECORD_PLACE,
	PODPERF_RECORD_LONG_WAIT,
	PODPERF_RECORD_WAKER,
};

/* A stack that was not sent before: user frames, then kernel frames, each leaf first; only used frames are sent. */
struct podperf_stack {
	__u32 record;
	__u16 user_frames;
	__u16 kernel_frames;
	__u64 id;
	__u32 tgid; /* whose it was when it was walked; others may share it */
	__u32 reserved;
	__u64 frames[2 * PODPERF_MAX_FRAMES];
};

/* The stack of a place that samples named before. */
struct podperf_place {
	__u32 record;
	__u32 reserved;
	__u64 place;
	__u64 stack;
};

/* One wait of at least `long_wait_ns`, sent when it ends. */
struct podperf_long_wait {
	__u32 record;
	__u32 tid;
	struct podperf_sample_key key;
	__u64 end_ns; /* CLOCK_MONOTONIC */
	__u64 ns;     /* this and the next: see podperf_sample_sum */
	__u64 queued_ns;
	__u64 so_far_ns; /* of the same wait, in samples before this one */
};

/* Who ends waits; sent once. */
struct podperf_waker {
	__u32 record;
	__u32 tgid;
	__u64 id;
	__u64 cgroup;                /* 0: an interrupt */
	__u64 stack;                 /* from where it wakes; 0: not taken */
	char comm[PODPERF_COMM_MAX]; /* the thread's name */
};

/* Records of `cgroup_ring`. */
enum podperf_cgroup_change {
	PODPERF_CGROUP_BORN,
	PODPERF_CGROUP_RENAMED,
	PODPERF_CGROUP_DIED,
};

struct podperf_cgroup_record {
	__u64 id;
	__u32 change;                /* enum podperf_cgroup_change */
	__u32 path_bytes;            /* without the final NUL; PODPERF_PATH_MAX - 1: cut short */
	char path[PODPERF_PATH_MAX]; /* from the root of the cgroup2 tree; only used bytes are sent */
};

_Static_assert(sizeof(struct podperf_cgroup) == 64 + 24 + 128 + 64 + 64 + 32, "ABI");
_Static_assert(__builtin_offsetof(struct podperf_cgroup, migrations) == 64, "one cache line");
_Static_assert(sizeof(struct podperf_cpu) == 128 + 24 + 176 + 256 + 128 + 56, "ABI");
_Static_assert(sizeof(struct podperf_cpu) % 64 == 0, "cache lines");
_Static_assert(sizeof(struct podperf_handover) == 16, "ABI");
_Static_assert(sizeof(struct podperf_carried) == 8, "ABI");
_Static_assert(sizeof(struct podperf_orders) == 24, "ABI");
_Static_assert(sizeof(struct podperf_control) == 8, "ABI");
_Static_assert(sizeof(struct podperf_filter_term) == 40, "ABI");
_Static_assert(sizeof(struct podperf_sample_key) == 40, "ABI");
_Static_assert(sizeof(struct podperf_sample_sum) == 32, "ABI");
_Static_assert(sizeof(struct podperf_samples_used) == 4 + 4 * PODPERF_SAMPLE_SHARES, "ABI");
_Static_assert(sizeof(struct podperf_sent) == 8 * PODPERF_SENT_WAYS, "ABI");
_Static_assert(sizeof(struct podperf_hash_key) == 8 + 8 * PODPERF_SITE_WORDS, "ABI");
_Static_assert(sizeof(struct podperf_stack) == 24 + 2 * 8 * PODPERF_MAX_FRAMES, "ABI");
_Static_assert(sizeof(struct podperf_place) == 24, "ABI");
_Static_assert(sizeof(struct podperf_long_wait) == 80, "ABI");
_Static_assert(sizeof(struct podperf_waker) == 48, "ABI");
_Static_assert(sizeof(struct podperf_cgroup_record) == 16 + PODPERF_PATH_MAX, "ABI");

#endif
