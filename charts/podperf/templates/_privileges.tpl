{{/* The privileges of each mode. docs/install.md has the reasons, and what is lost without. */}}

{{- define "podperf.profiles" -}}
{{- if eq .Values.mode "profiles" }}true{{ end -}}
{{- end -}}

{{/* "true" in the modes that take stacks, and so need the names of kernel functions, else nothing. */}}
{{- define "podperf.takesStacks" -}}
{{- if ne .Values.mode "metrics" }}true{{ end -}}
{{- end -}}

{{/* "true" if the pods share the node's process ids, else nothing. */}}
{{- define "podperf.hostPID" -}}
{{- if or (include "podperf.profiles" .) .Values.hostPID }}true{{ end -}}
{{- end }}

{{/* A list in YAML. */}}
{{- define "podperf.capabilities" -}}
# bpf(2) itself: to load programs and make maps (kernel/bpf/syscall.c, bpf_prog_load)
- BPF
# to attach them to tracepoints, to let them read the kernel's memory, and perf_event_open(2) (perfmon_capable)
- PERFMON
{{- if include "podperf.takesStacks" . }}
# addresses in /proc/kallsyms, and so names of kernel functions, and reasons of waits (kernel/ksyms_common.c)
- SYSLOG
{{- end }}
{{- if include "podperf.profiles" . }}
# /proc/PID/maps and /proc/PID/root of others' processes (kernel/ptrace.c, __ptrace_may_access)
- SYS_PTRACE
# programs that only their owner may read (fs/namei.c, generic_permission)
- DAC_READ_SEARCH
# /proc/PID/map_files: programs that were deleted or replaced since (fs/proc/base.c, proc_map_files_get_link)
- CHECKPOINT_RESTORE
{{- end }}
{{- if .Values.securityContext.capabilities.addSysAdmin }}
# perf_event_open(2) where kernel.perf_event_paranoid is 3 or more and a vendor's patch asks for it, and for probes in
# programs (perf_uprobe_event_init)
- SYS_ADMIN
{{- end }}
{{- end -}}

{{/* `RuntimeDefault`, `Unconfined`, `Localhost`, or nothing. */}}
{{- define "podperf.appArmor" -}}
{{- $type := .Values.securityContext.appArmor.type -}}
{{- if eq $type "auto" -}}
{{- if include "podperf.profiles" . }}Unconfined{{ end -}}
{{- else if ne $type "none" -}}
{{- $type -}}
{{- end -}}
{{- end -}}

{{/* Before Kubernetes 1.30 AppArmor was an annotation. */}}
{{- define "podperf.appArmorAnnotation" -}}
{{- $type := include "podperf.appArmor" . -}}
{{- if and $type (semverCompare "<1.30-0" .Capabilities.KubeVersion.Version) -}}
container.apparmor.security.beta.kubernetes.io/podperf: {{ if eq $type "RuntimeDefault" -}}
runtime/default
{{- else if eq $type "Unconfined" -}}
unconfined
{{- else -}}
localhost/{{ .Values.securityContext.appArmor.localhostProfile }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.securityContext" -}}
# Not another user: Kubernetes gives no ambient capabilities, and without privilege escalation a file's do not count.
runAsUser: 0
runAsGroup: 0
privileged: false
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
  add:
    {{- include "podperf.capabilities" . | nindent 4 }}
seccompProfile:
  type: {{ .Values.securityContext.seccompProfile.type }}
  {{- if eq .Values.securityContext.seccompProfile.type "Localhost" }}
  localhostProfile: {{ .Values.securityContext.seccompProfile.localhostProfile | quote }}
  {{- end }}
{{- $appArmor := include "podperf.appArmor" . }}
{{- if and $appArmor (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) }}
appArmorProfile:
  type: {{ $appArmor }}
  {{- if eq $appArmor "Localhost" }}
  localhostProfile: {{ .Values.securityContext.appArmor.localhostProfile | quote }}
  {{- end }}
{{- end }}
{{- if include "podperf.onOpenShift" (list .Values.securityContext.selinux.enabled .) }}
seLinuxOptions:
  type: {{ .Values.securityContext.selinux.type }}
{{- end }}
{{- end -}}
