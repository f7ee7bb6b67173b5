{{/* What cannot be meant: each message names the value and the way out. */}}

{{- define "podperf.refusals" -}}
{{- $config := .Values.config -}}
{{- $stacks := dig "stacks" "enabled" "" $config | toString -}}
{{- $endpoint := dig "otlp" "endpoint" "" $config -}}
{{- $pushes := dig "otlp" "metrics" "enabled" false $config -}}
{{- $environment := or (contains "OTEL_EXPORTER_OTLP_" (toJson .Values.extraEnv)) (gt (len .Values.extraEnvFrom) 0) -}}

{{- if and (eq .Values.mode "metrics") (eq $stacks "true") -}}
{{- fail "config.stacks.enabled: the mode `metrics` has no privileges for the names in stacks (set mode: profiles)" -}}
{{- end -}}
{{- if and (eq .Values.mode "profiles") (eq $stacks "false") -}}
{{- fail "config.stacks.enabled: the mode `profiles` would have privileges that nothing uses (set mode: metrics)" -}}
{{- end -}}
{{- if and (eq .Values.mode "profiles") (not (dig "facts" "enabled" true $config)) -}}
{{- fail "config.facts.enabled: the mode `profiles` needs the facts, which measure the waits (leave it out, or set mode: metrics)" -}}
{{- end -}}
{{- if and (eq .Values.mode "metrics") $endpoint (not $pushes) -}}
{{- fail "config.otlp.endpoint: the mode `metrics` has no profiles to send (set mode: profiles, or config.otlp.metrics.enabled: true)" -}}
{{- end -}}
{{- if and $pushes (not $endpoint) (not $environment) -}}
{{- fail "config.otlp.metrics.enabled: pushing metrics needs a receiver (set config.otlp.endpoint)" -}}
{{- end -}}
{{- if and .Values.otlp.tls.secretName (not (hasPrefix "https://" $endpoint)) (not $environment) -}}
{{- fail "otlp.tls.secretName: certificates are for an https endpoint (set config.otlp.endpoint: https://...)" -}}
{{- end -}}
{{- if and .Values.otlp.tls.secretName (not .Values.otlp.tls.ca) (not .Values.otlp.tls.clientCertificate) -}}
{{- fail "otlp.tls.secretName: nothing of the secret would be used (set otlp.tls.ca or otlp.tls.clientCertificate)" -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) (include "podperf.needsToken" .) -}}
{{- fail "serviceAccount.name: without a service account of its own, the agent needs the name of another (set it, or serviceAccount.create: true)" -}}
{{- end -}}
{{- if and .Values.hostNetwork .Values.networkPolicy.enabled -}}
{{- fail "networkPolicy.enabled: a NetworkPolicy does not hold for pods with the node's network (set hostNetwork: false)" -}}
{{- end -}}
{{- if and (eq .Values.securityContext.seccompProfile.type "Localhost") (not .Values.securityContext.seccompProfile.localhostProfile) -}}
{{- fail "securityContext.seccompProfile.localhostProfile: `Localhost` needs the profile's file" -}}
{{- end -}}
{{- if and (eq .Values.securityContext.appArmor.type "Localhost") (not .Values.securityContext.appArmor.localhostProfile) -}}
{{- fail "securityContext.appArmor.localhostProfile: `Localhost` needs the profile's name" -}}
{{- end -}}
{{- if and (include "podperf.profiles" .) (eq .Values.securityContext.appArmor.type "RuntimeDefault") -}}
{{- fail "securityContext.appArmor.type: the runtime's profile forbids looking at other processes, which mode: profiles is for (set auto)" -}}
{{- end -}}
{{- $authorization := .Values.http.authorization -}}
{{- if and $authorization.enabled (not .Values.http.tls.secretName) -}}
{{- fail "http.authorization.enabled: tokens would be sent in clear text (set http.tls.secretName)" -}}
{{- end -}}
{{- if and $authorization.readers (not $authorization.enabled) -}}
{{- fail "http.authorization.readers: everybody may read (set http.authorization.enabled: true)" -}}
{{- end -}}
{{- if and (dig "server" "authorization" "audiences" list $config) (not $authorization.enabled) -}}
{{- fail "config.server.authorization.audiences: no tokens are asked for (set http.authorization.enabled: true)" -}}
{{- end -}}
{{- if and $authorization.enabled (not $authorization.tokenSecret.name) (or .Values.podMonitor.enabled .Values.scrapeConfig.enabled) -}}
{{- fail "http.authorization.tokenSecret.name: this monitor needs a secret with a token (set it, or use serviceMonitor)" -}}
{{- end -}}
{{- if and $authorization.enabled (or .Values.podMonitoring.enabled .Values.prometheusAnnotations.enabled) -}}
{{- fail "http.authorization.enabled: podMonitoring and prometheusAnnotations show no token (use serviceMonitor or podMonitor)" -}}
{{- end -}}
{{- $monitors := list -}}
{{- range $name := list "podMonitor" "serviceMonitor" "podMonitoring" "scrapeConfig" "prometheusAnnotations" -}}
{{- if (index $.Values $name).enabled }}{{ $monitors = append $monitors (printf "%s.enabled" $name) }}{{ end -}}
{{- end -}}
{{- if gt (len $monitors) 1 -}}
{{- fail (printf "%s: each would collect the same metrics (leave one)" (join ", " $monitors)) -}}
{{- end -}}
{{- end -}}
