{{/* Values that cannot be meant: each message names the value and the way out. */}}

{{- define "podperf.refusals" -}}
{{- include "podperf.refuseMissing" . -}}
{{- include "podperf.refuseDisabled" . -}}
{{- include "podperf.refuseNames" . -}}
{{- include "podperf.refuseModes" . -}}
{{- include "podperf.refuseOtlp" . -}}
{{- include "podperf.refusePrivileges" . -}}
{{- include "podperf.refusePod" . -}}
{{- include "podperf.refuseReaders" . -}}
{{- include "podperf.refuseOpenProfiles" . -}}
{{- include "podperf.refuseMonitors" . -}}
{{- include "podperf.refuseSecondRelease" . -}}
{{- end -}}

{{/* Stored values of an older chart lack what is new. */}}
{{- define "podperf.refuseMissing" -}}
{{- $root := . -}}
{{- range list "image" "serviceAccount" "rbac" "securityContext" "openshift" "host" "http" "otlp" "podMonitor" "serviceMonitor"
  "podMonitoring" "vmPodScrape" "scrapeConfig" "prometheusAnnotations" "service" "prometheusRule" "dashboards" "networkPolicy"
  "verticalPodAutoscaler" "tests" -}}
{{- if not (kindIs "map" (get $root.Values .)) -}}
{{- fail (printf "%s: the values lack it: stored values of an older chart have no new keys, and a null takes a key away (use --reset-then-reuse-values in place of --reuse-values, and set no section to null)" .) -}}
{{- end -}}
{{- end -}}
{{- range $path := list "mode" "config" "clusterLabel" "image.repository" "http.address" "http.port" "http.tls" "http.authorization"
  "http.authorization.tokenSecret" "otlp.tls" "securityContext.capabilities" "securityContext.seccompProfile"
  "securityContext.appArmor" "securityContext.selinux" "host.cgroupMount" "host.cgroupPath" "host.bpffsMount" "host.runDir"
  "extraEnvFrom" "updateStrategy" "prometheusRule.groups" "prometheusRule.alerts" "dashboards.configMaps"
  "dashboards.configMaps.folderAnnotation" "dashboards.configMaps.annotations" "dashboards.grafanaOperator"
  "dashboards.grafanaOperator.instanceSelector" "hostNetwork" "tests.wait"
  "securityContext.seccompProfile.type" "securityContext.appArmor.type" "http.authorization.enabled" "http.authorization.tokenSecret.key" -}}
{{- $value := $root.Values -}}
{{- $lacks := false -}}
{{- range splitList "." $path -}}
{{- if or (not (kindIs "map" $value)) (not (hasKey ($value | default dict) .)) }}{{ $lacks = true }}{{ else }}{{ $value = get $value . }}{{ end -}}
{{- end -}}
{{- if or $lacks (kindIs "invalid" $value) -}}
{{- fail (printf "%s: the values lack it: a null takes a key away (leave the key out, so that it has its default; after --reuse-values use --reset-then-reuse-values)" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refuseDisabled" -}}
{{- if eq (toString .Values.enabled) "false" -}}
{{- fail "enabled: `false` is read by the chart that has this one as a dependency (add `condition: podperf.enabled` to the dependency; a release of this chart alone is removed by `helm uninstall`)" -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refuseNames" -}}
{{- $full := include "podperf.fullname" . -}}
{{- if not (regexMatch "^[a-z]" $full) -}}
{{- fail (printf "fullnameOverride: `%s` begins with a digit, which a Service's name may not on every Kubernetes (set fullnameOverride to a name that begins with a letter)" $full) -}}
{{- end -}}
{{- $root := . -}}
{{- $own := include "podperf.selectorLabels" . | fromYaml -}}
{{- range $path := list "commonLabels" "podLabels" "daemonSetLabels" "service.labels" -}}
{{- $labels := $root.Values -}}
{{- range splitList "." $path }}{{ $labels = get ($labels | default dict) . }}{{ end -}}
{{- range $label, $value := $own -}}
{{- if and (hasKey ($labels | default dict) $label) (ne (toString (get $labels $label)) (toString $value)) -}}
{{- fail (printf "%s: agents are selected by the label `%s` (leave it out, or set nameOverride)" $path $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refuseModes" -}}
{{- $config := .Values.config -}}
{{- $stacks := dig "stacks" "enabled" "" $config | toString -}}
{{- $unwind := dig "stacks" "unwind" "" $config | toString -}}
{{- if and (eq .Values.mode "metrics") (eq $stacks "true") -}}
{{- fail "config.stacks.enabled: the mode `metrics` has no privileges for the names in stacks (set mode: reasons, or mode: profiles for the functions of programs, too)" -}}
{{- end -}}
{{- if and (ne .Values.mode "metrics") (eq $stacks "false") -}}
{{- fail (printf "config.stacks.enabled: the mode `%s` would have privileges that nothing uses (set mode: metrics)" .Values.mode) -}}
{{- end -}}
{{- if and (eq .Values.mode "reasons") $unwind (ne $unwind "none") -}}
{{- fail "config.stacks.unwind: the mode `reasons` has no privileges for the functions of programs (set mode: profiles)" -}}
{{- end -}}
{{- if and (eq .Values.mode "profiles") (eq $unwind "none") -}}
{{- fail "config.stacks.unwind: the mode `profiles` would have privileges that nothing uses (set mode: reasons)" -}}
{{- end -}}
{{- range (dig "functions" list $config) -}}
{{- if and (dig "sensors" "functions" "enabled" false $config) .binary (not (include "podperf.profiles" $)) -}}
{{- fail (printf "config.functions: `%s` is a function of a program, and the mode `%s` has no privileges for the files of programs (set mode: profiles)" .name $.Values.mode) -}}
{{- end -}}
{{- if and (dig "sensors" "functions" "enabled" false $config) .binary (not $.Values.securityContext.capabilities.addSysAdmin) -}}
{{- fail (printf "config.functions: `%s` is a function of a program, and the kernel lets only SYS_ADMIN probe it (set securityContext.capabilities.addSysAdmin: true)" .name) -}}
{{- end -}}
{{- end -}}
{{- if eq (dig "identity" "kubernetes" $config) "none" -}}
{{- range $sensor, $keys := dig "sensors" dict $config -}}
{{- if and (dig "enabled" false $keys) (dig "namespaces" list $keys) -}}
{{- fail (printf "config.sensors.%s.namespaces: with config.identity: none no namespace is known (set config.identity: kubernetes, or leave the list empty)" $sensor) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (not (include "podperf.profiles" .)) (include "podperf.fetchesDebugFiles" .) -}}
{{- fail (printf "config.stacks.debuginfod.urls: the mode `%s` has no user frames (set mode: profiles)" .Values.mode) -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refuseOtlp" -}}
{{- $config := .Values.config -}}
{{- $endpoint := dig "otlp" "endpoint" "" $config -}}
{{- $pushes := dig "otlp" "metrics" "enabled" false $config -}}
{{- $receiver := include "podperf.receiver" . -}}
{{- $hidden := include "podperf.receiverIsHidden" . -}}
{{- if and (eq .Values.mode "metrics") $endpoint (not $pushes) -}}
{{- fail "config.otlp.endpoint: the mode `metrics` has no profiles to send (set mode: reasons or mode: profiles, or config.otlp.metrics.enabled: true)" -}}
{{- end -}}
{{- if and $pushes (not $receiver) (not $hidden) -}}
{{- fail "config.otlp.metrics.enabled: pushing metrics needs a receiver (set config.otlp.endpoint)" -}}
{{- end -}}
{{- if and .Values.otlp.tls.secretName (or (not $receiver) (hasPrefix "http://" $receiver)) (not $hidden) -}}
{{- fail "otlp.tls.secretName: certificates are for an https endpoint (set config.otlp.endpoint: https://...)" -}}
{{- end -}}
{{- if and .Values.otlp.tls.secretName (not .Values.otlp.tls.ca) (not .Values.otlp.tls.clientCertificate) -}}
{{- fail "otlp.tls.secretName: nothing of the secret would be used (set otlp.tls.ca or otlp.tls.clientCertificate)" -}}
{{- end -}}
{{- if include "podperf.otlpHeaders" . -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "OTEL_EXPORTER_OTLP_HEADERS" "OTEL_EXPORTER_OTLP_PROFILES_HEADERS") -}}
{{- fail (printf "config.otlp.headers: the variable `%s` of extraEnv says other headers (leave one of them)" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refusePrivileges" -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) (include "podperf.needsToken" .) -}}
{{- fail "serviceAccount.name: without a service account of its own, the agent needs the name of another (set it, or serviceAccount.create: true)" -}}
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
{{- end -}}

{{- define "podperf.refusePod" -}}
{{- if regexMatch "^(127\\..*|(0*:)+0*1|::[fF]{4}:(127\\..*|7[fF].*))$" .Values.http.address -}}
{{- fail (printf "http.address: `%s` is a loopback address, which the kubelet's probes and all readers, being outside of the pod, never reach (set ::, or 0.0.0.0 for IPv4 only)" .Values.http.address) -}}
{{- end -}}
{{- if not (has (dig "rollingUpdate" "maxSurge" 0 (.Values.updateStrategy | default dict) | toString) (list "0" "0%" "")) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge: a second agent of a node cannot start beside the first one, which holds the node's lock and pins (leave it out, and set maxUnavailable)" -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if has .name (list "NODE_NAME" "NODE_IP" "PODPERF_RUN_BY") -}}
{{- fail (printf "extraEnv: the chart itself sets `%s` (leave it out)" .name) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraVolumes -}}
{{- if has .name (list "config" "run" "bpffs" "cgroup" "http-tls" "otlp-tls" "debuginfod") -}}
{{- fail (printf "extraVolumes: the chart itself has a volume `%s` (choose another name)" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "podperf.refuseReaders" -}}
{{- if and .Values.hostNetwork (include "podperf.hasPolicy" .) -}}
{{- $value := ternary "networkPolicy.enabled" "http.readers" (eq (toString .Values.networkPolicy.enabled) "true") -}}
{{- fail (printf "%s: a NetworkPolicy does not hold for pods with the node's network (set hostNetwork: false)" $value) -}}
{{- end -}}
{{- $authorization := .Values.http.authorization -}}
{{- if and $authorization.enabled (not .Values.http.tls.secretName) -}}
{{- fail "http.authorization.enabled: tokens would be sent in clear text (set http.tls.secretName)" -}}
{{- end -}}
{{- if and $authorization.readers (not $authorization.enabled) -}}
{{- fail "http.authorization.readers: everybody may read (set http.authorization.enabled: true)" -}}
{{- end -}}
{{- $chosen := and (include "podperf.hasPolicy" .) (include "podperf.readers" .) -}}
{{- if and (dig "server" "anyFunction" false .Values.config) (not $authorization.enabled) (not $chosen) -}}
{{- fail "config.server.anyFunction: every pod of the cluster could slow programs of the node, or end them (set http.readers to the namespaces that may read, or http.authorization.enabled: true)" -}}
{{- end -}}
{{- if and (dig "server" "authorization" "audiences" list .Values.config) (not $authorization.enabled) -}}
{{- fail "config.server.authorization.audiences: no tokens are asked for (set http.authorization.enabled: true)" -}}
{{- end -}}
{{- if and $authorization.enabled (not $authorization.tokenSecret.name) (or .Values.podMonitor.enabled .Values.vmPodScrape.enabled .Values.scrapeConfig.enabled) -}}
{{- fail "http.authorization.tokenSecret.name: this monitor needs a secret with a token (set it, or use serviceMonitor)" -}}
{{- end -}}
{{- if and $authorization.enabled (or .Values.podMonitoring.enabled .Values.prometheusAnnotations.enabled) -}}
{{- fail "http.authorization.enabled: podMonitoring and prometheusAnnotations show no token (use serviceMonitor or podMonitor)" -}}
{{- end -}}
{{- end -}}

{{/* In the mode `profiles` an agent shows the stacks of all tenants of its node to whoever reaches its port. */}}
{{- define "podperf.refuseOpenProfiles" -}}
{{- $accepted := dig "acceptOpenProfiles" false .Values.http -}}
{{- if and (include "podperf.profiles" .) (not .Values.http.authorization.enabled) (not $accepted) -}}
{{- $ways := "set http.readers to the namespaces that may read, or http.authorization.enabled: true, or http.acceptOpenProfiles: true" -}}
{{- if not (include "podperf.hasPolicy" .) -}}
{{- fail (printf "http.acceptOpenProfiles: in the mode `profiles` the agents' open port shows the stacks of every tenant to every pod of the cluster (%s)" $ways) -}}
{{- end -}}
{{- if not (include "podperf.readers" .) -}}
{{- fail (printf "networkPolicy.from: empty, it lets in everybody, and in the mode `profiles` the agents' port shows the stacks of every tenant (%s)" $ways) -}}
{{- end -}}
{{- range $index, $peer := .Values.networkPolicy.from -}}
{{- with include "podperf.isEverybody" (list $peer (include "podperf.namespace" $)) -}}
{{- fail (printf "networkPolicy.from[%d]: %s, and in the mode `profiles` the agents' port shows the stacks of every tenant (%s)" $index . $ways) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Nothing, or in words why a peer of a NetworkPolicy is everybody. Labels of namespaces are an administrator's; those of pods
are chosen by whoever makes the pod, and so limit nobody. Pods of the agents' own namespace are trusted, since whoever makes pods there may own nodes; `default` is nobody's own.
A node has 256 addresses for pods on most clusters (/24): a wider block, or two halves of one, may be all pods. Arguments: the
peer, and the namespace of the agents. */}}
{{- define "podperf.isEverybody" -}}
{{- $namespace := index . 1 -}}
{{- $narrow := false -}}
{{- $peer := index . 0 -}}
{{- if hasKey $peer "ipBlock" -}}
{{- $cidr := dig "ipBlock" "cidr" "" $peer -}}
{{- $parts := splitList "/" $cidr -}}
{{- $least := ternary 120 24 (contains ":" (first $parts)) -}}
{{- if or (lt (len $parts) 2) (lt (int (last $parts)) $least) -}}
{{- printf "`%s` may hold the addresses of many pods (/%d and longer are taken)" $cidr $least -}}
{{- end -}}
{{- else if hasKey $peer "namespaceSelector" -}}
{{- $selector := $peer.namespaceSelector | default dict -}}
{{- if $selector.matchLabels }}{{ $narrow = true }}{{ end -}}
{{- range $selector.matchExpressions -}}
{{- if or (eq .operator "In") (and (eq .operator "Exists") (ne .key "kubernetes.io/metadata.name")) }}{{ $narrow = true }}{{ end -}}
{{- end -}}
{{- if not $narrow -}}
its namespaceSelector names no namespaces, so that pods of any namespace get in
{{- end -}}
{{- else if not (hasKey $peer "podSelector") -}}
an empty peer is everybody
{{- else if eq $namespace "default" -}}
a podSelector alone is for pods of the agents' own namespace, and `default` is everybody's
{{- end -}}
{{- end -}}

{{- define "podperf.refuseMonitors" -}}
{{- $monitors := list -}}
{{- range $name := list "podMonitor" "serviceMonitor" "podMonitoring" "vmPodScrape" "scrapeConfig" "prometheusAnnotations" -}}
{{- $monitor := index $.Values $name -}}
{{- if $monitor.enabled -}}
{{- $monitors = append $monitors (printf "%s.enabled" $name) -}}
{{- if and $monitor.interval $monitor.scrapeTimeout -}}
{{- if gt (include "podperf.milliseconds" $monitor.scrapeTimeout | int64) (include "podperf.milliseconds" $monitor.interval | int64) -}}
{{- fail (printf "%s.scrapeTimeout: %s is longer than the interval of %s (lower it, or raise the interval)" $name $monitor.scrapeTimeout $monitor.interval) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if gt (len $monitors) 1 -}}
{{- fail (printf "%s: each would collect the same metrics (leave one)" (join ", " $monitors)) -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled .Values.podMonitoring.enabled -}}
{{- fail "prometheusRule.enabled: managed Prometheus does not read PrometheusRules, and names labels in another way, so that alerts would fire for ever (set podMonitoring.rules.enabled: true in its place)" -}}
{{- end -}}
{{- if and (dig "rules" "enabled" false .Values.podMonitoring) (not .Values.podMonitoring.enabled) -}}
{{- fail "podMonitoring.rules.enabled: the rules are for what podMonitoring collects (set podMonitoring.enabled: true, or use prometheusRule)" -}}
{{- end -}}
{{- if and .Values.prometheusRule.enabled .Values.prometheusAnnotations.enabled (not (get .Values.prometheusRule "job")) -}}
{{- fail "prometheusRule.enabled: a Prometheus that goes by annotations calls the agents by a job of its own, so that `PodperfDown` would fire for ever (set prometheusRule.job to that job, or use podMonitor in place of prometheusAnnotations)" -}}
{{- end -}}
{{- end -}}

{{/* A duration of Prometheus, such as `1m30s`, as a number. */}}
{{- define "podperf.milliseconds" -}}
{{- $units := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 "y" 31536000000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[smhdwy])" . -1 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- $sum = add $sum (mul (int64 $number) (get $units (trimPrefix $number .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Two agents on a node would pin at the same place, and be counted twice. Seen where Helm asks the cluster, so not by
`helm template`. Two releases may share a cluster where one label of their node selectors keeps them on different nodes. */}}
{{- define "podperf.refuseSecondRelease" -}}
{{- if ne (toString .Values.refuseSecondRelease) "false" -}}
{{- $root := . -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items -}}
{{- $labels := .metadata.labels | default dict -}}
{{- $annotations := .metadata.annotations | default dict -}}
{{- $old := and (regexMatch "^podperf-v?[0-9]" (get $labels "helm.sh/chart")) (eq (get $labels "app.kubernetes.io/component") "agent") -}}
{{- if or $old (eq (get $annotations "podperf.io/chart") "podperf") -}}
{{- $release := get $annotations "meta.helm.sh/release-name" | default (get $labels "app.kubernetes.io/instance") -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" | default .metadata.namespace -}}
{{- $sameName := eq (get $labels "app.kubernetes.io/name" | default "") (include "podperf.name" $root) -}}
{{- $sameRelease := and (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace) -}}
{{- $sameObject := and (eq .metadata.name (include "podperf.fullname" $root)) (eq .metadata.namespace (include "podperf.namespace" $root)) -}}
{{- $apart := false -}}
{{- range $label, $value := .spec.template.spec.nodeSelector -}}
{{- if and (hasKey ($root.Values.nodeSelector | default dict) $label) (ne (toString (get $root.Values.nodeSelector $label)) (toString $value)) }}{{ $apart = true }}{{ end -}}
{{- end -}}
{{- if and $sameRelease (not (or $sameName $sameObject $apart)) -}}
{{- fail (printf "refuseSecondRelease: this release has the chart twice, as `%s` and as `%s`, and a second agent of a node does not start, or counts the same pods twice (leave one, or give both a nodeSelector with different values of one label; set refuseSecondRelease: false while nameOverride changes)" (get $labels "app.kubernetes.io/name") (include "podperf.name" $root)) -}}
{{- end -}}
{{- if not (or $sameRelease $sameObject $apart) -}}
{{- fail (printf "refuseSecondRelease: the release `%s` in the namespace `%s` has agents on the same nodes, where a second agent does not start, or counts the same pods twice (remove one release, or give both a nodeSelector with different values of one label, or set refuseSecondRelease: false where affinity or taints keep them on different nodes)" $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
