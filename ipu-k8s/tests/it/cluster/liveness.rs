//! Liveness of IPUJobs that own partitions.

use ipu_allocator::Liveness;
use ipu_core::JobKey;
use ipu_core::allocator::{Entry, OwnerLiveness};
use ipu_k8s::liveness::KubernetesLiveness;
use ipu_test_cluster::{Cluster, private};

use super::fixtures::entry;
use super::{config, config_of};

/// A minimal CRD.
const MINIMAL_CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ipujobs.graphcore.ai}
spec:
  group: graphcore.ai
  scope: Namespaced
  names: {kind: IPUJob, plural: ipujobs, singular: ipujob}
  versions:
    - name: v1alpha1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

const JOB: &str =
    "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: mnist, namespace: default}}";

/// A Pod of a deleted job, with its uid in a label.
const REMAINING_POD: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: remaining, namespace: default, labels: {graphcore.ai/ipujob-uid: u2}}
spec: {automountServiceAccountToken: false, containers: [{name: main, image: none}]}
";

/// Two instances of eight IPUs, granted for the fourth attempt.
const GRANTED: &str = "
apiVersion: graphcore.ai/v1alpha1
kind: IPUJob
metadata: {name: granted, namespace: default}
spec:
  jobInstances: 2
  ipusPerJobInstance: '8'
  workers: {template: {spec: {containers: [{name: main, image: x, command: [./train.sh]}]}}}
  unknown: field
status:
  iPUPartitionCreated: true
  restartCount: 3
  instances:
  - {index: 1, attempt: 3, controller: 'vipu-server:8090'}
";

/// Returns an entry of the IPUJob `name` with this uid.
fn owned(name: &str, uid: &str) -> Entry {
    let mut entry = entry("any");
    let owner = entry.owner.as_mut().unwrap();
    owner.job = JobKey::new("default", name, uid).unwrap();
    entry
}

fn apply(cluster: &Cluster, text: &str) {
    let file = cluster.directory().join("applied.yaml");
    std::fs::write(&file, text).unwrap();
    cluster
        .kubectl(&["apply", "-f", &file.display().to_string()])
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_is_dead_only_if_the_api_server_serves_ipujobs_but_not_this_one() {
    let name = "an_owner_is_dead_only_if_the_api_server_serves_ipujobs_but_not_this_one";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let liveness = KubernetesLiveness::new(config(&cluster).await).unwrap();
    assert_eq!(
        liveness.liveness_of(&owned("mnist", "u1")).await,
        OwnerLiveness::Unknown,
        "the CRD is missing"
    );

    apply(&cluster, MINIMAL_CRD);
    cluster
        .kubectl(&[
            "wait",
            "--for=condition=Established",
            "crd/ipujobs.graphcore.ai",
            "--timeout=60s",
        ])
        .unwrap();
    apply(&cluster, JOB);
    let uid = cluster
        .kubectl(&["get", "ipujob", "mnist", "-o", "jsonpath={.metadata.uid}"])
        .unwrap();
    assert_eq!(
        liveness.liveness_of(&owned("mnist", &uid)).await,
        OwnerLiveness::Live
    );
    assert_eq!(
        liveness.liveness_of(&owned("mnist", "u1")).await,
        OwnerLiveness::Dead,
        "another job has the name"
    );
    assert_eq!(
        liveness.liveness_of(&owned("missing", "u1")).await,
        OwnerLiveness::Dead,
        "no job has the name"
    );

    // The finalizer was removed or added too late: the job is deleted before its Pods.
    apply(&cluster, REMAINING_POD);
    assert_eq!(
        liveness.liveness_of(&owned("missing", "u2")).await,
        OwnerLiveness::Unknown,
        "a Pod of the job still runs"
    );
    assert_eq!(
        liveness.liveness_of(&owned("missing", "u3")).await,
        OwnerLiveness::Dead,
        "the running Pod belongs to another job"
    );
    let ended = r#"{"status": {"phase": "Failed"}}"#;
    cluster
        .kubectl(&["patch", "pod", "remaining", "--subresource=status", "-p", ended])
        .unwrap();
    assert_eq!(
        liveness.liveness_of(&owned("missing", "u2")).await,
        OwnerLiveness::Dead,
        "the Pod has ended"
    );
    for arguments in [
        "create clusterrole jobs --verb=get,list --resource=ipujobs.graphcore.ai",
        "create clusterrolebinding jobs --clusterrole=jobs --user=blind",
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        cluster.kubectl(&arguments).unwrap();
    }
    let without_pod_access =
        KubernetesLiveness::new(config_of(&cluster.user("blind", &[]).unwrap()).await).unwrap();
    // RBAC changes take effect with a delay.
    while without_pod_access.liveness_of(&owned("mnist", &uid)).await != OwnerLiveness::Live {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        without_pod_access.liveness_of(&owned("missing", "u3")).await,
        OwnerLiveness::Unknown,
        "Pods cannot be listed"
    );

    let mut slurm_entry = owned("missing", "u1");
    slurm_entry.owner.as_mut().unwrap().kind = "SlurmJob".into();
    let mut unowned_entry = owned("missing", "u1");
    unowned_entry.owner = None;
    for entry in [slurm_entry, unowned_entry] {
        assert_eq!(
            liveness.liveness_of(&entry).await,
            OwnerLiveness::Unknown,
            "{:?}",
            entry.owner
        );
    }
    // Names that would change the URL.
    for invalid_name in ["mnist?x", "..", "mnist%2f", "Mnist", "-mnist", "mnist#"] {
        assert_eq!(
            liveness.liveness_of(&owned(invalid_name, "u1")).await,
            OwnerLiveness::Unknown,
            "{invalid_name}"
        );
    }
    let unprivileged =
        KubernetesLiveness::new(config_of(&cluster.user("unprivileged", &[]).unwrap()).await).unwrap();
    assert_eq!(
        unprivileged.liveness_of(&owned("missing", "u1")).await,
        OwnerLiveness::Unknown,
        "forbidden"
    );

    // Granted partitions follow only from the status.
    for (text, claimed) in [
        (GRANTED.replace("Created: true", "Created: false"), 0),
        (GRANTED.replace("'8'", "'7'"), 0),
        (GRANTED.to_owned(), 2),
    ] {
        apply(&cluster, &text);
        assert_eq!(liveness.claims().await.len(), claimed, "{text}");
    }
    let claims = liveness.claims().await;
    let uid_of = |name: &str| {
        let arguments = ["get", "ipujob", name, "-o", "jsonpath={.metadata.uid}"];
        cluster.kubectl(&arguments).unwrap()
    };
    let job = JobKey::new("default", "granted", uid_of("granted")).unwrap();
    // One claim names its controller.
    let controllers: Vec<_> = claims
        .iter()
        .map(|claim| claim.controller.as_ref().map(ToString::to_string))
        .collect();
    assert_eq!(controllers, [None, Some("vipu-server:8090".to_owned())]);
    for (instance, claim) in (0..).zip(claims.iter().map(|claim| &claim.request)) {
        assert_eq!(claim.id, job.partition_id(instance));
        assert_eq!((claim.attempt, claim.spec.size.get()), (3, 8));
        assert_eq!((&claim.owner.job, claim.owner.kind.as_str()), (&job, "IPUJob"));
    }
    assert!(unprivileged.claims().await.is_empty());

    cluster.kubectl(&["delete", "ipujob", "mnist"]).unwrap();
    assert_eq!(
        liveness.liveness_of(&owned("mnist", &uid)).await,
        OwnerLiveness::Dead,
        "deleted"
    );
    cluster.kill_apiserver();
    assert_eq!(
        liveness.liveness_of(&owned("mnist", &uid)).await,
        OwnerLiveness::Unknown,
        "the API server is unreachable"
    );
}
