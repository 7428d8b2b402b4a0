//! Volumes (seed 000 §6.7.1): every worker and the launcher see the same files at the same path.

use serde_json::json;

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{load, seed};
use crate::support::apply;

/// The seeds' volume and claim, of a folder of the node in place of a server of NFS.
pub(super) fn claim(served: &ClusterFixture) -> tempfile::TempDir {
    let storage = tempfile::tempdir().unwrap();
    let namespace = served.namespace;
    apply(
        served.cluster,
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace},
            "spec": {
                "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": storage.path()},
                "claimRef": {"namespace": namespace, "name": "nfs-pvc"},
            },
        }),
    );
    served.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "nfs-pvc"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }));
    storage
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_000_6_7_1_a_volume_is_at_the_same_path_in_workers_and_launcher() {
    let test = "seed_000_6_7_1_a_volume_is_at_the_same_path_in_workers_and_launcher";
    let Some(served) = ClusterFixture::start(test, "seed-000-6-7-1").await else {
        return;
    };
    load(served.cluster).await;
    let storage = claim(&served);
    let mut job = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/000-nfs.yaml"
    ));
    job["spec"]["workersPerJobInstance"] = "2".into();
    job["spec"]["ipusPerJobInstance"] = "2".into();
    // Each rank adds to what the launcher wrote, and the launcher reads all of it.
    let script = "echo launcher >/mnt/sample/checkpoint && mpirun -np 2 'hostname >>/mnt/sample/checkpoint' && cat /mnt/sample/checkpoint";
    job["spec"]["launcher"]["command"] = json!(["/bin/sh", "-c", script]);
    served.apply(&job);
    served.is("ipujob-sample", "Completed").await;
    let all = "launcher\nipujob-sample-worker-0\nipujob-sample-worker-1\n";
    assert_eq!(served.kubectl(&["logs", "ipujob-sample-launcher"]), all);
    served.ends_without_a_trace().await;
    // It outlives the job.
    let kept = std::fs::read_to_string(storage.path().join("checkpoint")).unwrap();
    assert_eq!(kept, all);
}
