//! Volumes (V-IPU guide §6.7.1): every worker and the launcher see the same files at the same path.

use serde_json::json;

use crate::cluster_fixture::ClusterFixture;
use crate::guide::{guide_job, load_image};
use crate::support::apply;

/// Creates the volume of the V-IPU guide and claim with a folder of the node in place of an NFS server.
pub(super) fn claim(fixture: &ClusterFixture) -> tempfile::TempDir {
    let storage = tempfile::tempdir().unwrap();
    let namespace = fixture.namespace;
    apply(
        fixture.cluster,
        &json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace},
            "spec": {
                "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": storage.path()},
                "claimRef": {"namespace": namespace, "name": "nfs-pvc"},
            },
        }),
    );
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "nfs-pvc"},
        "spec": {
            "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }));
    storage
}

#[tokio::test(flavor = "multi_thread")]
async fn vipu_guide_6_7_1_a_volume_is_at_the_same_path_in_workers_and_launcher() {
    let test = "vipu_guide_6_7_1_a_volume_is_at_the_same_path_in_workers_and_launcher";
    let Some(fixture) = ClusterFixture::start(test, "guide-6-7-1").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let storage = claim(&fixture);
    let mut job = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/vipu-nfs.yaml"
    ));
    job["spec"]["workersPerJobInstance"] = "2".into();
    job["spec"]["ipusPerJobInstance"] = "2".into();
    // Each rank appends to the launcher's file, and the launcher prints all of it.
    let script = "echo launcher >/mnt/sample/checkpoint && mpirun -np 2 'hostname >>/mnt/sample/checkpoint' && cat /mnt/sample/checkpoint";
    job["spec"]["launcher"]["command"] = json!(["/bin/sh", "-c", script]);
    fixture.apply(&job);
    fixture.wait_for_phase("ipujob-sample", "Completed").await;
    let all = "launcher\nipujob-sample-worker-0\nipujob-sample-worker-1\n";
    assert_eq!(fixture.kubectl(&["logs", "ipujob-sample-launcher"]), all);
    fixture.delete_all_and_shut_down().await;
    // The file outlives the job.
    let kept = std::fs::read_to_string(storage.path().join("checkpoint")).unwrap();
    assert_eq!(kept, all);
}
