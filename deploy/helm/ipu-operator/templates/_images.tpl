{{/* Adds the registry of all images to a repository. A dict with `root` and `repository`. */}}
{{- define "ipu-operator.repository" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository -}}
{{- end -}}

{{/* Reference of an image. A dict with `root`, `image` (repository, tag, digest) and the default `name`. */}}
{{- define "ipu-operator.image" -}}
{{- $given := include "ipu-operator.ownRepository" .image.repository -}}
{{- $tag := eq $given .image.repository | ternary .image.tag (include "ipu-operator.ownTag" .image.tag) -}}
{{- $repository := include "ipu-operator.repository" (dict "root" .root "repository" (default .name $given)) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%v" $repository (default .root.Chart.AppVersion $tag) -}}
{{- end -}}
{{- end -}}

{{/* The launcher's image: a repository, or with a tag or digest of its own. */}}
{{- define "ipu-operator.launcherImage" -}}
{{- $given := include "ipu-operator.ownRepository" .Values.global.launcherImage -}}
{{- $tag := .Values.global.launcherImageTag -}}
{{- if not $given -}}{{- $tag = include "ipu-operator.ownTag" $tag -}}{{- end -}}
{{- $image := include "ipu-operator.repository" (dict "root" . "repository" (default "ipu-launcher" $given)) -}}
{{- if regexMatch "[:@]" (last (splitList "/" $image)) -}}
{{- $image -}}
{{- else -}}
{{- printf "%s:%v" $image (default .Chart.AppVersion $tag) -}}
{{- end -}}
{{- end -}}

{{/* The pull policy of an image. That of an image of the original chart is for another image. A dict with
`repository` and `policy`. */}}
{{- define "ipu-operator.pullPolicy" -}}
{{- $isOriginal := ne (toString .repository) (include "ipu-operator.ownRepository" .repository) -}}
{{- $isOriginal | ternary "IfNotPresent" .policy -}}
{{- end -}}
