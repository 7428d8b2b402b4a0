{{/*
The list of V-IPU controllers that the ConfigMap gets: an edit since the last upgrade is kept, unless the values changed
too. Without a cluster, as in `helm template`, it is the list of the values.
*/}}
{{- define "ipu-operator.installedControllers" -}}
{{- $name := include "ipu-operator.controllersName" . -}}
{{- $wanted := include "ipu-operator.controllers" . -}}
{{- $found := lookup "v1" "ConfigMap" .Release.Namespace $name | default dict -}}
{{- if not $found -}}
{{- /* Another fullnameOverride gives the ConfigMap of the release another name. */}}
{{- range (lookup "v1" "ConfigMap" .Release.Namespace "").items -}}
{{- $its := default dict .metadata.annotations -}}
{{- $isOwn := eq $.Release.Name (get $its "meta.helm.sh/release-name") -}}
{{- if and $isOwn (hasKey $its "graphcore.ai/controllers-of-values") -}}{{- $found = . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $metadata := default dict $found.metadata -}}
{{- $annotations := default dict $metadata.annotations -}}
{{- $data := default dict $found.data -}}
{{- $current := get $data "controllers.yaml" | trim -}}
{{- /* A ConfigMap of the original chart or of the manifests has no annotation: another list than the default is an edit. */}}
{{- $last := get $annotations "graphcore.ai/controllers-of-values" | default (include "ipu-operator.defaultControllers" .) -}}
{{- if or (empty $current) (eq $current $last) (eq $current $wanted) -}}
{{- $wanted -}}
{{- else if eq $wanted $last -}}
{{- get $data "controllers.yaml" -}}
{{- else -}}
{{- $place := printf "configmap %s" (default $name $metadata.name) -}}
{{- $patch := dict "data" (dict "controllers.yaml" $wanted) | toJson -}}
{{- printf "global.vipuControllers=%s is new, and the %s was edited: %s. To keep the edit, set global.vipuControllers to it: --set 'global.vipuControllers=%s'. To replace it, run this first: kubectl -n %s patch %s -p '%s'" $wanted $place $current (replace "," "\\," $current) .Release.Namespace $place $patch | fail -}}
{{- end -}}
{{- end -}}
