{{- define "ipu-operator.operatorSubject" -}}
{kind: ServiceAccount, name: {{ include "ipu-operator.operatorAccount" . }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{- define "ipu-operator.proxySubject" -}}
{kind: ServiceAccount, name: {{ include "ipu-operator.proxyAccount" . }}, namespace: {{ .Release.Namespace }}}
{{- end -}}

{{/* Rights of the operator in the namespaces of jobs. */}}
{{- define "ipu-operator.jobRules" }}
# Jobs, their finalizer and status.
- {apiGroups: [graphcore.ai], resources: [ipujobs], verbs: [list, watch, patch, delete]}
- {apiGroups: [graphcore.ai], resources: [ipujobs/status], verbs: [update]}
- {apiGroups: [graphcore.ai], resources: [ipujobs/finalizers], verbs: [update]}
# IPUPartitions, their finalizer and status; the eviction of their Pods for a preemption.
- {apiGroups: [graphcore.ai], resources: [ipupartitions], verbs: [list, watch, patch, delete]}
- {apiGroups: [graphcore.ai], resources: [ipupartitions/status], verbs: [update]}
- {apiGroups: [graphcore.ai], resources: [ipupartitions/finalizers], verbs: [update]}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
# Workers and launchers, their finalizer, and the end of the log of a failed one.
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [pods/log], verbs: [get]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create, get]}
# Further objects of a job.
- {apiGroups: [""], resources: [configmaps, serviceaccounts, services], verbs: [get, create, patch]}
# The variables of an IPUPartition that is not active any more.
- {apiGroups: [""], resources: [configmaps], verbs: [delete]}
- {apiGroups: [rbac.authorization.k8s.io], resources: [roles, rolebindings], verbs: [get, create, patch]}
# Events of jobs.
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
{{- if .Values.kueue.enabled }}
# The Workloads of IPUJobs, and the IPUPartitions of other Workloads.
- {apiGroups: [kueue.x-k8s.io], resources: [workloads], verbs: [list, watch, create, patch, delete]}
- {apiGroups: [kueue.x-k8s.io], resources: [workloads/status], verbs: [patch]}
- {apiGroups: [graphcore.ai], resources: [ipupartitions], verbs: [create]}
{{- end }}
{{- end -}}

{{/* Rights of the operator that apply to the whole cluster. */}}
{{- define "ipu-operator.clusterRules" }}
# Authentication and authorization of metrics clients.
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
{{- if .Values.kueue.enabled }}
# The checks that the operator answers.
- {apiGroups: [kueue.x-k8s.io], resources: [admissionchecks], verbs: [list, watch]}
- {apiGroups: [kueue.x-k8s.io], resources: [admissionchecks/status], verbs: [patch]}
{{- end }}
{{- if .Values.crds.maintain }}
# The CRDs, which the operator updates. RBAC cannot restrict the name of an object that is created.
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [create]}
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [ipujobs.graphcore.ai, ipupartitions.graphcore.ai]
  verbs: [get, patch]
{{- end }}
{{- if not (include "ipu-operator.foreignCertificate" .) }}
# The CA bundle of the webhooks.
- apiGroups: [admissionregistration.k8s.io]
  resources: [mutatingwebhookconfigurations, validatingwebhookconfigurations]
  resourceNames: [{{ include "ipu-operator.admission" . }}]
  verbs: [get, watch, patch]
{{- end }}
{{- end -}}
