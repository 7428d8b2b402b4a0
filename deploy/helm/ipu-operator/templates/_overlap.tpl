{{/*
Fails if another installation would act on jobs of this release, or has its names or its namespace. Helm reads the
cluster during install and upgrade; `helm template` finds no other installation.
*/}}
{{- define "ipu-operator.checkOverlap" -}}
{{- $own := include "ipu-operator.watchNamespaces" . | splitList "," | compact -}}
{{- range (lookup "admissionregistration.k8s.io/v1" "ValidatingWebhookConfiguration" "" "").items -}}
{{- $other := include "ipu-operator.installation" . | fromJson -}}
{{- if and $other.namespace (not .metadata.deletionTimestamp) -}}
{{- $isNamed := eq .metadata.name (include "ipu-operator.admission" $) -}}
{{- $isHere := eq $other.namespace $.Release.Namespace -}}
{{- if not (and $isHere (or $isNamed (eq $other.release $.Release.Name))) -}}
{{- if $isHere -}}
{{- printf "%s is in namespace %s: two releases would share its Lease and its ledger. Install this release into another one: --namespace NAMESPACE --create-namespace." $other.title $other.namespace | fail -}}
{{- end -}}
{{- include "ipu-operator.failForNamespaces" (dict "own" $own "other" $other) -}}
{{- if $isNamed -}}
{{- printf "fullnameOverride=%s is the prefix of the object names of %s in namespace %s, also outside namespaces. Use another release name, or set another fullnameOverride." (include "ipu-operator.fullname" $) $other.title $other.namespace | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The installation of a webhook configuration as JSON: release (empty if not by Helm), title, namespace, and the watched
namespaces, empty for all. Without `namespace` if no webhook checks jobs.
*/}}
{{- define "ipu-operator.installation" -}}
{{- $metadata := .metadata -}}
{{- $annotations := default dict $metadata.annotations -}}
{{- $release := get $annotations "meta.helm.sh/release-name" -}}
{{- $found := dict -}}
{{- range .webhooks -}}
{{- $groups := list -}}
{{- range .rules -}}{{- $groups = concat $groups (default list .apiGroups) -}}{{- end -}}
{{- if has "graphcore.ai" $groups -}}
{{- $service := default dict .clientConfig.service -}}
{{- $watched := list -}}
{{- range (default dict .namespaceSelector).matchExpressions -}}
{{- if and (eq .key "kubernetes.io/metadata.name") (eq .operator "In") -}}{{- $watched = .values -}}{{- end -}}
{{- end -}}
{{- $title := $release | empty | ternary (printf "the installation with the webhooks %s" $metadata.name) (printf "release %s" $release) -}}
{{- $namespace := coalesce (get $annotations "meta.helm.sh/release-namespace") $service.namespace "unknown" -}}
{{- $found = dict "release" $release "title" $title "namespace" $namespace "watched" $watched -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* Fails if both watch a namespace. A dict with the namespaces `own` and the installation `other`. */}}
{{- define "ipu-operator.failForNamespaces" -}}
{{- $other := .other -}}
{{- $shared := list -}}
{{- $rest := list -}}
{{- range .own -}}
{{- if or (empty $other.watched) (has . $other.watched) -}}{{- $shared = append $shared . -}}{{- else -}}{{- $rest = append $rest . -}}{{- end -}}
{{- end -}}
{{- if not .own -}}{{- $shared = default (list "all namespaces") $other.watched -}}{{- end -}}
{{- with $shared -}}
{{- $watched := $other.watched | empty | ternary "all namespaces" (join ", " $other.watched) -}}
{{- $place := printf "%s in namespace %s" $other.title $other.namespace -}}
{{- $fix := printf "Set other namespaces: --set 'watchNamespaces={%s}'" (default (list "NAMESPACE" "...") $rest | join ",") -}}
{{- if and (empty $other.watched) $other.release -}}
{{- $fix = printf "Limit that release first: helm upgrade %s CHART --namespace %s --reset-then-reuse-values --set 'watchNamespaces={NAMESPACE,...}'. Then set other namespaces here. To replace the release, upgrade it instead of a second installation" $other.release $other.namespace -}}
{{- else if empty $other.watched -}}
{{- $fix = "Delete that installation first; running jobs go on" -}}
{{- end -}}
{{- printf "watchNamespaces=%s overlaps with %s, which watches %s: two operators would reconcile the jobs of %s. %s." (toJson $.own) $place $watched (join ", " .) $fix | fail -}}
{{- end -}}
{{- end -}}
