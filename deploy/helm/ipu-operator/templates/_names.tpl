{{/* Names of the objects. Everything that a program must know is passed to it as a flag. */}}

{{- define "ipu-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end -}}

{{/* Release-chart, or the release if its name contains that of the chart. */}}
{{- define "ipu-operator.fullname" -}}
{{- $given := default .Values.fullnameOverride .Values.fullNameOverride -}}
{{- $name := include "ipu-operator.name" . -}}
{{- if $given -}}
{{- $given -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.operator" -}}{{ include "ipu-operator.fullname" . }}-controller-manager{{- end -}}
{{- define "ipu-operator.manager" -}}{{ include "ipu-operator.fullname" . }}-manager{{- end -}}
{{- define "ipu-operator.proxy" -}}{{ include "ipu-operator.fullname" . }}-vipu-proxy{{- end -}}
{{- define "ipu-operator.controllersName" -}}{{ include "ipu-operator.fullname" . }}-vipu-controllers{{- end -}}
{{- define "ipu-operator.admission" -}}{{ include "ipu-operator.fullname" . }}-admission{{- end -}}
{{- define "ipu-operator.certificateAuthority" -}}{{ include "ipu-operator.fullname" . }}-webhook-ca{{- end -}}
{{- define "ipu-operator.webhookService" -}}{{ include "ipu-operator.fullname" . }}-webhook-svc{{- end -}}
{{- define "ipu-operator.metricsService" -}}{{ include "ipu-operator.operator" . }}-metrics{{- end -}}

{{- define "ipu-operator.proxySettings" -}}{{ include "ipu-operator.proxy" . }}-settings{{- end -}}
{{- define "ipu-operator.simulator" -}}{{ include "ipu-operator.fullname" . }}-simulator{{- end -}}

{{/* The Secret of certificates that the operator does not maintain; empty for its own. */}}
{{- define "ipu-operator.foreignCertificate" -}}
{{- if .Values.certManager.enabled -}}
{{ include "ipu-operator.fullname" . }}-webhook-certificate
{{- else -}}
{{ .Values.admissionWebhooks.existingSecret }}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.administrator" -}}
{{- default (printf "%s-administrator" (include "ipu-operator.fullname" .)) .Values.administrator.name -}}
{{- end -}}

{{- define "ipu-operator.operatorAccount" -}}
{{- default (printf "%s-controller" (include "ipu-operator.fullname" .)) .Values.controller.serviceAccount.name -}}
{{- end -}}

{{- define "ipu-operator.proxyAccount" -}}
{{- default (include "ipu-operator.proxy" .) .Values.vipuProxy.serviceAccount.name -}}
{{- end -}}
