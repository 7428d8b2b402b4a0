{{/* Fails for options that contradict each other or that the proxy would reject. */}}
{{- define "ipu-operator.checkOptions" -}}
{{- range .Values.vipuProxy.quotas -}}
{{- $quota := toJson . -}}
{{- if eq (empty .namespace) (empty .account) -}}
{{- printf "vipuProxy.quotas: %s must have either namespace or account. Remove one or add one." $quota | fail -}}
{{- end -}}
{{- if and .account (not .namespaces) -}}
{{- printf "vipuProxy.quotas: %s lets no namespace charge the account. Set namespaces, such as [team-a], or [\"*\"] for all." $quota | fail -}}
{{- end -}}
{{- if and .namespace .namespaces -}}
{{- printf "vipuProxy.quotas: %s has namespaces, which only a quota of an account has. Remove namespaces." $quota | fail -}}
{{- end -}}
{{- end -}}
{{- /* The proxy reads a change of these lists while it runs, and does not start with an invalid one. */}}
{{- range $key, $list := dict "quotas" .Values.vipuProxy.quotas "priorities" .Values.vipuProxy.priorities -}}
{{- $seen := list -}}
{{- range $list -}}
{{- range concat (hasKey . "namespace" | ternary (list .namespace) list) (without (default list .namespaces) "*") -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" (toString .)) -}}
{{- printf "vipuProxy.%s: %q is not a namespace's name. Set a name, such as team-a." $key . | fail -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey . "account") (empty .account) -}}
{{- printf "vipuProxy.%s: %s has an empty account. Set its name, or remove it." $key (toJson .) | fail -}}
{{- end -}}
{{- $subject := pick . "namespace" "account" | toJson -}}
{{- if has $subject $seen -}}
{{- printf "vipuProxy.%s: %s has two entries, and the proxy would not start. Remove one." $key $subject | fail -}}
{{- end -}}
{{- $seen = append $seen $subject -}}
{{- end -}}
{{- end -}}
{{- range $controller, $placement := .Values.vipuProxy.placements -}}
{{- if not (regexMatch "^([a-z0-9_]([-a-z0-9_.]*[a-z0-9_.])?|\\[[0-9a-f:.]+\\]):[0-9]+$" $controller) -}}
{{- printf "vipuProxy.placements: %q is not a controller. Set HOST:PORT as in global.vipuControllers, such as pod1:8090." $controller | fail -}}
{{- end -}}
{{- end -}}
{{- range $controller, $secret := .Values.vipuProxy.controllersSecrets -}}
{{- if not (regexMatch "^(default|[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_.])?:[0-9]+)$" $controller) -}}
{{- printf "vipuProxy.controllersSecrets: %q is not a controller. Set HOST:PORT as in global.vipuControllers, such as pod1:8090, or default." $controller | fail -}}
{{- end -}}
{{- end -}}
{{- $hooks := .Values.admissionWebhooks -}}
{{- if and .Values.certManager.enabled (or $hooks.existingSecret $hooks.caBundle) -}}
{{- fail "certManager.enabled=true creates the certificate and caBundle of the webhooks. Remove admissionWebhooks.existingSecret and admissionWebhooks.caBundle, or set certManager.enabled=false." -}}
{{- end -}}
{{- if and $hooks.caBundle (not $hooks.existingSecret) -}}
{{- fail "admissionWebhooks.caBundle needs admissionWebhooks.existingSecret: the operator maintains caBundle for its own certificates. Set admissionWebhooks.existingSecret." -}}
{{- end -}}
{{- if and $hooks.existingSecret (not (or $hooks.caBundle $hooks.annotations)) -}}
{{- printf "admissionWebhooks.existingSecret=%s without a CA: the API server would trust no webhook. Set admissionWebhooks.caBundle by --set-file, or admissionWebhooks.annotations for a program that maintains caBundle." $hooks.existingSecret | fail -}}
{{- end -}}
{{- if and $hooks.caBundle (not (contains "-----BEGIN CERTIFICATE-----" $hooks.caBundle)) -}}
{{- printf "admissionWebhooks.caBundle=%q is not a certificate in the PEM format. Set it by --set-file admissionWebhooks.caBundle=ca.crt." (trunc 40 $hooks.caBundle) | fail -}}
{{- end -}}
{{- if .Values.administrator.create -}}
{{- $name := include "ipu-operator.administrator" . -}}
{{- if has $name (list (include "ipu-operator.operatorAccount" .) (include "ipu-operator.proxyAccount" .)) -}}
{{- printf "administrator.name=%s is also the ServiceAccount of the operator or the proxy. Set another name." $name | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Name of the volume of a Secret: at most 63 characters without dots. */}}
{{- define "ipu-operator.secretVolume" -}}
controller-{{ sha256sum . | trunc 16 }}
{{- end -}}

{{/* Fails for a Secret of a controller in neither list, that of the values and an edited one: its controller would be
used without TLS. */}}
{{- define "ipu-operator.checkSecrets" -}}
{{- $lists := printf "%s,%s" (include "ipu-operator.controllers" .) (include "ipu-operator.installedControllers" .) -}}
{{- $names := list "default" -}}
{{- range include "ipu-operator.controllerEntries" $lists | fromJsonArray -}}
{{- $name := regexReplaceAll ":[^]:]*=.*$" . "" -}}
{{- $names = append $names (lower (regexMatch ":[0-9]+$" $name | ternary $name (printf "%s:8090" $name))) -}}
{{- end -}}
{{- range keys .Values.vipuProxy.controllersSecrets | sortAlpha -}}
{{- if not (has (lower .) $names) -}}
{{- printf "vipuProxy.controllersSecrets: %s is not a controller of the list %s. Correct it, or add it to global.vipuControllers." . (include "ipu-operator.installedControllers" $) | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The settings of the proxy that only its settings file has, as YAML; empty without any. */}}
{{- define "ipu-operator.proxySettingsFile" -}}
{{- $settings := dict -}}
{{- $proxy := .Values.vipuProxy -}}
{{- with $proxy.placements -}}{{- $settings = set $settings "placements" . -}}{{- end -}}
{{- $quotas := list -}}
{{- range $proxy.quotas -}}
{{- $quota := pick . "namespace" "account" "namespaces" -}}
{{- if hasKey . "maxIpus" -}}{{- $quota = set $quota "max-ipus" (int .maxIpus) -}}{{- end -}}
{{- if hasKey . "maxPartitions" -}}{{- $quota = set $quota "max-partitions" (int .maxPartitions) -}}{{- end -}}
{{- $quotas = append $quotas $quota -}}
{{- end -}}
{{- with $quotas -}}{{- $settings = set $settings "quotas" . -}}{{- end -}}
{{- $priorities := list -}}
{{- range $proxy.priorities -}}
{{- $priorities = append $priorities (set (pick . "namespace") "max-priority" (int .maxPriority)) -}}
{{- end -}}
{{- with $priorities -}}{{- $settings = set $settings "priorities" . -}}{{- end -}}
{{- with $settings -}}{{- toYaml . -}}{{- end -}}
{{- end -}}
