{{/*
Values of the original charts that this chart does not support. Empty values and the listed defaults of those charts are
accepted, so that a complete old values file installs. With `strict`, `false` is refused too.
*/}}
{{- define "ipu-operator.refused" -}}
- key: global.kubectlVersion
  reason: the launcher needs no kubectl
  fix: Remove it
- key: global.laucherImagePullPolicy
  defaults: [IfNotPresent]
  reason: the key is misspelt
  fix: Set global.launcherImagePullPolicy
- key: vipuServerPort
  defaults: [8191]
  reason: the chart configures any number of V-IPU controllers
  fix: Set global.vipuControllers=HOST:PORT:KEY=VALUE with the port of the user API, by default 8090
- key: vipuClusterName
  defaults: [test]
  reason: a job chooses its V-IPU cluster
  fix: Set spec.allocation of the IPUJob
- key: vipuCLusterName
  defaults: [test]
  reason: a job chooses its V-IPU cluster
  fix: Set spec.allocation of the IPUJob
- key: ipuVisibility.advertiseOnMaster
  reason: IPUs are not a resource of nodes
  fix: Label the nodes as in global.vipuControllers
- key: extendedScheduler.enabled
  reason: the proxy queues jobs, and the Kubernetes scheduler needs no extension
  fix: Remove it
- key: admissionWebhooks.image.repository
  reason: the operator serves the webhooks
  fix: Set controller.image.repository
- key: admissionWebhooks.image.tag
  defaults: [v0.2.0]
  reason: the operator serves the webhooks
  fix: Set controller.image.tag
- key: admissionWebhooks.image.pullPolicy
  defaults: [IfNotPresent]
  reason: the operator serves the webhooks
  fix: Set controller.image.pullPolicy
- key: admissionWebhooks.patch.enabled
  defaults: [true]
  strict: true
  reason: the operator creates and renews the certificates of the webhooks
  fix: Remove it
- key: admissionWebhooks.patch.image.repository
  defaults: [k8s.gcr.io/ingress-nginx/kube-webhook-certgen]
- key: admissionWebhooks.patch.image.tag
  defaults: [v1.1.1, v1.3.0]
- key: admissionWebhooks.patch.image.pullPolicy
  defaults: [IfNotPresent]
- key: admissionWebhooks.patch.nodeSelector
- key: admissionWebhooks.patch.podAnnotations
- key: admissionWebhooks.patch.priorityClassName
- key: admissionWebhooks.patch.runAsUser
  defaults: [2000]
- key: admissionWebhooks.patch.tolerations
- key: controllers.serviceAccount.name
  reason: the key is misspelt
  fix: Set controller.serviceAccount.name
- key: controllers
  defaults: [{serviceAccount: {name: ""}}]
  reason: the key is misspelt
  fix: Set controller
- key: proxyPort
  defaults: [8080]
  reason: it moved
  fix: Set vipuProxy.proxyPort
- key: podAnnotations
  reason: it moved
  fix: Set vipuProxy.podAnnotations and controller.podAnnotations
- key: podSecurityPolicyContext
  reason: it moved, and PodSecurityPolicy is gone
  fix: Set vipuProxy.podSecurityContext and controller.podSecurityContext
- key: securityContext
  reason: it moved
  fix: Set vipuProxy.securityContext and controller.securityContext
- key: service.type
  defaults: [clusterIP, ClusterIP]
  reason: it moved
  fix: Set vipuProxy.service.type
- key: service.port
  defaults: [80]
  reason: it moved
  fix: Set vipuProxy.service.port
- key: resources
  reason: it moved
  fix: Set vipuProxy.resources and controller.resources
- key: nodeSelector
  reason: it moved
  fix: Set vipuProxy.nodeSelector and controller.nodeSelector
- key: tolerations
  reason: it moved
  fix: Set vipuProxy.tolerations and controller.tolerations
- key: affinity
  reason: it moved
  fix: Set vipuProxy.affinity and controller.affinity
{{- end -}}

{{/* Root keys that are not in values.yaml and not refused by it: aliases, and the condition of a parent chart. */}}
{{- define "ipu-operator.otherKeys" -}}
[fullNameOverride, vipuControllers, vipuServerAddr, enabled]
{{- end -}}
