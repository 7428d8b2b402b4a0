{{/* Labels that selectors use: those of the original chart. A dict with `root` and `component`. */}}
{{- define "ipu-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ipu-operator.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- if eq .component "controller-manager" }}
control-plane: controller-manager
{{- end }}
{{- end -}}

{{/* Labels of every object; those of the chart win. A dict with `root`, `component`, and `extra` labels. */}}
{{- define "ipu-operator.labels" -}}
{{- $labels := dict
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_")
      "app.kubernetes.io/name" (include "ipu-operator.name" .root)
      "app.kubernetes.io/instance" .root.Release.Name
      "app.kubernetes.io/version" .root.Chart.AppVersion
      "app.kubernetes.io/managed-by" .root.Release.Service
      "app.kubernetes.io/component" .component -}}
{{- merge $labels (default dict .extra) .root.Values.commonLabels | toYaml -}}
{{- end -}}

{{/* Labels of Pods; those of selectors win. A dict with `root`, `component` and `values`. */}}
{{- define "ipu-operator.podLabels" -}}
{{- $labels := include "ipu-operator.selectorLabels" . | fromYaml -}}
{{- merge $labels .values.podLabels .root.Values.commonLabels | toYaml -}}
{{- end -}}
