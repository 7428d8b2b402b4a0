# A CNI plugin in place of Multus. It connects a Pod with ptp, and by macvlan as net1 if the Pod has the annotation
# k8s.v1.cni.cncf.io/networks. The lines before set: plugins, kubectl, kubeconfig.
set -eu
export KUBECACHEDIR=/run/pod-networks/cache
config=$(cat)
# Kept until the Pod is removed, when the API server may have forgotten the Pod.
network=/run/pod-networks/$CNI_CONTAINERID

default() { printf %s "$config" | "$plugins/ptp"; }
second() { CNI_IFNAME=net1 "$plugins/macvlan" <"$network"; }
argument() { printf %s "$CNI_ARGS" | tr ';' '\n' | sed -n "s/^$1=//p"; }
get() { "$kubectl" --kubeconfig "$kubeconfig" --namespace "$(argument K8S_POD_NAMESPACE)" get "$@"; }
fail() {
  printf '{"cniVersion": "1.0.0", "code": 100, "msg": "%s"}' "$1"
  exit 1
}

case $CNI_COMMAND in
ADD)
  mkdir -p /run/pod-networks
  result=$(default) || { printf %s "$result"; exit 1; }
  name=$(get pod "$(argument K8S_POD_NAME)" -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/networks}')
  if [ -n "$name" ]; then
    get network-attachment-definitions.k8s.cni.cncf.io "$name" -o 'jsonpath={.spec.config}' >"$network" ||
      fail "no NetworkAttachmentDefinition $name in namespace $(argument K8S_POD_NAMESPACE)"
    added=$(second) || { printf %s "$added"; exit 1; }
  fi
  printf %s "$result"
  ;;
DEL)
  if [ -s "$network" ]; then second; fi
  rm -f "$network"
  default
  ;;
*) default ;;
esac
