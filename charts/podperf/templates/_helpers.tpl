{{/* Names, labels, the image. */}}

{{- define "podperf.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* 47 characters at most, since names are made of it. */}}
{{- define "podperf.fullname" -}}
{{- $name := include "podperf.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 47 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 47 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "podperf.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Of cluster-wide objects: two releases must not share them. */}}
{{- define "podperf.clusterName" -}}
{{- printf "%s-%s" (include "podperf.namespace" .) (include "podperf.fullname" .) -}}
{{- end -}}

{{- define "podperf.selectorLabels" -}}
app.kubernetes.io/name: {{ include "podperf.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "podperf.labels" -}}
{{- with .Values.commonLabels -}}
{{ toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: podperf
{{ include "podperf.selectorLabels" . }}
{{- end -}}

{{- define "podperf.image" -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- $name := list $registry .Values.image.repository | compact | join "/" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
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

{{/* Not empty where agents leave their counts to the next one. Who may not ask for the DaemonSet could not clean up after it. */}}
{{- define "podperf.pins" -}}
{{- $pin := ternary "true" "" (include "podperf.asksForPods" . | eq "true") -}}
{{- if dig "restart" "pin" (eq $pin "true") .Values.config }}true{{ end -}}
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

{{/* Of what is made of a file: the full name and the file's, once if that says `podperf` itself. */}}
{{- define "podperf.objectName" -}}
{{- $name := index . 1 | trimPrefix "podperf-" | replace "_" "-" | lower -}}
{{- printf "%s-%s" (include "podperf.fullname" (index . 0)) $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
