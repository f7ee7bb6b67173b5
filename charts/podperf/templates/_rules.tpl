{{/* The plain rule files with what the values say of them. */}}

{{/* The files, by name. In YAML, since templates hand on text only. */}}
{{- define "podperf.ruleFiles" -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yaml" }}
{{ base $path | trimSuffix ".yaml" }}: {{ $path }}
{{- end }}
{{- end -}}

{{/* The job by which the rules know the agents. */}}
{{- define "podperf.job" -}}
{{- get .Values.prometheusRule "job" | default "podperf" -}}
{{- end -}}

{{/* Refuses values for groups and alerts that are in no file, and those that would leave alerts without their numbers. */}}
{{- define "podperf.ruleRefusals" -}}
{{- $groups := dict -}}
{{- $alerts := dict -}}
{{- range $_, $path := include "podperf.ruleFiles" . | fromYaml -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- $_ := set $groups .name .rules -}}
{{- range .rules }}{{ if .alert }}{{ $_ := set $alerts .alert true }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.prometheusRule.groups -}}
{{- if not (hasKey $groups $name) -}}
{{- fail (printf "prometheusRule.groups.%s: there is no such group (there are: %s)" $name (keys $groups | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.prometheusRule.alerts -}}
{{- if not (hasKey $alerts $name) -}}
{{- fail (printf "prometheusRule.alerts.%s: there is no such alert (there are: %s)" $name (keys $alerts | sortAlpha | join ", " | default "none")) -}}
{{- end -}}
{{- end -}}
{{- if or .Values.prometheusRule.enabled (dig "rules" "enabled" false .Values.podMonitoring) -}}
{{- include "podperf.ruleGroupRefusals" (list $groups .Values.prometheusRule) -}}
{{- include "podperf.ruleIntervalRefusals" . -}}
{{- end -}}
{{- end -}}

{{/* Refuses a group that is left out although rules that stay need its numbers, and one that is too slow. Arguments: the rules of
each group, and the values. */}}
{{- define "podperf.ruleGroupRefusals" -}}
{{- $groups := index . 0 -}}
{{- $values := index . 1 -}}
{{- $missing := dict -}}
{{- range $name, $ofGroup := $values.groups -}}
{{- range get $groups $name -}}
{{- if .record -}}
{{- if not (dig "enabled" true $ofGroup) }}{{ $_ := set $missing .record $name }}{{ end -}}
{{- if and $ofGroup.interval (ge (include "podperf.milliseconds" $ofGroup.interval | int64) 300000) -}}
{{- fail (printf "prometheusRule.groups.%s.interval: Prometheus uses a point for five minutes, so that those of this group would come and go (set less than 5m)" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $rules := $groups -}}
{{- if dig $name "enabled" true $values.groups -}}
{{- range $rules -}}
{{- $rule := . -}}
{{- if or .record (dig .alert "enabled" true $values.alerts) -}}
{{- range $record, $group := $missing -}}
{{- if regexMatch (printf `(^|[^a-z0-9_:])%s($|[^a-z0-9_:])` $record) $rule.expr -}}
{{- fail (printf "prometheusRule.groups.%s.enabled: %s needs its numbers (leave the group in, or leave that out, too)" $group ($rule.alert | default (printf "the group %s" $name))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses monitors that scrape too seldom for the rules. */}}
{{- define "podperf.ruleIntervalRefusals" -}}
{{- range $name := list "podMonitor" "serviceMonitor" "podMonitoring" "scrapeConfig" "vmPodScrape" -}}
{{- $monitor := get $.Values $name | default dict -}}
{{- if and $monitor.enabled $monitor.interval -}}
{{- if gt (include "podperf.milliseconds" $monitor.interval | int64) 120000 -}}
{{- fail (printf "%s.interval: rates of the rules are over five minutes and need two scrapes in each, also if one fails (set 2m or less, or prometheusRule.enabled: false)" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The groups of one file. Arguments: the file's text, and the root. */}}
{{- define "podperf.ruleGroups" -}}
{{- $root := index . 1 -}}
{{- $values := $root.Values.prometheusRule -}}
{{- $groups := list -}}
{{- range (index . 0 | fromYaml).groups -}}
{{- $group := . -}}
{{- $ofGroup := get $values.groups .name | default dict -}}
{{- if dig "enabled" true $ofGroup -}}
{{- if $ofGroup.interval }}{{ $_ := set $group "interval" $ofGroup.interval }}{{ end -}}
{{- $rules := list -}}
{{- range .rules -}}
{{- $ofAlert := dict -}}
{{- if .alert }}{{ $ofAlert = get $values.alerts .alert | default dict }}{{ end -}}
{{- if dig "enabled" true $ofAlert -}}
{{- $rules = append $rules (include "podperf.rule" (list . $ofAlert $root.Values (include "podperf.job" $root)) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- if $rules }}{{ $groups = append $groups (set $group "rules" $rules) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}

{{/* One rule. Arguments: the rule, the alert's values, all values, and the agents' job. */}}
{{- define "podperf.rule" -}}
{{- $rule := index . 0 -}}
{{- $ofAlert := index . 1 -}}
{{- $values := (index . 2).prometheusRule -}}
{{- $clusterLabel := (index . 2).clusterLabel -}}
{{- $expr := toString $rule.expr | replace `job="podperf"` (printf `job="%s"` (index . 3)) -}}
{{- range $name, $threshold := $ofAlert.thresholds -}}
{{- $marker := printf `(?m)[0-9][0-9.eE+-]*([ \t]*# threshold %s[ \t]*)$` $name -}}
{{- if not (regexMatch $marker $expr) -}}
{{- $known := list -}}
{{- range regexFindAll `# threshold [A-Za-z0-9_]+` $expr -1 }}{{ $known = append $known (trimPrefix "# threshold " .) }}{{ end -}}
{{- fail (printf "prometheusRule.alerts.%s.thresholds.%s: there is no such threshold (there are: %s)" $rule.alert $name (join ", " (uniq $known) | default "none")) -}}
{{- end -}}
{{- $expr = regexReplaceAll $marker $expr (printf "%v${1}" $threshold) -}}
{{- end -}}
{{- if ne $clusterLabel "cluster" -}}
{{- $expr = include "podperf.renameCluster" (list $expr $clusterLabel) -}}
{{- end -}}
{{- $_ := set $rule "expr" $expr -}}
{{- if $rule.alert -}}
{{- with index $ofAlert "for" }}{{ $_ := set $rule "for" . }}{{ end -}}
{{- $labels := merge dict (default dict $ofAlert.labels) (default dict $values.additionalRuleLabels) (default dict $rule.labels) -}}
{{- with $ofAlert.severity }}{{ $_ := set $labels "severity" . }}{{ end -}}
{{- if $labels }}{{ $_ := set $rule "labels" $labels }}{{ end -}}
{{- $annotations := merge dict (default dict $values.additionalRuleAnnotations) (default dict $rule.annotations) -}}
{{- if and $values.runbookUrl $annotations.runbook_url -}}
{{- $_ := set $annotations "runbook_url" (printf "%s/%s" (trimSuffix "/" $values.runbookUrl) (base $annotations.runbook_url)) -}}
{{- else if not (regexMatch "^https?://" (default "" $annotations.runbook_url)) -}}
{{- $_ := unset $annotations "runbook_url" -}}
{{- end -}}
{{- if ne $clusterLabel "cluster" -}}
{{- range $key, $text := $annotations -}}
{{- $_ := set $annotations $key (include "podperf.renameCluster" (list $text $clusterLabel)) -}}
{{- end -}}
{{- end -}}
{{- if $annotations }}{{ $_ := set $rule "annotations" $annotations }}{{ end -}}
{{- end -}}
{{- toYaml $rule -}}
{{- end -}}

{{/* `cluster` as a label: in `by (cluster, ...)`, in a matcher, as `$labels.cluster`; not in the name of a recorded series. */}}
{{- define "podperf.renameCluster" -}}
{{- $text := index . 0 -}}
{{- $label := index . 1 -}}
{{- $text = regexReplaceAll `([({,]\s*)cluster(\s*[,)=!])` $text (printf "${1}%s${2}" $label) -}}
{{- regexReplaceAll `(\$labels\.)cluster\b` $text (printf "${1}%s" $label) -}}
{{- end -}}

{{/* A dashboard. Arguments: its file, and the root. Columns of tables are keys there. */}}
{{- define "podperf.dashboard" -}}
{{- $root := index . 1 -}}
{{- $text := index . 0 | $root.Files.Get | trim -}}
{{- $label := $root.Values.clusterLabel -}}
{{- if ne $label "cluster" -}}
{{- $text = include "podperf.renameCluster" (list $text $label) | replace `"cluster":` (printf `"%s":` $label) | replace "{{cluster}}" (printf "{{%s}}" $label) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
