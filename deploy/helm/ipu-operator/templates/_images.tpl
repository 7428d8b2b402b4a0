{{/* Adds the registry of all images to a repository. A dict with `root` and `repository`. */}}
{{- define "ipu-operator.repository" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository -}}
{{- end -}}

{{/* Reference of an image. A dict with `root`, `image` (repository, tag, digest) and the default `name`. */}}
{{- define "ipu-operator.image" -}}
{{- $repository := include "ipu-operator.repository" (dict "root" .root "repository" (default .name .image.repository)) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%v" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The launcher's image: a repository, or with a tag or digest of its own. */}}
{{- define "ipu-operator.launcherImage" -}}
{{- $image := include "ipu-operator.repository" (dict "root" . "repository" .Values.global.launcherImage) -}}
{{- if regexMatch "[:@]" (last (splitList "/" $image)) -}}
{{- $image -}}
{{- else -}}
{{- printf "%s:%v" $image (default .Chart.AppVersion .Values.global.launcherImageTag) -}}
{{- end -}}
{{- end -}}
