{{/* Objects and values of the original charts, for an upgrade in place. */}}

{{/* Fails if the ConfigMap of the ledger has the partitions of another program: the proxy would not become ready. */}}
{{- define "ipu-operator.checkTracker" -}}
{{- $name := .Values.vipuProxy.proxyPartitionTrackerConfigMap -}}
{{- $found := lookup "v1" "ConfigMap" .Release.Namespace $name | default dict -}}
{{- $annotations := default dict (default dict $found.metadata).annotations -}}
{{- $keys := add (len (default dict $found.data)) (len (default dict $found.binaryData)) -}}
{{- if and $keys (not (hasKey $annotations "ledger.graphcore.ai/layout")) -}}
{{- printf "vipuProxy.proxyPartitionTrackerConfigMap=%s has %d partitions of Graphcore's proxy, whose format is not public. Delete or finish all IPUJobs while that proxy runs, so that it removes their partitions. Then run this, and upgrade again: kubectl -n %s delete configmap %s" $name $keys .Release.Namespace $name | fail -}}
{{- end -}}
{{- end -}}

{{/* The repository of an image, or nothing for a default of the original charts, whose programs are others. */}}
{{- define "ipu-operator.ownRepository" -}}
{{- $originals := list "graphcore/ipu-operator-controller" "graphcore/ipu-operator-vipu-proxy" "graphcore/ipu-operator-launcher" "localhost:5000/controller" "localhost:5000/vipu-proxy" "launcher:latest" -}}
{{- has . $originals | ternary "" . -}}
{{- end -}}

{{/* The tag of an image, or nothing for a version of the original charts. */}}
{{- define "ipu-operator.ownTag" -}}
{{- has (toString .) (list "1.0.3" "1.1.0" "1.2.0") | ternary "" (toString .) -}}
{{- end -}}
