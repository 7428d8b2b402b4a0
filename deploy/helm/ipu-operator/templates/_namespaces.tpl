{{/* Watched namespaces in alphabetical order, with commas; empty for all. */}}
{{- define "ipu-operator.watchNamespaces" -}}
{{- $given := default .Values.admissionWebhooks.scope .Values.watchNamespaces -}}
{{- $names := kindIs "string" $given | ternary (splitList "," (toString $given)) $given -}}
{{- $trimmed := list -}}
{{- range $names -}}{{- with trim . -}}{{- $trimmed = append $trimmed . -}}{{- end -}}{{- end -}}
{{- $trimmed | uniq | sortAlpha | join "," -}}
{{- end -}}
