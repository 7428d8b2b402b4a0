# A CNI plugin in place of Multus. It connects a Pod with ptp, and by macvlan as net1 if the Pod has the annotation
# k8s.v1.cni.cncf.io/networks, and reports the addresses in the annotation network-status. The lines before set: plugins,
# kubectl, kubeconfig.
set -eu
export KUBECACHEDIR=/run/pod-networks/cache
config=$(cat)
# Kept until the Pod is removed, when the API server may have forgotten the Pod.
network=/run/pod-networks/$CNI_CONTAINERID

default() { printf %s "$config" | "$plugins/ptp"; }
second() { CNI_IFNAME=net1 "$plugins/macvlan" <"$network"; }
argument() { printf %s "$CNI_ARGS" | tr ';' '\n' | sed -n "s/^$1=//p"; }
ask() { "$kubectl" --kubeconfig "$kubeconfig" --namespace "$(argument K8S_POD_NAMESPACE)" "$@"; }
address() { printf %s "$1" | tr -d ' \n\t' | sed -n 's/.*"address":"\([0-9.]*\).*/\1/p'; }
fail() {
  printf '{"cniVersion": "1.0.0", "code": 100, "msg": "%s"}' "$1"
  exit 1
}

case $CNI_COMMAND in
ADD)
  mkdir -p /run/pod-networks
  result=$(default) || { printf %s "$result"; exit 1; }
  pod=$(argument K8S_POD_NAME)
  name=$(ask get pod "$pod" -o 'jsonpath={.metadata.annotations.k8s\.v1\.cni\.cncf\.io/networks}')
  if [ -n "$name" ]; then
    ask get network-attachment-definitions.k8s.cni.cncf.io "$name" -o 'jsonpath={.spec.config}' >"$network" ||
      fail "no NetworkAttachmentDefinition $name in namespace $(argument K8S_POD_NAMESPACE)"
    added=$(second) || { printf %s "$added"; exit 1; }
    eth0='{"name": "pods", "interface": "eth0", "ips": ["'$(address "$result")'"], "default": true}'
    net1='{"name": "'$(argument K8S_POD_NAMESPACE)/$name'", "interface": "net1", "ips": ["'$(address "$added")'"]}'
    ask annotate --overwrite pod "$pod" "k8s.v1.cni.cncf.io/network-status=[$eth0, $net1]" >/dev/null
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
