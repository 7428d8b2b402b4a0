//! The manifests of the alpha and of the network guide (seeds 001 and 002), as they are but for images and programs that are not here.

use serde_json::{Value, json};

use crate::cluster_fixture::ClusterFixture;
use crate::guide::volumes::claim;
use crate::guide::{load, seed};
use crate::support::until;

/// How many IPUs the partition of the job's first instance has.
async fn ipus(served: &ClusterFixture, job: &str) -> Value {
    let all = served.ask("/v1/partitions").await;
    let partitions = all["partitions"].as_array().unwrap();
    let of_job = partitions
        .iter()
        .find(|partition| partition["owner"]["name"] == job);
    of_job
        .map(|partition| partition["size"].clone())
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_001_6_5_jobs_of_the_alpha_run_on_replicas_times_ipus() {
    let test = "seed_001_6_5_jobs_of_the_alpha_run_on_replicas_times_ipus";
    let Some(served) = ClusterFixture::start(test, "seed-001-6-5").await else {
        return;
    };
    load(served.cluster).await;
    let training = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/001-training.yaml"
    ));
    served.apply(&training);
    served.is("ipujob-sample", "Running").await;
    assert_eq!(ipus(&served, "ipujob-sample").await, 4);
    let end = [
        "exec",
        "ipujob-sample-worker-0",
        "--",
        "sh",
        "-c",
        "echo 0 >/tmp/end",
    ];
    served.kubectl(&end);
    served.is("ipujob-sample", "Completed").await;
    let log = served.kubectl(&["logs", "ipujob-sample-launcher"]);
    let program = "/public_examples/applications/tensorflow/cnns/training/train.py on p-ipujob-sample-0-";
    assert!(log.starts_with(program), "{log}");
    served.delete("ipujob-sample");

    // §6.5.1, an interactive session.
    served.apply(&seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/001-interactive.yaml"
    )));
    served.is("interactive-sample-job", "Running").await;
    assert_eq!(ipus(&served, "interactive-sample-job").await, 4);
    let session = [
        "exec",
        "interactive-sample-job-launcher",
        "--",
        "mpirun",
        "-np",
        "1",
        "hostname",
    ];
    assert_eq!(served.kubectl(&session).trim(), "interactive-sample-job-worker-0");

    // §6.5.2, a volume.
    let storage = claim(&served);
    std::fs::write(storage.path().join("end"), "0").unwrap();
    let mut with_volume = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/001-nfs.yaml"
    ));
    // The launcher reads what is there, and so does a rank in the worker.
    with_volume["spec"]["launcher"]["command"] = json!([
        "/bin/sh",
        "-c",
        "cat /mnt/sample/end && mpirun -np 1 cat /mnt/sample/end"
    ]);
    served.apply(&with_volume);
    served.is("ipujob-sample", "Completed").await;
    assert_eq!(ipus(&served, "ipujob-sample").await, 4);
    assert_eq!(served.kubectl(&["logs", "ipujob-sample-launcher"]), "00");
    served.ends_without_a_trace().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_002_8_7_a_worker_keeps_the_network_resources_and_rights_of_its_template() {
    let test = "seed_002_8_7_a_worker_keeps_the_network_resources_and_rights_of_its_template";
    let Some(served) = ClusterFixture::start(test, "seed-002-8-7").await else {
        return;
    };
    load(served.cluster).await;
    // What a device plugin tells the kubelet.
    let nodes = served.cluster.kubectl(&["get", "nodes", "-o", "name"]).unwrap();
    let node = nodes.lines().next().unwrap().to_owned();
    let resource = "rdma/rdma_shared_device_a";
    let more = json!({"status": {"capacity": {resource: "4"}}}).to_string();
    let words = [
        "patch",
        &node,
        "--subresource=status",
        "--type=merge",
        "-p",
        &more,
    ];
    served.cluster.kubectl(&words).unwrap();
    until("the node has the resource", async || {
        let shown = served.cluster.kubectl(&["get", &node, "-o", "json"]).unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        shown["status"]["allocatable"][resource] == "4"
    })
    .await;
    let mut job = seed(include_str!(
        "../../../../../ipu-k8s/tests/data/seeds/002-mnist.yaml"
    ));
    let container = &mut job["spec"]["workers"]["template"]["spec"]["containers"][0];
    container["command"] = json!(["sh"]);
    container["args"] = json!(["-c", "pwd && id -u"]);
    served.apply(&job);
    served.is("mnist-training", "Completed").await;
    let log = served.kubectl(&["logs", "mnist-training-worker-0"]);
    assert_eq!(log, "/opt/tutorials/simple_applications/pytorch/mnist\n0\n");
    assert_eq!(ipus(&served, "mnist-training").await, 1);
    let pod = served.pod("mnist-training-worker-0").await;
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
    served.ends_without_a_trace().await;
}
