{{/* What all monitors say of targets and their labels. */}}

{{/* An agent is called by its node, however often its pod is replaced; the rules and dashboards go by these labels. */}}
{{- define "podperf.relabelings" -}}
- targetLabel: job
  replacement: podperf
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: instance
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
{{- end -}}

{{/* How Prometheus gets in. Arguments: the monitor's values, the root, and the scheme as it is
written there. */}}
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
# `namespace`, `pod` and `container` are of whom the agent speaks, not of the agent.
honorLabels: true
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
relabelings:
  {{- include "podperf.relabelings" . | nindent 2 }}
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
  {{- include "podperf.labels" $root | nindent 2 }}
  {{- with $monitor.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
