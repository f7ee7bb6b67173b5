{{/* Requests and limits, and the memory from which they follow. docs/install.md has the parts. */}}

{{/* Requests and limits, as YAML. With `nodeCpus` those of memory follow from the CPUs. At 72 % of the limit the agent begins to
give up features, so the request is at most 70 % of it. A larger limit stays. */}}
{{- define "podperf.resources" -}}
{{- $resources := deepCopy (.Values.resources | default dict) -}}
{{- if gt (int64 (.Values.nodeCpus | default 0)) 0 -}}
{{- $request := div (add (include "podperf.memory" .) 1023) 1024 -}}
{{- $least := div (mul $request 10) 7 -}}
{{- $limit := get ($resources.limits | default dict) "memory" | default "512Mi" -}}
{{- if lt (include "podperf.mebi" $limit | int64) $least }}{{ $limit = printf "%dMi" $least }}{{ end -}}
{{- $_ := set $resources "requests" (merge (dict "memory" (printf "%dMi" $request)) ($resources.requests | default dict)) -}}
{{- $_ := set $resources "limits" (merge (dict "memory" $limit) ($resources.limits | default dict)) -}}
{{- end -}}
{{- with $resources }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The memory of an agent on a node with `nodeCpus`, in KiB: 32 MiB for the process and its records of threads, 19 MiB for names
of programs, 11 MiB for their unwind tables and copies that wait, and the tables of files/memory.yaml. Helm does not know the
architecture: where the agents walk by frame pointers by default, this is too much. */}}
{{- define "podperf.memory" -}}
{{- $sizes := .Files.Get "files/memory.yaml" | fromYaml -}}
{{- $max := dig "cgroups" "max" 4096 .Values.config | int64 -}}
{{- $rows := int64 2 -}}
{{- range until 31 }}{{ if lt $rows $max }}{{ $rows = mul $rows 2 }}{{ end }}{{ end -}}
{{- $samples := dig "stacks" "maxSamples" 16384 .Values.config | int64 -}}
{{- $kib := int64 32768 -}}
{{- $parts := list (list "rings" 1 1) (list "counts" $rows 4096) -}}
{{- range $sensor, $keys := dig "sensors" dict .Values.config -}}
{{- if dig "enabled" false $keys }}{{ $parts = append $parts (list $sensor $rows 4096) }}{{ end -}}
{{- end -}}
{{- if include "podperf.takesStacks" . }}{{ $parts = append $parts (list "stacks" $samples 16384) }}{{ end -}}
{{- if include "podperf.profiles" . -}}
{{- $kib = add $kib 19456 -}}
{{- if ne (dig "stacks" "unwind" "tables" .Values.config) "frame-pointers" -}}
{{- $kib = add $kib 11264 -}}
{{- $parts = concat $parts (list (list "copies" $samples 16384) (list "copyBuffers" 1 1)) -}}
{{- end -}}
{{- end -}}
{{- range $part := $parts -}}
{{- $size := get $sizes (index $part 0) -}}
{{- $all := add (index $size 0) (mul $.Values.nodeCpus (index $size 1)) -}}
{{- $kib = add $kib (div (mul $all (index $part 1)) (index $part 2)) -}}
{{- end -}}
{{- $kib -}}
{{- end -}}

{{/* A quantity in MiB, rounded down; 0 for forms that memory seldom has, such as `1e9`. */}}
{{- define "podperf.mebi" -}}
{{- $bytes := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000
  "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := ternary . (int64 . | toString) (kindIs "string" .) -}}
{{- $number := regexFind "^[0-9]+([.][0-9]+)?" $text -}}
{{- divf (mulf $number (get $bytes (trimPrefix $number $text) | default 0)) 1048576 | int64 -}}
{{- end -}}
