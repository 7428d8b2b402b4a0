//! IPUJobs that own partitions, alive and gone.

use ipu_core::{JobKey, OwnerLiveness};
use ipu_k8s::ipujob_liveness::IpuJobLiveness;
use ipu_ledger::{Entry, Liveness};
use ipu_test_cluster::{Cluster, private};

use super::fixtures::entry;
use super::{config, config_of};

/// As little of the resource as an API server wants to know.
const RESOURCE: &str = "
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

/// What is left of a job whose uid is in a label.
const LEFT: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: default}
---
apiVersion: v1
kind: Pod
metadata: {name: left, namespace: default, labels: {graphcore.ai/ipujob-uid: u2}}
spec: {automountServiceAccountToken: false, containers: [{name: main, image: none}]}
";

/// Two instances of eight IPUs, which were granted for the fourth attempt.
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

/// An entry of the IPUJob `name` with this uid.
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
async fn an_owner_is_dead_only_if_the_api_server_knows_ipujobs_and_not_this_one() {
    let name = "an_owner_is_dead_only_if_the_api_server_knows_ipujobs_and_not_this_one";
    let Some(mut cluster) = private(name) else {
        return;
    };
    let alive = IpuJobLiveness::new(config(&cluster).await).unwrap();
    assert_eq!(
        alive.life_of(&owned("mnist", "u1")).await,
        OwnerLiveness::Unknown,
        "no such resource"
    );

    apply(&cluster, RESOURCE);
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
    assert_eq!(alive.life_of(&owned("mnist", &uid)).await, OwnerLiveness::Live);
    assert_eq!(
        alive.life_of(&owned("mnist", "u1")).await,
        OwnerLiveness::Dead,
        "another of the name"
    );
    assert_eq!(
        alive.life_of(&owned("gone", "u1")).await,
        OwnerLiveness::Dead,
        "none of the name"
    );

    // Somebody took the finalizer off, or it came too late: the job is gone before what it runs.
    apply(&cluster, LEFT);
    assert_eq!(
        alive.life_of(&owned("gone", "u2")).await,
        OwnerLiveness::Unknown,
        "it still runs"
    );
    assert_eq!(
        alive.life_of(&owned("gone", "u3")).await,
        OwnerLiveness::Dead,
        "what runs is another's"
    );
    let ended = r#"{"status": {"phase": "Failed"}}"#;
    cluster
        .kubectl(&["patch", "pod", "left", "--subresource=status", "-p", ended])
        .unwrap();
    assert_eq!(
        alive.life_of(&owned("gone", "u2")).await,
        OwnerLiveness::Dead,
        "it has ended"
    );
    for words in [
        "create clusterrole jobs --verb=get,list --resource=ipujobs.graphcore.ai",
        "create clusterrolebinding jobs --clusterrole=jobs --user=blind",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        cluster.kubectl(&words).unwrap();
    }
    let blind = IpuJobLiveness::new(config_of(&cluster.user("blind", &[]).unwrap()).await).unwrap();
    // Rights take a moment to be known.
    while blind.life_of(&owned("mnist", &uid)).await != OwnerLiveness::Live {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        blind.life_of(&owned("gone", "u3")).await,
        OwnerLiveness::Unknown,
        "what runs is not to be seen"
    );

    let mut of_slurm = owned("gone", "u1");
    of_slurm.owner.as_mut().unwrap().kind = "SlurmJob".into();
    let mut of_nobody = owned("gone", "u1");
    of_nobody.owner = None;
    for entry in [of_slurm, of_nobody] {
        assert_eq!(
            alive.life_of(&entry).await,
            OwnerLiveness::Unknown,
            "{:?}",
            entry.owner
        );
    }
    // Names that would make another address.
    for odd in ["mnist?x", "..", "mnist%2f", "Mnist", "-mnist", "mnist#"] {
        assert_eq!(
            alive.life_of(&owned(odd, "u1")).await,
            OwnerLiveness::Unknown,
            "{odd}"
        );
    }
    let powerless = IpuJobLiveness::new(config_of(&cluster.user("nobody", &[]).unwrap()).await).unwrap();
    assert_eq!(
        powerless.life_of(&owned("gone", "u1")).await,
        OwnerLiveness::Unknown,
        "forbidden"
    );

    // What was granted follows from the status, and from nothing else.
    for (text, claimed) in [
        (GRANTED.replace("Created: true", "Created: false"), 0),
        (GRANTED.replace("'8'", "'7'"), 0),
        (GRANTED.to_owned(), 2),
    ] {
        apply(&cluster, &text);
        assert_eq!(alive.claims().await.len(), claimed, "{text}");
    }
    let claims = alive.claims().await;
    let uid_of = |name: &str| {
        let words = ["get", "ipujob", name, "-o", "jsonpath={.metadata.uid}"];
        cluster.kubectl(&words).unwrap()
    };
    let job = JobKey::new("default", "granted", uid_of("granted")).unwrap();
    // Where it is, one of them says.
    let places: Vec<_> = claims
        .iter()
        .map(|claim| claim.controller.as_ref().map(ToString::to_string))
        .collect();
    assert_eq!(places, [None, Some("vipu-server:8090".to_owned())]);
    for (instance, claim) in (0..).zip(claims.iter().map(|claim| &claim.request)) {
        assert_eq!(claim.id, job.partition_id(instance));
        assert_eq!((claim.attempt, claim.spec.size.get()), (3, 8));
        assert_eq!((&claim.owner.job, claim.owner.kind.as_str()), (&job, "IPUJob"));
    }
    assert!(powerless.claims().await.is_empty());

    cluster.kubectl(&["delete", "ipujob", "mnist"]).unwrap();
    assert_eq!(
        alive.life_of(&owned("mnist", &uid)).await,
        OwnerLiveness::Dead,
        "deleted"
    );
    cluster.kill_apiserver();
    assert_eq!(
        alive.life_of(&owned("mnist", &uid)).await,
        OwnerLiveness::Unknown,
        "no answer"
    );
}
