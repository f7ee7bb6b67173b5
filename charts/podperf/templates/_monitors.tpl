{{/* Targets and their labels, as all monitors say them. */}}

{{/* An agent is called by its node, however often its pod is replaced; the rules and dashboards go by these labels. */}}
{{- define "podperf.relabelings" -}}
- targetLabel: job
  replacement: {{ include "podperf.job" . | quote }}
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
{{- end -}}

{{/* The way of Prometheus into agents with TLS. Arguments: the monitor's values, the root, and the scheme as it is written
there. */}}
{{- define "podperf.scrapeLogin" -}}
{{- $root := index . 1 -}}
{{- if $root.Values.http.tls.secretName -}}
scheme: {{ (index . 2) }}
tlsConfig:
  # The agents' own, which has to be where the monitor is.
  ca:
    secret:
      name: {{ $root.Values.http.tls.secretName }}
      key: ca.crt
  serverName: {{ include "podperf.serverName" $root }}
{{- with $root.Values.http.authorization }}
{{- if and .enabled .tokenSecret.name }}
authorization:
  credentials:
    name: {{ .tokenSecret.name }}
    key: {{ .tokenSecret.key }}
{{- end }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* An endpoint of a PodMonitor or ServiceMonitor. Arguments: the monitor's values, and the root. */}}
{{- define "podperf.endpoint" -}}
{{- $monitor := index . 0 -}}
port: http
path: /metrics
{{- with include "podperf.scrapeLogin" (append . "https") }}
{{ . }}
{{- end }}
# `namespace`, `pod` and `container` are those that the agent speaks of, not the agent's own.
honorLabels: true
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  {{- include "podperf.relabelings" (index . 1) | nindent 2 }}
  {{- with $monitor.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Metadata of a monitor. Arguments: its values, and the root. */}}
{{- define "podperf.monitorMetadata" -}}
{{- $monitor := index . 0 -}}
{{- $root := index . 1 -}}
name: {{ include "podperf.fullname" $root }}
namespace: {{ $monitor.namespace | default (include "podperf.namespace" $root) }}
labels:
  {{- include "podperf.labelsWith" (list $root $monitor.labels) | nindent 2 }}
{{- end -}}

{{/* Rule groups for Google's managed Prometheus. It takes the label `namespace` for the agent's own, so that the agent's is
`exported_namespace`, and calls the job by the PodMonitoring. Each group says its interval. Arguments: the groups, and the root. */}}
{{- define "podperf.managedRules" -}}
{{- $root := index . 1 -}}
{{- $groups := list -}}
{{- range (index . 0 | fromYaml).groups -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- $rule := . -}}
{{- $expr := regexReplaceAll `([({,]\s*)namespace(\s*[,)=!])` $rule.expr "${1}exported_namespace${2}" -}}
{{- $expr = $expr | replace (printf `job="%s"` (include "podperf.job" $root)) (printf `job="%s"` (include "podperf.fullname" $root)) -}}
{{- $_ := set $rule "expr" $expr -}}
{{- range $key, $text := $rule.annotations -}}
{{- $_ := set $rule.annotations $key (regexReplaceAll `(\$labels\.)namespace\b` $text "${1}exported_namespace") -}}
{{- end -}}
{{- $rules = append $rules $rule -}}
{{- end -}}
{{- $group := set . "rules" $rules -}}
{{- $groups = append $groups (merge $group (dict "interval" "1m")) -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}
