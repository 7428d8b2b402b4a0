{{/* Fails for values that the chart does not support; each message has key, value, reason and replacement. */}}
{{- define "ipu-operator.check" -}}
{{- include "ipu-operator.checkSplit" . -}}
{{- include "ipu-operator.checkRefused" . -}}
{{- include "ipu-operator.checkKnown" . -}}
{{- include "ipu-operator.checkNames" . -}}
{{- include "ipu-operator.checkControllers" . -}}
{{- include "ipu-operator.checkPorts" . -}}
{{- include "ipu-operator.checkImages" . -}}
{{- include "ipu-operator.checkNamespaces" . -}}
{{- include "ipu-operator.checkOptions" . -}}
{{- end -}}

{{/* Unescaped commas in --set. */}}
{{- define "ipu-operator.checkSplit" -}}
{{- $rest := "" -}}
{{- range $key, $value := omit .Values "global" "crds" "kueue" "controller" "vipuProxy" "admissionWebhooks" "worker" "administrator" "simulator" "extraObjects" "serviceMonitor" "monitoring" "networkPolicy" "certManager" -}}
{{- $rest = printf "%s%s" $rest (include "ipu-operator.splitEntries" (dict "path" $key "value" $value)) -}}
{{- end -}}
{{- with trim $rest -}}
{{- $first := default $.Values.global.vipuControllers $.Values.vipuControllers -}}
{{- $all := prepend (splitList "\n" .) (kindIs "string" $first | ternary $first (toJson $first)) -}}
{{- printf "%s is not a value of this chart: --set ends a value at a comma. Escape it: --set 'global.vipuControllers=%s'" (splitList "\n" . | first) (join "\\," $all) | fail -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkRefused" -}}
{{- with .Values.vipuServerAddr -}}
{{- if ne . "example.com" -}}
{{- $port := $.Values.vipuServerPort | default 8090 | toString -}}
{{- printf "vipuServerAddr=%v is not supported: the chart configures any number of V-IPU controllers. Set global.vipuControllers=%v:%s:KEY=VALUE, with the label of the nodes that reach its IPUs." . . (ternary "8090" $port (eq $port "8191")) | fail -}}
{{- end -}}
{{- end -}}
{{- range $rule := include "ipu-operator.refused" . | fromYamlArray -}}
{{- $value := $.Values -}}
{{- range splitList "." $rule.key -}}
{{- $value = kindIs "map" $value | ternary $value dict -}}
{{- $value = get $value . -}}
{{- end -}}
{{- $accepted := list "null" "\"\"" "[]" "{}" -}}
{{- if not $rule.strict -}}{{- $accepted = append $accepted "false" -}}{{- end -}}
{{- range $rule.defaults -}}{{- $accepted = append $accepted (toJson .) -}}{{- end -}}
{{- if not (has (toJson $value) $accepted) -}}
{{- $text := kindIs "string" $value | ternary $value (toJson $value) -}}
{{- printf "%s=%s is not supported: %s. %s." $rule.key $text (default "no job patches the webhooks, because the operator creates and renews their certificates" $rule.reason) (default "Remove it" $rule.fix) | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkKnown" -}}
{{- $known := concat (list "nameOverride" "fullnameOverride" "commonLabels" "watchNamespaces") (list "global" "crds" "kueue" "worker" "controller" "vipuProxy" "admissionWebhooks" "administrator" "simulator" "extraObjects" "serviceMonitor" "monitoring" "networkPolicy" "certManager") (include "ipu-operator.otherKeys" . | fromYamlArray) -}}
{{- $refused := list -}}
{{- range include "ipu-operator.refused" . | fromYamlArray -}}
{{- $refused = append $refused (splitList "." .key | first) -}}
{{- end -}}
{{- range keys .Values | sortAlpha -}}
{{- if not (has . (concat $known $refused)) -}}
{{- printf "%s=%s is not a value of this chart. Remove it. helm show values prints all values, and helm get values with --output yaml those of a release." . (toJson (get $.Values .)) | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkNames" -}}
{{- if and .Values.fullNameOverride .Values.fullnameOverride (ne .Values.fullNameOverride .Values.fullnameOverride) -}}
{{- printf "fullNameOverride=%s differs from fullnameOverride=%s. Set only fullnameOverride." .Values.fullNameOverride .Values.fullnameOverride | fail -}}
{{- end -}}
{{- $name := include "ipu-operator.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]{0,34}[a-z0-9])?$" $name) -}}
{{- printf "the prefix of object names %q must have at most 36 characters a-z, 0-9 and -, and start with a letter, because names of Services have at most 63. Set fullnameOverride." $name | fail -}}
{{- end -}}
{{- range $key := list "controller" "vipuProxy" -}}
{{- with get $.Values $key -}}
{{- if not (or .serviceAccount.create .serviceAccount.name) -}}
{{- printf "%s.serviceAccount.create=false without a name would use the ServiceAccount default, and every Pod of the namespace would get its rights. Set %s.serviceAccount.name." $key $key | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (include "ipu-operator.operatorAccount" .) (include "ipu-operator.proxyAccount" .) -}}
{{- printf "controller.serviceAccount.name=%s is also that of the proxy, which would get the operator's rights. Set another vipuProxy.serviceAccount.name." (include "ipu-operator.operatorAccount" .) | fail -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkPorts" -}}
{{- $webhooks := int .Values.admissionWebhooks.port -}}
{{- $metrics := int .Values.controller.service.port -}}
{{- if eq $webhooks $metrics -}}
{{- printf "admissionWebhooks.port=%d is the port of the metrics. Set admissionWebhooks.port=9443, or another controller.service.port." $webhooks | fail -}}
{{- end -}}
{{- range $key, $port := dict "admissionWebhooks.port" $webhooks "controller.service.port" $metrics -}}
{{- if eq $port 8081 -}}
{{- printf "%s=8081 is the port of the operator's probes. Set another one." $key | fail -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.vipuProxy.proxyPort) 8443 -}}
{{- fail "vipuProxy.proxyPort=8443 is the port of the proxy with TLS. Set another one, such as 8080." -}}
{{- end -}}
{{- if eq (int .Values.vipuProxy.service.port) 443 -}}
{{- fail "vipuProxy.service.port=443 is the port of the proxy's Service with TLS. Set another one, such as 80." -}}
{{- end -}}
{{- range $key, $type := dict "controller.service.type" .Values.controller.service.type "vipuProxy.service.type" .Values.vipuProxy.service.type "admissionWebhooks.service.type" .Values.admissionWebhooks.service.type -}}
{{- if not (has $type (list "ClusterIP" "NodePort" "LoadBalancer")) -}}
{{- printf "%s=%s is not a type of a Service. Set %s=ClusterIP, NodePort or LoadBalancer." $key $type $key | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkImages" -}}
{{- $image := .Values.global.launcherImage -}}
{{- $tag := toString .Values.global.launcherImageTag -}}
{{- $own := regexFind "[:@].*$" (splitList "/" $image | last) -}}
{{- if and $own $tag (ne $own (printf ":%s" $tag)) -}}
{{- printf "global.launcherImageTag=%s differs from global.launcherImage=%s. Set the tag in one of them." $tag $image | fail -}}
{{- end -}}
{{- range .Values.global.imagePullSecrets -}}
{{- if and (kindIs "map" .) (or (not .name) (omit . "name")) -}}
{{- printf "global.imagePullSecrets: %s is not a Secret's name. Set a list of names, such as [{name: my-registry}]." (toJson .) | fail -}}
{{- end -}}
{{- end -}}
{{- if kindIs "map" .Values.global.imagePullSecrets -}}
{{- printf "global.imagePullSecrets=%s is not a list. Set global.imagePullSecrets=[%s]." (toJson .Values.global.imagePullSecrets) (toJson .Values.global.imagePullSecrets) | fail -}}
{{- end -}}
{{- end -}}

{{- define "ipu-operator.checkNamespaces" -}}
{{- if and .Values.watchNamespaces .Values.admissionWebhooks.scope (ne (toJson .Values.watchNamespaces) (toJson .Values.admissionWebhooks.scope)) -}}
{{- printf "admissionWebhooks.scope=%s differs from watchNamespaces=%s. Set only watchNamespaces." (toJson .Values.admissionWebhooks.scope) (toJson .Values.watchNamespaces) | fail -}}
{{- end -}}
{{- range splitList "," (include "ipu-operator.watchNamespaces" .) -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$" .) -}}
{{- printf "watchNamespaces: %q is not a namespace's name. Set names, such as [team-a, team-b]." . | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
