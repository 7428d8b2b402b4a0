//! Manifests of the alpha guide and of the RDMA guide, unchanged except for images and
//! programs.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::volumes::claim;
use crate::guide::{guide_job, load_image};
use crate::support::wait_until;

/// Returns the number of IPUs of the partition of the job's first instance.
async fn ipus(fixture: &ClusterFixture, job: &str) -> Value {
    let all = fixture.get_from_proxy("/v1/partitions").await;
    let partitions = all["partitions"].as_array().unwrap();
    let of_job = partitions
        .iter()
        .find(|partition| partition["owner"]["name"] == job);
    of_job
        .map(|partition| partition["size"].clone())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn alpha_guide_6_5_jobs_of_the_alpha_run_on_replicas_times_ipus() {
    let test = "alpha_guide_6_5_jobs_of_the_alpha_run_on_replicas_times_ipus";
    let Some(fixture) = ClusterFixture::start(test, "alpha-guide-6-5").await else {
        return;
    };
    load_image(fixture.cluster).await;
    let training = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/alpha-training.yaml"
    ));
    fixture.apply(&training);
    fixture.wait_for_phase("ipujob-sample", "Running").await;
    assert_eq!(ipus(&fixture, "ipujob-sample").await, 4);
    let end = [
        "exec",
        "ipujob-sample-worker-0",
        "--",
        "sh",
        "-c",
        "echo 0 >/tmp/end",
    ];
    fixture.kubectl(&end);
    fixture.wait_for_phase("ipujob-sample", "Completed").await;
    let log = fixture.kubectl(&["logs", "ipujob-sample-launcher"]);
    let program = "/public_examples/applications/tensorflow/cnns/training/train.py on p-ipujob-sample-0-";
    assert!(log.starts_with(program), "{log}");
    fixture.delete("ipujob-sample");

    // §6.5.1, an interactive session.
    fixture.apply(&guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/alpha-interactive.yaml"
    )));
    fixture.wait_for_phase("interactive-sample-job", "Running").await;
    assert_eq!(ipus(&fixture, "interactive-sample-job").await, 4);
    let session = [
        "exec",
        "interactive-sample-job-launcher",
        "--",
        "mpirun",
        "-np",
        "1",
        "hostname",
    ];
    assert_eq!(
        fixture.kubectl(&session).trim(),
        "interactive-sample-job-worker-0"
    );

    // §6.5.2, a volume.
    let storage = claim(&fixture);
    std::fs::write(storage.path().join("end"), "0").unwrap();
    let mut with_volume = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/alpha-nfs.yaml"
    ));
    // The launcher reads the file in the volume, and so does a rank in the worker.
    with_volume["spec"]["launcher"]["command"] = json!([
        "/bin/sh",
        "-c",
        "cat /mnt/sample/end && mpirun -np 1 cat /mnt/sample/end"
    ]);
    fixture.apply(&with_volume);
    fixture.wait_for_phase("ipujob-sample", "Completed").await;
    assert_eq!(ipus(&fixture, "ipujob-sample").await, 4);
    assert_eq!(fixture.kubectl(&["logs", "ipujob-sample-launcher"]), "00");
    fixture.delete_all_and_shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rdma_guide_8_7_a_worker_keeps_the_network_resources_and_capabilities_of_its_template() {
    let test = "rdma_guide_8_7_a_worker_keeps_the_network_resources_and_capabilities_of_its_template";
    let Some(fixture) = ClusterFixture::start(test, "rdma-guide-8-7").await else {
        return;
    };
    load_image(fixture.cluster).await;
    // A resource as a device plugin reports it to the kubelet.
    let nodes = fixture.cluster.kubectl(&["get", "nodes", "-o", "name"]).unwrap();
    let node = nodes.lines().next().unwrap().to_owned();
    let resource = "rdma/rdma_shared_device_a";
    let more = json!({"status": {"capacity": {resource: "4"}}}).to_string();
    let arguments = [
        "patch",
        &node,
        "--subresource=status",
        "--type=merge",
        "-p",
        &more,
    ];
    fixture.cluster.kubectl(&arguments).unwrap();
    wait_until("the node has the resource", async || {
        let shown = fixture.cluster.kubectl(&["get", &node, "-o", "json"]).unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["status"]["allocatable"][resource] == "4"
    })
    .await;
    let mut job = guide_job(include_str!(
        "../../../../../ipu-k8s/tests/data/guides/rdma-mnist.yaml"
    ));
    let container = &mut job["spec"]["workers"]["template"]["spec"]["containers"][0];
    container["command"] = json!(["sh"]);
    container["args"] = json!(["-c", "pwd && id -u"]);
    fixture.apply(&job);
    fixture.wait_for_phase("mnist-training", "Completed").await;
    let log = fixture.kubectl(&["logs", "mnist-training-worker-0"]);
    assert_eq!(log, "/opt/tutorials/simple_applications/pytorch/mnist\n0\n");
    assert_eq!(ipus(&fixture, "mnist-training").await, 1);
    let pod = fixture.pod("mnist-training-worker-0").await;
    assert_eq!(
        pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"],
        "rdma-net"
    );
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"]["limits"][resource], "1");
    assert_eq!(
        container["securityContext"],
        json!({"capabilities": {"add": ["IPC_LOCK"]}})
    );
    fixture.delete_all_and_shut_down().await;
}
