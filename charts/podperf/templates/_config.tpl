{{/* The agent's configuration: what the chart says, and over it what the values say. */}}

{{- define "podperf.cgroupRoot" -}}
{{- list "/host/sys/fs/cgroup" (trimAll "/" .Values.host.cgroupPath) | compact | join "/" -}}
{{- end -}}

{{/* An address of Rust's kind: IPv6 in brackets. */}}
{{- define "podperf.listen" -}}
{{- $address := .Values.http.address -}}
{{- if contains ":" $address }}{{ $address = printf "[%s]" $address }}{{ end -}}
{{- printf "%s:%d" $address (int .Values.http.port) -}}
{{- end -}}

{{/* Where the certificates for `config.otlp.endpoint` are mounted. */}}
{{- define "podperf.otlpTlsDir" -}}
/etc/podperf-otlp-tls
{{- end -}}

{{/* As an object, in YAML. */}}
{{- define "podperf.config" -}}
{{- $chart := dict
  "listen" (include "podperf.listen" .)
  "runDir" "/run/podperf"
  "identity" "kubernetes"
  "cgroups" (dict "root" (include "podperf.cgroupRoot" .))
  "stacks" (dict "enabled" (include "podperf.profiles" . | eq "true"))
  "restart" (dict "pin" (include "podperf.pins" . | eq "true"))
-}}
{{- if and (include "podperf.pins" .) (include "podperf.asksForPods" .) -}}
{{- $_ := set $chart.restart "daemonSet" (printf "%s/%s" (include "podperf.namespace" .) (include "podperf.fullname" .)) -}}
{{- end -}}
{{- with .Values.otlp.tls -}}
{{- if .secretName -}}
{{- $dir := include "podperf.otlpTlsDir" $ -}}
{{- $tls := dict -}}
{{- if .ca }}{{ $_ := set $tls "caFile" (printf "%s/ca.crt" $dir) }}{{ end -}}
{{- if .clientCertificate -}}
{{- $_ := set $tls "certFile" (printf "%s/tls.crt" $dir) -}}
{{- $_ := set $tls "keyFile" (printf "%s/tls.key" $dir) -}}
{{- end -}}
{{- $_ := set $chart "otlp" (dict "tls" $tls) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $chart (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{/* Of what only a restart changes. The agent follows the other keys in its file, and keeps its counts. */}}
{{- define "podperf.configChecksum" -}}
{{- $config := include "podperf.config" . | fromYaml -}}
{{- $cgroups := omit $config.cgroups "depth" "include" "exclude" "grace" -}}
{{- $metrics := pick (default dict $config.metrics) "level" -}}
{{- mergeOverwrite (omit $config "logLevel" "cgroups" "metrics") (dict "cgroups" $cgroups "metrics" $metrics) | toYaml | sha256sum -}}
{{- end -}}
