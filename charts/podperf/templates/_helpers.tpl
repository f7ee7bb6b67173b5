{{/* Names, labels, the image. */}}

{{- define "podperf.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* A name of at most so many characters. One that is cut ends in a hash of the whole, so that two long names stay two.
Arguments: the name, and the limit. */}}
{{- define "podperf.cut" -}}
{{- $whole := index . 0 -}}
{{- $limit := index . 1 -}}
{{- $name := $whole | replace "." "-" -}}
{{- if or (ne $name $whole) (gt (len $name) $limit) -}}
{{- printf "%s-%s" ($name | trunc (int (sub $limit 9)) | trimSuffix "-") ($whole | sha256sum | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* 47 characters at most, since names are made of it. No dots: it is a Service's name, too. */}}
{{- define "podperf.fullname" -}}
{{- $name := include "podperf.name" . -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}
{{- $full = .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- $full = .Release.Name -}}
{{- end -}}
{{- include "podperf.cut" (list $full 47) -}}
{{- end -}}

{{- define "podperf.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* The name of cluster-wide objects: two releases must not share them. */}}
{{- define "podperf.clusterName" -}}
{{- printf "%s-%s" (include "podperf.namespace" .) (include "podperf.fullname" .) -}}
{{- end -}}

{{- define "podperf.selectorLabels" -}}
app.kubernetes.io/name: {{ include "podperf.name" . | toYaml }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
app.kubernetes.io/component: agent
{{- end -}}

{{/* The labels of an object. Arguments: the root, and dictionaries of labels, of which the last one wins. The labels that
select agents, and the chart's, are never replaced: no key is there twice. */}}
{{- define "podperf.labelsWith" -}}
{{- $root := first . -}}
{{- $labels := dict "app.kubernetes.io/part-of" "podperf"
  "app.kubernetes.io/managed-by" $root.Release.Service
  "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- range prepend (rest .) $root.Values.commonLabels -}}
{{- $labels = merge (dict) (. | default dict) $labels -}}
{{- end -}}
{{- $chart := printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- merge (dict "helm.sh/chart" $chart) (include "podperf.selectorLabels" $root | fromYaml) $labels | toYaml -}}
{{- end -}}

{{- define "podperf.labels" -}}
{{- include "podperf.labelsWith" (list .) -}}
{{- end -}}

{{/* The labels of the agents' pods. No version is among them, since a changed pod is a restarted one. */}}
{{- define "podperf.podLabels" -}}
{{- $more := merge (dict) (.Values.podLabels | default dict) (.Values.commonLabels | default dict) -}}
{{- merge (include "podperf.selectorLabels" . | fromYaml) $more | toYaml -}}
{{- end -}}

{{/* The annotations of the agents' pods: those of the chart are never replaced. The checksum is of the values that the agent does
not follow in its file. */}}
{{- define "podperf.podAnnotations" -}}
{{- $own := dict "kubectl.kubernetes.io/default-container" "podperf" "checksum/config" (include "podperf.configChecksum" .) -}}
{{- with include "podperf.appArmorAnnotation" . }}{{ $own = merge $own (fromYaml .) }}{{ end -}}
{{- if .Values.prometheusAnnotations.enabled -}}
{{- $own = merge $own (dict "prometheus.io/scrape" "true" "prometheus.io/port" (toString .Values.http.port) "prometheus.io/path" "/metrics") -}}
{{- if .Values.http.tls.secretName }}{{ $_ := set $own "prometheus.io/scheme" "https" }}{{ end -}}
{{- end -}}
{{- merge $own (.Values.podAnnotations | default dict) | toYaml -}}
{{- end -}}

{{/* Values of charts that this one is part of, and of Helm's own. */}}
{{- define "podperf.global" -}}
{{- .Values.global | default dict | toYaml -}}
{{- end -}}

{{- define "podperf.image" -}}
{{- $global := include "podperf.global" . | fromYaml -}}
{{- $registry := default .Values.image.registry $global.imageRegistry -}}
{{- $name := list $registry .Values.image.repository | compact | join "/" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A list in YAML, or nothing. `global.imagePullSecrets` has names or objects, as other charts take them. */}}
{{- define "podperf.imagePullSecrets" -}}
{{- $global := include "podperf.global" . | fromYaml -}}
{{- $secrets := list -}}
{{- range concat (.Values.imagePullSecrets | default list) ($global.imagePullSecrets | default list) -}}
{{- $secrets = append $secrets (dict "name" (kindIs "string" . | ternary . (get (kindIs "map" . | ternary . dict) "name"))) -}}
{{- end -}}
{{- with uniq $secrets }}{{ toYaml . }}{{ end -}}
{{- end -}}

{{- define "podperf.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "podperf.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Not empty where pods have names, and so the agent a token and its RBAC. */}}
{{- define "podperf.asksForPods" -}}
{{- if ne (dig "identity" "kubernetes" .Values.config) "none" }}true{{ end -}}
{{- end -}}

{{/* Not empty where agents leave their counts to the next one. An agent that may not ask for the DaemonSet could not clean up. */}}
{{- define "podperf.pins" -}}
{{- $pin := ternary "true" "" (include "podperf.asksForPods" . | eq "true") -}}
{{- if dig "restart" "pin" (eq $pin "true") .Values.config }}true{{ end -}}
{{- end -}}

{{/* The directory of the node's pins that is mounted, or nothing where the whole bpffs is. */}}
{{- define "podperf.ownPins" -}}
{{- if dig "ownPinsOnly" false .Values.host }}{{ printf "%s/podperf" (trimSuffix "/" .Values.host.bpffsMount) }}{{ end -}}
{{- end -}}

{{/* Not empty where agents ask debuginfod servers, and keep the files that these send. */}}
{{- define "podperf.fetchesDebugFiles" -}}
{{- if dig "stacks" "debuginfod" "urls" list .Values.config }}true{{ end -}}
{{- end -}}

{{/* The directory of the node for these files. */}}
{{- define "podperf.cacheDir" -}}
{{- dig "cacheDir" "/var/cache/podperf" .Values.host -}}
{{- end -}}

{{- define "podperf.fromKubelet" -}}
{{- if and (include "podperf.asksForPods" .) (eq (dig "kubernetes" "source" "watch" .Values.config) "kubelet") }}true{{ end -}}
{{- end -}}

{{/* Not empty where the agent asks the API server anything, and so needs a token. */}}
{{- define "podperf.needsToken" -}}
{{- if or (include "podperf.asksForPods" .) .Values.http.authorization.enabled }}true{{ end -}}
{{- end -}}

{{- define "podperf.isOpenShift" -}}
{{- if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end -}}
{{- end -}}

{{/* Not empty where a value of `auto`, true or false means yes on this cluster. */}}
{{- define "podperf.onOpenShift" -}}
{{- $value := index . 0 -}}
{{- if eq (toString $value) "auto" -}}
{{- include "podperf.isOpenShift" (index . 1) -}}
{{- else if $value -}}
true
{{- end -}}
{{- end -}}

{{/* The name of an object that is made of a file: the full name and the file's, once if that says `podperf` itself. */}}
{{- define "podperf.objectName" -}}
{{- $name := index . 1 | trimPrefix "podperf-" | replace "_" "-" | lower -}}
{{- include "podperf.cut" (list (printf "%s-%s" (include "podperf.fullname" (index . 0)) $name) 63) -}}
{{- end -}}
