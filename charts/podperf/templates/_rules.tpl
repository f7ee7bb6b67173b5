{{/* The plain rule files with what the values say of them. */}}

{{/* The files, by name. In YAML, since templates hand on text only. */}}
{{- define "podperf.ruleFiles" -}}
{{- range $path, $_ := .Files.Glob "files/rules/*.yaml" }}
{{ base $path | trimSuffix ".yaml" }}: {{ $path }}
{{- end }}
{{- end -}}

{{/* Refuses values for groups and alerts that are in no file. */}}
{{- define "podperf.ruleRefusals" -}}
{{- $groups := dict -}}
{{- $alerts := dict -}}
{{- range $_, $path := include "podperf.ruleFiles" . | fromYaml -}}
{{- range ($.Files.Get $path | fromYaml).groups -}}
{{- $_ := set $groups .name true -}}
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
{{- $rules = append $rules (include "podperf.rule" (list . $ofAlert $root.Values) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- if $rules }}{{ $groups = append $groups (set $group "rules" $rules) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- dict "groups" $groups | toYaml -}}
{{- end -}}

{{/* One rule. Arguments: the rule, the alert's values, all values. */}}
{{- define "podperf.rule" -}}
{{- $rule := index . 0 -}}
{{- $ofAlert := index . 1 -}}
{{- $values := (index . 2).prometheusRule -}}
{{- $clusterLabel := (index . 2).clusterLabel -}}
{{- $expr := toString $rule.expr -}}
{{- range $name, $threshold := $ofAlert.thresholds -}}
{{- $marker := printf `(?m)[0-9][0-9.eE+-]*([ \t]*# threshold %s[ \t]*)$` $name -}}
{{- if not (regexMatch $marker $expr) -}}
{{- $known := list -}}
{{- range regexFindAll `# threshold [A-Za-z0-9_]+` $expr -1 }}{{ $known = append $known (trimPrefix "# threshold " .) }}{{ end -}}
{{- fail (printf "prometheusRule.alerts.%s.thresholds.%s: there is no such threshold (there are: %s)" $rule.alert $name (join ", " $known | default "none")) -}}
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
{{- $text = include "podperf.renameCluster" (list $text $label) | replace `"cluster":` (printf `"%s":` $label) -}}
{{- end -}}
{{- $text -}}
{{- end -}}
