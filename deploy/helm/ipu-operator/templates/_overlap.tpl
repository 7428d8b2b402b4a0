{{/*
Fails if another installation would act on jobs of this release, or has its names or its namespace. Helm reads the
cluster during install and upgrade; `helm template` finds no other installation.
*/}}
{{- define "ipu-operator.checkOverlap" -}}
{{- $own := include "ipu-operator.watchNamespaces" . | splitList "," | compact -}}
{{- range $kind := list "ValidatingWebhookConfiguration" "MutatingWebhookConfiguration" -}}
{{- range (lookup "admissionregistration.k8s.io/v1" $kind "" "").items -}}
{{- $other := include "ipu-operator.installation" . | fromJson -}}
{{- if and $other.namespace (not .metadata.deletionTimestamp) -}}
{{- $isNamed := eq .metadata.name (include "ipu-operator.admission" $) -}}
{{- $isHere := eq $other.namespace $.Release.Namespace -}}
{{- $shared := include "ipu-operator.sharedNamespaces" (dict "own" $own "other" $other) | fromJsonArray -}}
{{- if and (or $isHere $isNamed $shared) (not (and $isHere (eq $other.release $.Release.Name))) -}}
{{- if not (lookup "v1" "Namespace" "" $other.namespace) -}}
{{- printf "%s %s is left from an installation in namespace %s, which does not exist: its webhooks refuse IPUJobs. Delete them: kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations %s --ignore-not-found" $kind .metadata.name $other.namespace .metadata.name | fail -}}
{{- else if and $isHere $isNamed -}}
{{- /* Helm itself refuses objects of others. */}}
{{- else if $isHere -}}
{{- printf "%s is in namespace %s: two installations would share its Lease and its ledger. %s. Either install this release into another namespace: --namespace NAMESPACE --create-namespace, or %s." $other.title $other.namespace $other.find $other.replace | fail -}}
{{- else if $shared -}}
{{- include "ipu-operator.failForNamespaces" (dict "own" $own "other" $other "shared" $shared) -}}
{{- else -}}
{{- printf "fullnameOverride=%s is the prefix of the object names of %s in namespace %s, also outside namespaces. Use another release name, or set another fullnameOverride." (include "ipu-operator.fullname" $) $other.title $other.namespace | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The installation of a webhook configuration as JSON: release (empty if not by Helm), title, namespace, the watched
namespaces (empty for all), and two parts of messages. Without `namespace` if no webhook is one of an IPU operator:
other programs may have webhooks on IPUJobs, too. The label `managed-by` does not show a release: renderings have it.
*/}}
{{- define "ipu-operator.installation" -}}
{{- $name := .metadata.name -}}
{{- $release := get (default dict .metadata.annotations) "meta.helm.sh/release-name" -}}
{{- $found := dict -}}
{{- range .webhooks -}}
{{- $service := default dict .clientConfig.service -}}
{{- if has $service.path (list "/validate-graphcore-ai-v1alpha1-ipujob" "/mutate-graphcore-ai-v1alpha1-ipujob") -}}
{{- $namespace := $service.namespace -}}
{{- $watched := list -}}
{{- range (default dict .namespaceSelector).matchExpressions -}}
{{- if and (eq .key "kubernetes.io/metadata.name") (eq .operator "In") -}}{{- $watched = .values -}}{{- end -}}
{{- end -}}
{{- $found = dict "release" $release "namespace" $namespace "watched" $watched -}}
{{- if $release -}}
{{- $found = set $found "title" (printf "release %s" $release) -}}
{{- $found = set $found "find" (printf "Show that release: helm status %s --namespace %s" $release $namespace) -}}
{{- $found = set $found "replace" (printf "upgrade that release instead of a second installation: helm upgrade %s CHART --namespace %s" $release $namespace) -}}
{{- else -}}
{{- $found = set $found "title" (printf "the installation without Helm that has the webhooks %s" $name) -}}
{{- $found = set $found "find" (printf "Show its operator: kubectl --namespace %s get deployments --selector app.kubernetes.io/component=controller-manager" $namespace) -}}
{{- $found = set $found "replace" "replace it by this release, which keeps jobs and ledger: docs/kubernetes.md#move-to-the-chart" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $found | toJson -}}
{{- end -}}

{{/* The namespaces that both watch, as a JSON array. A dict with the namespaces `own` and the installation `other`. */}}
{{- define "ipu-operator.sharedNamespaces" -}}
{{- $other := .other -}}
{{- $shared := list -}}
{{- range .own -}}
{{- if or (empty $other.watched) (has . $other.watched) -}}{{- $shared = append $shared . -}}{{- end -}}
{{- end -}}
{{- if not .own -}}{{- $shared = default (list "all namespaces") $other.watched -}}{{- end -}}
{{- $shared | toJson -}}
{{- end -}}

{{/* Fails for the namespaces `shared`. A dict with them, the namespaces `own` and the installation `other`. */}}
{{- define "ipu-operator.failForNamespaces" -}}
{{- $other := .other -}}
{{- $shared := .shared -}}
{{- $rest := list -}}
{{- range .own -}}{{- if not (has . $shared) -}}{{- $rest = append $rest . -}}{{- end -}}{{- end -}}
{{- $watched := $other.watched | empty | ternary "all namespaces" (join ", " $other.watched) -}}
{{- $limit := printf "set other namespaces: --set 'watchNamespaces={%s}'" (default (list "NAMESPACE" "...") $rest | join ",") -}}
{{- if and (empty $other.watched) $other.release -}}
{{- $limit = printf "limit that release: helm upgrade %s CHART --namespace %s --reset-then-reuse-values --set 'watchNamespaces={NAMESPACE,...}', and set other namespaces here" $other.release $other.namespace -}}
{{- else if empty $other.watched -}}
{{- $limit = "limit it by IPU_OPERATOR_WATCH_NAMESPACES and the namespaceSelector of its webhooks, and set other namespaces here" -}}
{{- end -}}
{{- printf "watchNamespaces=%s overlaps with %s in namespace %s, which watches %s: two operators would reconcile the jobs of %s. %s. Either %s, or %s." (toJson .own) $other.title $other.namespace $watched (join ", " $shared) $other.find $limit $other.replace | fail -}}
{{- end -}}
