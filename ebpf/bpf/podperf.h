/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ABI between the BPF programs and the agent: limits, drop reasons and the values of the maps. bindgen generates
 * the types of user space from this file, so nothing is written twice. The types have a fixed width and explicit
 * padding, without pointers and bitfields.
 */
#ifndef PODPERF_H
#define PODPERF_H

#include <linux/types.h>

/*
 * The version of the state that stays in the kernel when the agent ends. It must change when a part of this state moves
 * or changes its meaning. The agent finds a moved field by its name (layout.txt), so a field with another meaning needs
 * another name.
 */
#define PODPERF_LAYOUT 9
/* The largest number of fields that are migrated from a task record of another layout. */
#define PODPERF_CARRIED 20
/*
 * The largest number of events. Each needs a perf event array and an unrolled read: the programs' size grows with it.
 */
#define PODPERF_MAX_EVENTS 16
/* The largest number of groups. A group is placed on the PMU as a whole, and shares its enabled and running times. */
#define PODPERF_MAX_GROUPS 8
/* The kernel's own limit on a stack's depth (kernel.perf_event_max_stack). */
#define PODPERF_MAX_FRAMES 127
#define PODPERF_NO_ADDRESS 1 /* a user frame that cannot be an address */
/* Number of words that identify a call site, see hash.h. */
#define PODPERF_SITE_WORDS 7
/* The id of the stack of a wait whose stack was not taken, see PODPERF_SHED_WAIT_STACKS. It is odd, as ids of stacks are. */
#define PODPERF_NOT_TAKEN (~0ULL)
/* No waker: the wait goes on. It keeps its time apart from waits that ended. It is even, and ids of wakers are odd. */
#define PODPERF_GOES_ON 2
/* Number of ids in one set of `stacks_sent`. */
#define PODPERF_SENT_WAYS 4
/* The size at which the kernel cuts the paths of its cgroup tracepoints, in bytes (TRACE_CGROUP_PATH_LEN). */
#define PODPERF_PATH_MAX 1024

/* Ids of rows that belong to no cgroup. */
#define PODPERF_NOBODY 0ULL  /* before the first switch: charged to no cgroup */
#define PODPERF_IDLE (~0ULL) /* the idle task */

/*
 * Constants that spread ids over slots: an id is multiplied (by 2^32 over the golden ratio), folded, and multiplied
 * again. A cgroup's files take ids of the same sequence, so the ids of cgroups are some 20 to 60 apart. Their low bits,
 * or one multiplication, would leave most slots empty at one distance or another.
 */
#define PODPERF_SLOT_SPREAD 0x9E3779B9U
#define PODPERF_SLOT_FOLD 15
/* Number of ids that one run of `forget` takes: a raw tracepoint has no more arguments. */
#define PODPERF_FORGET_MAX 12

/* The largest number of entries of `named_levels`; the map has room for as many old ones meanwhile. */
#define PODPERF_NAMED_PARTS 256
/* Number of levels that are searched for an outer cgroup, see listed.bpf.h. Deeper cgroups have no names. */
#define PODPERF_TREE_LEVELS 16

/*
 * The activity that time was spent on. The first values are the ways in which a task left the CPU, in the order of the
 * agent's WaitState.
 */
enum podperf_activity {
	PODPERF_INTERRUPTIBLE,
	PODPERF_UNINTERRUPTIBLE,
	PODPERF_RUN_QUEUE, /* runnable, but another task had the CPU */
	PODPERF_THROTTLED, /* runnable, but its cgroup's quota was used up */
	PODPERF_WAITS,     /* number of activities that rows distinguish */
	PODPERF_ON_CPU = PODPERF_WAITS,
	PODPERF_ACTIVITIES,
};

/*
 * The reasons for lost counts; each is a label of podperf_bpf_drops_total. The reasons of the sensors' own follow after
 * the last one: enum NAME_drop.
 */
enum podperf_drop {
	PODPERF_DROP_TASK_STORAGE, /* no memory for a task's record: its facts are lost until it has one */
	PODPERF_DROP_TASK_BUSY,    /* settled on two CPUs at once: charged at the next switch instead */
	PODPERF_DROP_CGROUP_TABLE, /* `cgroups` or `rows_by_id` is full: a cgroup is counted further up, or is lost */
	PODPERF_DROP_EVENT_READ,   /* a perf counter could not be read */
	PODPERF_DROP_STACK_WALK,   /* neither a kernel nor a user stack was found: the wait counts without one */
	PODPERF_DROP_STACK_CACHE,  /* the walked stack could not be cached: it is walked again next time */
	PODPERF_DROP_STACK_RING,   /* `stack_ring` was full: the stack or waker is sent the next time */
	PODPERF_DROP_SAMPLE_TABLE, /* no room in a table or a row: the time is in no profile */
	PODPERF_DROP_SAMPLE_STACK, /* the cgroup is over its share of the table: its time counts without a stack */
	PODPERF_DROP_LONG_WAIT,    /* `stack_ring` was full: a long wait is aggregated instead */
	PODPERF_DROP_CGROUP_RING,  /* `cgroup_ring` was full: the agent finds the change by a walk of the tree */
	PODPERF_DROP_STACK_SHED,   /* stacks of waits are shed, see podperf_shed: the wait counts without one */
	PODPERF_DROP_SAMPLE_BUSY, /* as SAMPLE_STACK, but the kernel had locked the table: a larger one does not help */
	PODPERF_DROP_SENSOR_TABLE, /* the rows of a sensor are full: the sensor does not see the cgroup */
	PODPERF_DROP_COPY_RING,    /* `copy_ring` was full: the stack is walked by frame pointers */
	PODPERF_DROP_CGROUP_SHARE, /* half of `cgroups` is in use: a cgroup is counted in its outer cgroup, and not lost */
	PODPERF_DROPS,
};

/*
 * Limits of filters: the number of alternatives, each with a bit in podperf_sample_key.filters, the number of terms of
 * all alternatives, and the size of a thread's name in bytes.
 */
#define PODPERF_FILTERS 16
#define PODPERF_FILTER_TERMS 64
#define PODPERF_COMM_MAX 16

enum podperf_filter_field {
	PODPERF_FILTER_AT_LEAST, /* the wait is at least `value` ns long; time on the CPU counts as 0 ns */
	PODPERF_FILTER_THREAD,   /* the thread's id is `value` */
	PODPERF_FILTER_COMM,     /* the first `value` bytes of the thread's name are those of `comm` */
};

/* Value of `filter_terms`: one term of an alternative. All terms of an alternative must hold. */
struct podperf_filter_term {
	__u32 field; /* enum podperf_filter_field */
	__u32 bit;
	__u32 negated;
	__u32 reserved;
	__u64 value;
	char comm[PODPERF_COMM_MAX];
};

/* The features that the agent gives up while podperf costs too much; bits of podperf_orders.shed. */
enum podperf_shed {
	PODPERF_SHED_STACKS = 1,      /* no stack is taken: neither waits nor samples on the CPU are in a table */
	PODPERF_SHED_WAIT_STACKS = 2, /* waits have no stack of their own, but are in the tables */
	PODPERF_SHED_USER_FRAMES = 4, /* waits with an unknown stack get its kernel part only */
	PODPERF_SHED_SENSORS = 8,     /* sensors with programs of their own begin nothing new */
};

/* The programs whose cost is counted in podperf_cpu.programs. Each value is named like its program. */
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

/* One in this number of runs of a hot program is timed. It is a prime, since workloads switch in rhythms. */
#define PODPERF_TIMED_EVERY 61

/* The state that all generations of programs share, whatever their layout: this struct never changes. */
struct podperf_handover {
	__u64 generation; /* the generation that counts */
	__u64 since_ns;   /* when the first generation was loaded, CLOCK_MONOTONIC */
};

/* Value of `description`: a piece of a text. The size of a piece, in bytes. */
#define PODPERF_DESCRIPTION_PIECE 256

/* A field that is migrated from a task record of another layout. */
struct podperf_carried {
	__u16 from; /* offset in the record of the other layout */
	__u16 to;
	__u32 size; /* 8, 4 or 1 bytes; 0: no field */
};

/* The agent's orders for all CPUs. */
struct podperf_orders {
	__u64 sensors_since_ns; /* when sensors last began again after they were shed, CLOCK_MONOTONIC; 0: never */
	__u32 shed;             /* enum podperf_shed */
	__u32 epoch;            /* even or odd: the table of samples that is written */
	__u32 terms;            /* number of `filter_terms` in use */
	__u32 sample_busy; /* 1: a sample stands for the busy time of its CPU since the last one; 0: for `sample_ns` */
	__u64 births_since_ns; /* since then every new task gets its record at birth, CLOCK_MONOTONIC */
	__u64 walk_every_ns;   /* the time in which the budget allows a CPU one walk; 0: no limit */
};

/* Value of `controls`, by CPU: the agent's orders for the CPU's counters. */
struct podperf_control {
	__u32 events; /* bit n: counter n is open on this CPU */
	__u32 boot;   /* a new value: the CPU was offline, and its counters restarted */
};

/* The runs of a program on a CPU. */
struct podperf_runs {
	__u64 runs;
	__u64 ns; /* estimated from the timed runs */
};

/*
 * Value of `rows` and `rows_by_id`, per CPU, and of `rows_so_far`. The fields that every switch writes are in the first
 * 64 bytes.
 */
struct podperf_cgroup {
	__u64 id; /* id of the cgroup; 0: the row is free */
	__u64 run_ns;
	__u64 voluntary;
	__u64 involuntary;
	__u64 offcpu_ns[PODPERF_WAITS];
	__u64 migrations;
	__u64 minor_faults;
	__u64 major_faults;
	__u64 counts[PODPERF_MAX_EVENTS];
	/* Times of the group's leader, while this cgroup was on the CPU; hardware groups only. */
	__u64 enabled_ns[PODPERF_MAX_GROUPS];
	__u64 running_ns[PODPERF_MAX_GROUPS];
	__u64 unprofiled_ns[PODPERF_WAITS]; /* the part of offcpu_ns that is in no table of samples */
};

/* Value of `cpus`, by CPU. */
struct podperf_cpu {
	__u64 cgroup;   /* the cgroup that the task on the CPU is charged to */
	__u64 since_ns; /* when that task came on, CLOCK_MONOTONIC; 0: unknown */
	__u64 idle_ns;
	__u64 switches_recovered; /* unreported switch-ins, found by the run time */
	__u64 recovered_ns;  /* from the last reported switch to these: its counts went to the cgroup of that switch */
	__u64 unprofiled_ns; /* waits that are in no table of samples, for the reasons in `drops` */
	__u64 walks;         /* walked stacks of waits; other stacks came from the cache */
	__u64 checks;        /* of these walks, those that check a trusted call site */
	__u64 checks_wrong;  /* of these checks, those that found another stack than the cached one */
	__u64 waits;         /* waits that should have a stack */
	__u64 sampled_out;   /* of these waits, short ones over the budget of walks: other waits stand for them */
	__u64 shadow_waits;  /* of these waits, those with a cached stack that was walked as well, see `shadow` */
	__u64 shadow_wrong;  /* of these, those whose cached stack was wrong */
	__u64 shadow_ns;     /* total length of `shadow_waits` */
	__u64 shadow_wrong_ns; /* total length of `shadow_wrong`, except waits with a checked stack (`seen`) */
	__u64 walks_paid_ns;   /* the time up to which the budget of walks is spent, CLOCK_MONOTONIC */
	__u64 sampled_ns;      /* time of the last sample, CLOCK_MONOTONIC */
	__u64 sampled_idle_ns; /* `idle_ns` at the last sample */
	__u32 known;           /* bit n: counts[n] is the last reading of counter n, and not from before it restarted */
	__u32 boot;            /* `boot` of the control at the last reading of the counters */
	__s32 pid;             /* id of the task on the CPU; 0: the idle task */
	__u32 reserved32[3];
	struct podperf_runs programs[PODPERF_PROGRAMS];
	__u64 counts[PODPERF_MAX_EVENTS];
	__u64 uncounted[PODPERF_MAX_EVENTS]; /* of counts, the part before the first reading: charged to no cgroup */
	__u64 enabled_ns[PODPERF_MAX_GROUPS];
	__u64 running_ns[PODPERF_MAX_GROUPS];
	__u64
	    kernel_walks; /* of `waits`, those whose kernel part was walked after a recipe had proved the user frames */
	__u64 reserved[4]; /* whole cache lines, since each CPU writes its own */
};

/*
 * Key and value of the tables of samples: time by stack.
 *
 * `stack` is the id of a walked stack (odd), of a call site whose stack is not known yet (even, see
 * PODPERF_RECORD_SITE), or 0 without either.
 */
struct podperf_sample_key {
	__u64 stack;
	__u64 seen; /* id of the stack's kernel part, read while the task slept; 0: it was not read */
	__u64 cgroup;
	__u64 waker; /* id of the waker, see PODPERF_RECORD_WAKER; 0: unknown; PODPERF_GOES_ON: the wait goes on */
	__u32 tgid;
	__u8 activity; /* enum podperf_activity */
	__u8 lock;     /* 1 + enum podperf_lock, if the sensor `locks` saw the end of a wait for a lock; else 0 */
	__u16 filters; /* bit n: filter n lets the sample pass */
};

struct podperf_sample_sum {
	__u64 ns;        /* time without queued_ns */
	__u64 queued_ns; /* time from the ends of these waits until the tasks had a CPU */
	__u64 count;     /* number of waits, or of samples on the CPU */
	__u64 last_ns;   /* end of the last one, CLOCK_MONOTONIC */
};

/* Number of shares of the budget of walks, and of a table of samples. The id of a cgroup determines a share. */
#define PODPERF_WALK_SHARES 64
#define PODPERF_SAMPLE_SHARES 1024

/* The keys of `cgroups_used`. */
enum podperf_used {
	PODPERF_USED_CGROUPS,    /* the number of cgroups in `cgroups` */
	PODPERF_USED_INNER_ROWS, /* the number of rows in `rows_by_id` of cgroups that have an outer cgroup */
	PODPERF_USED,
};

/* The tables of samples: two tables of waits, which are written in turn, and two tables of time on the CPU. */
enum podperf_sample_table {
	PODPERF_WAITS_EVEN,
	PODPERF_WAITS_ODD,
	PODPERF_ONCPU_EVEN,
	PODPERF_ONCPU_ODD,
	PODPERF_SAMPLE_TABLES,
};

/* Value of `samples_used`: the number of keys in one table. */
struct podperf_samples_used {
	__u32 keys;
	__u32 by_cgroup[PODPERF_SAMPLE_SHARES];
};

/* Value of `stacks_sent`: the ids of this set that were sent last, with the newest first; 0: none. */
struct podperf_sent {
	__u64 ids[PODPERF_SENT_WAYS];
};

/*
 * The secret in all ids, see hash.h. It is random, and stays the same as long as ids that were made with it are
 * compared.
 */
struct podperf_hash_key {
	__u64 point;                     /* below 2^61 */
	__u64 sites[PODPERF_SITE_WORDS]; /* odd */
};

/* The kinds of records of `stack_ring`. Each record begins with its kind. */
enum podperf_stack_record {
	PODPERF_RECORD_STACK,
	PODPERF_RECORD_SITE,
	PODPERF_RECORD_LONG_WAIT,
	PODPERF_RECORD_WAKER,
};

/* The reason why a stack has none of its user frames. */
enum podperf_cut {
	PODPERF_CUT_NOT = 0,
	PODPERF_CUT_SHED = 1, /* see PODPERF_SHED_USER_FRAMES */
	PODPERF_CUT_COPY = 2, /* they are in a copy, which the agent unwinds */
};

/*
 * A stack that was not sent before: user frames, then kernel frames, each with the leaf first. Only used frames are
 * sent.
 */
struct podperf_stack {
	__u32 record;
	__u16 user_frames;
	__u16 kernel_frames;
	__u64 id;
	__u32 tgid; /* the process in which it was walked; other processes may share it */
	__u32 cut;  /* enum podperf_cut */
	__u64 frames[2 * PODPERF_MAX_FRAMES];
};

/* The stack of a call site that samples have named before. */
struct podperf_site {
	__u32 record;
	__u32 reserved;
	__u64 site;
	__u64 stack;
};

/* One wait of at least `long_wait_ns`, sent when it ends. */
struct podperf_long_wait {
	__u32 record;
	__u32 tid;
	struct podperf_sample_key key;
	__u64 end_ns; /* CLOCK_MONOTONIC */
	__u64 ns;     /* for this field and the next, see podperf_sample_sum */
	__u64 queued_ns;
	__u64 so_far_ns; /* the part of the same wait that earlier samples hold */
};

/* A waker, which ends waits; sent once. */
struct podperf_waker {
	__u32 record;
	__u32 tgid;
	__u64 id;
	__u64 cgroup;                /* 0: an interrupt */
	__u64 stack;                 /* the stack from which it wakes; 0: not taken */
	char comm[PODPERF_COMM_MAX]; /* the thread's name */
};

/* The kinds of records of `cgroup_ring`. */
enum podperf_cgroup_change {
	PODPERF_CGROUP_BORN,
	PODPERF_CGROUP_RENAMED,
	PODPERF_CGROUP_DIED,
};

struct podperf_cgroup_record {
	__u64 id;
	__u32 change;                /* enum podperf_cgroup_change */
	__u32 path_bytes;            /* without the final NUL; PODPERF_PATH_MAX - 1: the path is cut short */
	char path[PODPERF_PATH_MAX]; /* from the root of the cgroup2 tree; only used bytes are sent */
};

_Static_assert(sizeof(struct podperf_cgroup) == 64 + 24 + 128 + 64 + 64 + 32, "ABI");
_Static_assert(__builtin_offsetof(struct podperf_cgroup, migrations) == 64, "one cache line");
_Static_assert(sizeof(struct podperf_cpu) == 128 + 24 + 176 + 256 + 128 + 56, "ABI");
_Static_assert(sizeof(struct podperf_cpu) % 64 == 0, "cache lines");
_Static_assert(sizeof(struct podperf_handover) == 16, "ABI");
_Static_assert(sizeof(struct podperf_carried) == 8, "ABI");
_Static_assert(sizeof(struct podperf_orders) == 40, "ABI");
/* Programs that take over read these two orders of the programs before. */
_Static_assert(__builtin_offsetof(struct podperf_orders, sensors_since_ns) == 0, "ABI");
_Static_assert(__builtin_offsetof(struct podperf_orders, shed) == 8, "ABI");
_Static_assert(sizeof(struct podperf_control) == 8, "ABI");
_Static_assert(sizeof(struct podperf_filter_term) == 40, "ABI");
_Static_assert(sizeof(struct podperf_sample_key) == 40, "ABI");
_Static_assert(sizeof(struct podperf_sample_sum) == 32, "ABI");
_Static_assert(sizeof(struct podperf_samples_used) == 4 + 4 * PODPERF_SAMPLE_SHARES, "ABI");
_Static_assert(sizeof(struct podperf_sent) == 8 * PODPERF_SENT_WAYS, "ABI");
_Static_assert(sizeof(struct podperf_hash_key) == 8 + 8 * PODPERF_SITE_WORDS, "ABI");
_Static_assert(sizeof(struct podperf_stack) == 24 + 2 * 8 * PODPERF_MAX_FRAMES, "ABI");
_Static_assert(sizeof(struct podperf_site) == 24, "ABI");
_Static_assert(sizeof(struct podperf_long_wait) == 80, "ABI");
_Static_assert(sizeof(struct podperf_waker) == 48, "ABI");
_Static_assert(sizeof(struct podperf_cgroup_record) == 16 + PODPERF_PATH_MAX, "ABI");

#endif
