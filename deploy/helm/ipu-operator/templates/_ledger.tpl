{{/*
Fails if the proxy would start with an empty ledger, because the present one has another name. Helm reads the cluster
during install and upgrade. A ledger in another namespace is that of another installation.
*/}}
{{- define "ipu-operator.checkLedger" -}}
{{- $name := .Values.vipuProxy.proxyPartitionTrackerConfigMap -}}
{{- $ledgers := list -}}
{{- range (lookup "v1" "ConfigMap" .Release.Namespace "").items -}}
{{- if hasKey (default dict .metadata.annotations) "ledger.graphcore.ai/layout" -}}{{- $ledgers = append $ledgers .metadata.name -}}{{- end -}}
{{- end -}}
{{- /* A proxy that is installed shows which one is its ledger. */}}
{{- $proxy := lookup "apps/v1" "Deployment" .Release.Namespace (include "ipu-operator.proxy" .) -}}
{{- $used := "" -}}
{{- with dig "spec" "template" "spec" "containers" list $proxy | first -}}
{{- range .args -}}{{- if hasPrefix "--tracker=" . -}}{{- $used = trimPrefix "--tracker=" . -}}{{- end -}}{{- end -}}
{{- end -}}
{{- if $used -}}{{- $ledgers = has $used $ledgers | ternary (list $used) list -}}{{- end -}}
{{- if and $ledgers (not (has $name $ledgers)) -}}
{{- $ledger := first $ledgers -}}
{{- printf "vipuProxy.proxyPartitionTrackerConfigMap=%s is new, and ConfigMap %s in namespace %s is the ledger: the proxy would start with an empty one, without the queue and the cordons. Keep the ledger: --set vipuProxy.proxyPartitionTrackerConfigMap=%s" $name $ledger .Release.Namespace $ledger | fail -}}
{{- end -}}
{{- end -}}
