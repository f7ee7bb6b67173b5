// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The cgroup sensor: reports births, renames and deaths in the cgroup2 tree, so that the shortest life has a name. */
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* Records of changes in the tree, for the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} cgroup_ring SEC(".maps");

/* The buffer in which a record is built: a record is too large for the BPF stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_cgroup_record);
} cgroup_buffer SEC(".maps");

static __always_inline int report(struct cgroup *cgroup, const char *path, __u32 change, __u32 program)
{
	__u32 zero = 0;
	struct podperf_cgroup_record *record = bpf_map_lookup_elem(&cgroup_buffer, &zero);
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;
	long bytes;

	if (!record || !cpu || cgroup->root->hierarchy_id)
		return 0;
	began = begin_run(cpu, program);
	bytes = bpf_probe_read_kernel_str(record->path, sizeof(record->path), path);
	if (bytes < 1 || bytes > PODPERF_PATH_MAX)
		bytes = 1;
	record->id = cgroup->kn->id;
	record->change = change;
	record->path_bytes = bytes - 1;
	if (bpf_ringbuf_output(&cgroup_ring, record, offsetof(struct podperf_cgroup_record, path) + bytes,
			       BPF_RB_NO_WAKEUP))
		drop(PODPERF_DROP_CGROUP_RING);
	end_run(cpu, program, began);
	return 0;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(cgroup_mkdir, struct cgroup *cgroup, const char *path)
{
	return report(cgroup, path, PODPERF_CGROUP_BORN, PODPERF_PROGRAM_CGROUP_MKDIR);
}

SEC("tp_btf/cgroup_rename")
int BPF_PROG(cgroup_rename, struct cgroup *cgroup, const char *path)
{
	return report(cgroup, path, PODPERF_CGROUP_RENAMED, PODPERF_PROGRAM_CGROUP_RENAME);
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(cgroup_rmdir, struct cgroup *cgroup, const char *path)
{
	return report(cgroup, path, PODPERF_CGROUP_DIED, PODPERF_PROGRAM_CGROUP_RMDIR);
}
