{{/* Entries of a list of V-IPU controllers, as a JSON array. Takes a string, or a list of strings and objects. */}}
{{- define "ipu-operator.controllerEntries" -}}
{{- $entries := list -}}
{{- range kindIs "string" . | ternary (list .) . -}}
{{- if kindIs "map" . -}}
{{- $entries = append $entries (printf "%v:%v%s" .host (default 8090 .port) (empty .label | ternary "" (printf ":%v" .label))) -}}
{{- else -}}
{{- $entries = concat $entries (toString . | replace "\\," "," | splitList ",") -}}
{{- end -}}
{{- end -}}
{{- $trimmed := list -}}
{{- range $entries -}}{{- with trim . -}}{{- $trimmed = append $trimmed . -}}{{- end -}}{{- end -}}
{{- $trimmed | toJson -}}
{{- end -}}

{{/* The default list, also for an empty one, which is the default of the original chart 1.0. */}}
{{- define "ipu-operator.defaultControllers" -}}vipu-server:8090:vipu-ctrl=vctl1{{- end -}}

{{/* The list of the simulator, instead of the default one. Its host must resolve in the namespaces of the jobs. */}}
{{- define "ipu-operator.simulatedControllers" -}}
{{ include "ipu-operator.simulator" . }}.{{ .Release.Namespace }}.svc:8090:vipu-ctrl=vctl1
{{- end -}}

{{/* The list of V-IPU controllers as the proxy reads it. */}}
{{- define "ipu-operator.controllers" -}}
{{- $default := include "ipu-operator.defaultControllers" . -}}
{{- $given := coalesce .Values.vipuControllers .Values.global.vipuControllers $default -}}
{{- if and .Values.simulator.enabled (eq (toJson $given) (toJson $default)) -}}
{{- $given = include "ipu-operator.simulatedControllers" . -}}
{{- end -}}
{{- include "ipu-operator.controllerEntries" $given | fromJsonArray | join "," -}}
{{- end -}}

{{/* Fails for a list that the proxy would reject. */}}
{{- define "ipu-operator.checkControllers" -}}
{{- $top := default list .Values.vipuControllers -}}
{{- $global := .Values.global.vipuControllers -}}
{{- $fix := "Set HOST[:PORT][:KEY=VALUE], such as pod1:8090:ipunode=pod1" -}}
{{- $default := include "ipu-operator.defaultControllers" . -}}
{{- if and $top $global (ne (toJson $global) (toJson $default)) (ne (toJson $top) (toJson $global)) -}}
{{- printf "vipuControllers=%s differs from global.vipuControllers=%s. Set only global.vipuControllers." (toJson $top) (toJson $global) | fail -}}
{{- end -}}
{{- $given := coalesce $top $global $default -}}
{{- range kindIs "string" $given | ternary list $given -}}
{{- if kindIs "map" . -}}
{{- if not .host -}}
{{- printf "global.vipuControllers: %s has no host. Set host, and port and label if needed." (toJson .) | fail -}}
{{- end -}}
{{- with omit . "host" "port" "label" -}}
{{- printf "global.vipuControllers: %s is not a key of a controller. Use host, port and label." (keys . | sortAlpha | join ", ") | fail -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $seen := dict -}}
{{- $entries := include "ipu-operator.controllerEntries" $given | fromJsonArray -}}
{{- if not $entries -}}
{{- printf "global.vipuControllers=%s names no controller. %s." (toJson $given) $fix | fail -}}
{{- end -}}
{{- range $entries -}}
{{- $label := "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?" -}}
{{- $host := "([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_.])?|\\[[0-9A-Fa-f:.]+\\])" -}}
{{- if not (regexMatch (printf "^%s(:[0-9]+)?(:(%s/)?%s=(%s)?)?$" $host $label $label $label) .) -}}
{{- printf "global.vipuControllers: entry %q has a wrong format. %s." . $fix | fail -}}
{{- end -}}
{{- $name := regexReplaceAll ":[^]:]*=.*$" . "" -}}
{{- if not (regexMatch ":[0-9]+$" $name) -}}{{- $name = printf "%s:8090" $name -}}{{- end -}}
{{- $port := regexFind "[0-9]+$" $name | int64 -}}
{{- if or (lt $port 1) (gt $port 65535) -}}
{{- printf "global.vipuControllers: entry %q has the port %d. Use a port from 1 to 65535." . $port | fail -}}
{{- end -}}
{{- if hasKey $seen (lower $name) -}}
{{- printf "global.vipuControllers: entry %q repeats the controller of entry %q. Remove one." . (get $seen (lower $name)) | fail -}}
{{- end -}}
{{- $_ := set $seen (lower $name) . -}}
{{- end -}}
{{- end -}}

{{/*
The rest of a list of controllers that --set has split at an unescaped comma, one entry a line. --set reads the part
before "=" as the path of a key, with dots between its maps. A dict with `path` and `value`.
*/}}
{{- define "ipu-operator.splitEntries" -}}
{{- if kindIs "map" .value -}}
{{- $path := .path -}}
{{- range $key, $value := .value -}}
{{- include "ipu-operator.splitEntries" (dict "path" (printf "%s.%s" $path $key) "value" $value) -}}
{{- end -}}
{{- else if contains ":" .path -}}
{{- printf "%s=%v\n" .path .value -}}
{{- end -}}
{{- end -}}
