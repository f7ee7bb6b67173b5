{{/* Peers that connect to agents, and peers that agents connect to, for the NetworkPolicy. */}}

{{/* "true" if there is a NetworkPolicy, else nothing. */}}
{{- define "podperf.hasPolicy" -}}
{{- if or .Values.networkPolicy.enabled .Values.http.readers }}true{{ end -}}
{{- end -}}

{{/* The peers that may read, as a list in YAML; nothing where everybody may. */}}
{{- define "podperf.readers" -}}
{{- $peers := .Values.networkPolicy.from | default list -}}
{{- range .Values.http.readers -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) -}}
{{- end -}}
{{- with $peers }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{/* The OTLP receiver's endpoint, or nothing: as the agent does, by the flag before the file and the file before the environment,
and there by the signal's own variable first. A variable of a secret is not known here. */}}
{{- define "podperf.receiver" -}}
{{- $found := "" -}}
{{- range $index, $argument := .Values.extraArgs | default list -}}
{{- if hasPrefix "--otlp-endpoint=" (toString $argument) }}{{ $found = trimPrefix "--otlp-endpoint=" $argument }}{{ end -}}
{{- if and (eq (toString $argument) "--otlp-endpoint") (lt (add1 $index) (len $.Values.extraArgs)) -}}
{{- $found = index $.Values.extraArgs (add1 $index) -}}
{{- end -}}
{{- end -}}
{{- $found = $found | default (dig "otlp" "endpoint" "" .Values.config) -}}
{{- range $name := list "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT" "OTEL_EXPORTER_OTLP_ENDPOINT" -}}
{{- range $.Values.extraEnv -}}
{{- if and (not $found) (eq .name $name) }}{{ $found = .value | default "" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- $found -}}
{{- end -}}

{{/* Not empty where a receiver may be set that the chart cannot see. */}}
{{- define "podperf.receiverIsHidden" -}}
{{- if not (include "podperf.receiver" .) -}}
{{- range .Values.extraEnv -}}
{{- if and (hasKey . "valueFrom") (has .name (list "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT" "OTEL_EXPORTER_OTLP_ENDPOINT")) }}true{{ end -}}
{{- end -}}
{{- if .Values.extraEnvFrom }}true{{ end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.portOf" -}}
{{- $host := regexReplaceAll "^([a-z]+://)?([^/]*).*$" . "${2}" -}}
{{- if regexMatch ":[0-9]+$" $host -}}
{{- regexReplaceAll "^.*:([0-9]+)$" $host "${1}" -}}
{{- else -}}
{{- ternary "443" "80" (hasPrefix "https://" .) -}}
{{- end -}}
{{- end -}}

{{/* A list in YAML. OpenShift's DNS listens on 5353 behind its Service, and policies go by the pod's port. */}}
{{- define "podperf.dnsPorts" -}}
{{- $default := ternary 5353 53 (include "podperf.isOpenShift" . | eq "true") -}}
{{- dig "dns" "ports" list .Values.networkPolicy | default (list $default) | toYaml -}}
{{- end -}}

{{/* A list in YAML, or nothing where the pods ask servers that the chart does not know. */}}
{{- define "podperf.dnsPeers" -}}
{{- $to := dig "dns" "to" list .Values.networkPolicy -}}
{{- if $to -}}
{{- toYaml $to -}}
{{- else if has .Values.dnsPolicy (list "Default" "None") -}}
{{- else if include "podperf.isOpenShift" . -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: openshift-dns
{{- else -}}
- namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: kube-system
  podSelector:
    matchLabels:
      k8s-app: kube-dns
# The cache that NodeLocal DNSCache has on each node.
- ipBlock:
    cidr: 169.254.20.10/32
{{- end -}}
{{- end -}}
