//! Slurm and Kubernetes at the IPUs of one IPU-POD, as in "Share IPUs with Kubernetes" of
//! `docs/how-to/operate-slurm.md`: Slurm uses the proxy of the operator.
//!
//! API server, operator, proxy and Slurm are real. The IPUs and the nodes of Kubernetes are simulated.

mod operator;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use ipu_test_cluster::{ClusterProfile, FakeNodes, private_with};
use ipu_test_slurm::BED;
use serde_json::json;
use tokio::runtime::Runtime;
use vipu_sim::Simulator;

use super::mixed::drive;
use super::options::SoakOptions;
use super::sample::PartitionSampler;
use super::{assert_nothing_is_left, keep_ended_jobs, queue};
use crate::cluster::Cluster;
use operator::{OperatorJobs, client, node_options, start_operator};

/// Number of requests in the gate.
const REQUESTS: usize = 40;
/// Namespace of the operator and of the ledger.
const NAMESPACE: &str = "ipu-operator-system";
/// Any free port of this machine.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn slurm_and_the_operator_share_no_ipu_by_one_proxy() {
    let test = "slurm_and_the_operator_share_no_ipu_by_one_proxy";
    let options = SoakOptions::from_environment(REQUESTS);
    let Some(mut cluster) = Cluster::start_with(test, 600, "", keep_ended_jobs()) else {
        return;
    };
    let Some(kubernetes) = private_with(test, ClusterProfile::Controllers) else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    let client = runtime.block_on(client(&kubernetes.kubeconfig()));
    let _nodes = runtime
        .block_on(FakeNodes::start(client.clone(), node_options()))
        .unwrap();
    let pod64 = Simulator::builder("pod64".parse().unwrap()).listen(ANY_PORT);
    let simulator = runtime.block_on(pod64.delay(Duration::ZERO).start()).unwrap();
    install(&kubernetes, simulator.addr());
    let operator = runtime.block_on(start_operator(&kubernetes));

    let etc = cluster.bed.directory().join("etc");
    let port = simulator.addr().port();
    let pod64 = format!("ApiHost=127.0.0.1\nApiPort={port}\nIpuofDir={BED}/ipuof\n");
    fs::write(etc.join("pod64.conf"), pod64).unwrap();
    cluster.kill_proxy();
    for (inside, outside) in [(port, port), (8090, port), (8080, operator.proxy_port)] {
        cluster.bed.forward(inside, outside);
    }
    cluster.use_proxy_at(8080);
    cluster.wait_for_proxy();

    cluster.start_agent();
    queue::record(&mut cluster);
    let mut jobs = OperatorJobs::new(&runtime, client);
    let mut sampler = PartitionSampler::default();
    let report = drive(&cluster, &options, &mut jobs, &mut sampler);
    assert_nothing_is_left(&cluster);
    println!("{}", report.render(&sampler.counts));
    jobs.assert_all_completed();
}

/// Installs what the proxies need of `deploy/kubernetes`, with the address of the controller.
fn install(kubernetes: &ipu_test_cluster::Cluster, controller: SocketAddr) {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let apply = |path: &Path| {
        let path = path.display().to_string();
        kubernetes
            .kubectl(&["-n", NAMESPACE, "apply", "-f", &path])
            .unwrap();
    };
    for file in [
        "crd/ipujobs.graphcore.ai.yaml",
        "kubernetes/namespace.yaml",
        "kubernetes/vipu-controllers.yaml",
        "kubernetes/proxy-access.yaml",
    ] {
        apply(&deploy.join(file));
    }
    let list = json!({"data": {"controllers.yaml": format!("{controller}:vipu-ctrl=vctl1")}}).to_string();
    let configmap = ["patch", "configmap", "ipu-operator-vipu-controllers", "-p", &list];
    kubernetes
        .kubectl(&[&["-n", NAMESPACE], &configmap[..]].concat())
        .unwrap();
    let established = ["wait", "--for=condition=Established", "crd/ipujobs.graphcore.ai"];
    kubernetes.kubectl(&established).unwrap();
}
