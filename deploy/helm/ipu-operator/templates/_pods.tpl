{{/* Number of Pods and their replacement. A dict with `values`. */}}
{{- define "ipu-operator.replicas" -}}
replicas: {{ .values.replicas }}
# The nodes need a moment to route a Service to a Pod that has become ready.
minReadySeconds: 5
strategy:
  type: RollingUpdate
  {{- /* A second Pod would find its ports taken on the host network. */}}
  rollingUpdate:
    maxSurge: {{ ternary 0 1 (default false .values.hostNetwork) }}
    maxUnavailable: {{ ternary 1 0 (default false .values.hostNetwork) }}
{{- end -}}

{{- define "ipu-operator.pullSecrets" -}}
{{- with .Values.global.imagePullSecrets -}}
imagePullSecrets:
{{- range . }}
- name: {{ if kindIs "string" . }}{{ . }}{{ else }}{{ .name }}{{ end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings of a Pod, from the keys that operator and proxy share. A dict with `root`, `component`, `values`. */}}
{{- define "ipu-operator.podSettings" -}}
{{- include "ipu-operator.pullSecrets" .root }}
{{- with .values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml .values.topologySpreadConstraints | nindent 2 }}
{{- else if gt (int .values.replicas) 1 }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "ipu-operator.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}

{{/* Budget of several Pods: one of them may be evicted at a time. A dict with `root`, `component`, `values`, `name`. */}}
{{- define "ipu-operator.budget" -}}
{{- if gt (int .values.replicas) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "ipu-operator.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "ipu-operator.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}
