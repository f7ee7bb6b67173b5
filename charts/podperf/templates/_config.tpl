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

{{/* The directory in which the certificates for `config.otlp.endpoint` are mounted. */}}
{{- define "podperf.otlpTlsDir" -}}
/etc/podperf-otlp-tls
{{- end -}}

{{/* The directory in which the server's certificate is mounted. */}}
{{- define "podperf.httpTlsDir" -}}
/etc/podperf-http-tls
{{- end -}}

{{/* The directory in which the node's debug files are mounted. */}}
{{- define "podperf.debugFilesDir" -}}
/var/cache/podperf
{{- end -}}

{{/* The name in the server's certificate. */}}
{{- define "podperf.serverName" -}}
{{- .Values.http.tls.serverName | default (printf "%s.%s.svc" (include "podperf.fullname" .) (include "podperf.namespace" .)) -}}
{{- end -}}

{{- define "podperf.httpScheme" -}}
{{- if .Values.http.tls.secretName }}https{{ else }}http{{ end -}}
{{- end -}}

{{/* As an object, in YAML. */}}
{{- define "podperf.config" -}}
{{- $chart := dict
  "listen" (include "podperf.listen" .)
  "runDir" "/run/podperf"
  "identity" "kubernetes"
  "cgroups" (dict "root" (include "podperf.cgroupRoot" .))
  "stacks" (dict "enabled" (include "podperf.takesStacks" . | eq "true"))
  "restart" (dict "pin" (include "podperf.pins" . | eq "true") "directory" "/host/sys/fs/bpf/podperf")
-}}
{{- if eq .Values.mode "reasons" }}{{ $_ := set $chart.stacks "unwind" "none" }}{{ end -}}
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
{{- /* The default mode takes stacks. A receiver of metrics gets profiles of it only if the values say so. */ -}}
{{- if and (eq .Values.mode "reasons") (dig "otlp" "metrics" "enabled" false .Values.config) -}}
{{- $_ := set $chart "otlp" (merge (dict "profiles" false) (get $chart "otlp" | default dict)) -}}
{{- end -}}
{{- if .Values.http.tls.secretName -}}
{{- $dir := include "podperf.httpTlsDir" . -}}
{{- $server := dict "tls" (dict "certFile" (printf "%s/tls.crt" $dir) "keyFile" (printf "%s/tls.key" $dir)) -}}
{{- if .Values.http.authorization.enabled }}{{ $_ := set $server "authorization" (dict "enabled" true) }}{{ end -}}
{{- $_ := set $chart "server" $server -}}
{{- end -}}
{{- if include "podperf.fetchesDebugFiles" . -}}
{{- $_ := set $chart.stacks "debuginfod" (dict "cacheDir" (include "podperf.debugFilesDir" .)) -}}
{{- end -}}
{{- $said := deepCopy .Values.config -}}
{{- if include "podperf.otlpHeaders" . }}{{ $_ := unset $said.otlp "headers" }}{{ end -}}
{{- mergeOverwrite $chart $said | toYaml -}}
{{- end -}}

{{/* `config.otlp.headers` as the agent reads it from its environment: `name=value,name=value`, percent-encoded. Headers are
credentials as often as not, so that they are in a Secret, and not in the ConfigMap. */}}
{{- define "podperf.otlpHeaders" -}}
{{- $pairs := list -}}
{{- range $name, $value := dig "otlp" "headers" dict .Values.config | default dict -}}
{{- $pairs = append $pairs (printf "%s=%s" (urlquery $name) (urlquery $value) | replace "+" "%20") -}}
{{- end -}}
{{- join "," $pairs -}}
{{- end -}}

{{- define "podperf.otlpSecret" -}}
{{- include "podperf.objectName" (list . "otlp") -}}
{{- end -}}

{{/* A checksum of all that only a restart changes. The agent follows the other keys in its file, and keeps its counts. */}}
{{- define "podperf.configChecksum" -}}
{{- $config := include "podperf.config" . | fromYaml -}}
{{- with include "podperf.otlpHeaders" . }}{{ $_ := set $config "headers" . }}{{ end -}}
{{- $cgroups := omit $config.cgroups "depth" "include" "exclude" "grace" -}}
{{- $metrics := pick (default dict $config.metrics) "level" -}}
{{- /* If the list of facts is empty, the agent may not measure facts. Only a restart starts the measuring. */ -}}
{{- if not (dig "facts" (list "default") (default dict $config.metrics)) }}{{ $_ := set $metrics "facts" list }}{{ end -}}
{{- $overhead := omit (default dict $config.overhead) "maxMemory" -}}
{{- $parts := dict "cgroups" $cgroups "metrics" $metrics "overhead" $overhead -}}
{{- mergeOverwrite (omit $config "logLevel" "cgroups" "metrics" "overhead") $parts | toYaml | sha256sum -}}
{{- end -}}
