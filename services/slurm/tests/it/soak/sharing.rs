//! Slurm and Kubernetes at the IPUs of one IPU-POD, as in "Share IPUs with Kubernetes" of
//! `docs/how-to/operate-slurm.md`, whose commands make the proxy of Slurm.
//!
//! API server, operator, both proxies and Slurm are real. The IPUs and the nodes of Kubernetes are simulated.

mod operator;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
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
use crate::guide::read;
use operator::{OperatorJobs, client, node_options, start_operator};

/// Number of requests in the gate.
const REQUESTS: usize = 40;
/// Namespace of the operator and of the ledger.
const NAMESPACE: &str = "ipu-operator-system";
/// Indentation of a block in a step of the guide.
const INDENT: &str = "   ";
/// Any free port of this machine.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn slurm_and_the_operator_share_no_ipu_with_the_proxy_of_the_guide() {
    let test = "slurm_and_the_operator_share_no_ipu_with_the_proxy_of_the_guide";
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
    let _operator = runtime.block_on(start_operator(&kubernetes));

    let kubeconfig = proxy_kubeconfig(&kubernetes);
    let etc = cluster.bed.directory().join("etc");
    fs::write(etc.join("proxy.kubeconfig"), kubeconfig).unwrap();
    let port = simulator.addr().port();
    let pod64 = format!("ApiHost=127.0.0.1\nApiPort={port}\nIpuofDir={BED}/ipuof\n");
    fs::write(etc.join("pod64.conf"), pod64).unwrap();
    cluster.kill_proxy();
    let api_server = kubernetes.url().rsplit_once(':').unwrap().1.parse().unwrap();
    for (inside, outside) in [(api_server, api_server), (port, port), (8090, port)] {
        cluster.bed.forward(inside, outside);
    }
    start_proxy_of_the_guide(&mut cluster);

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

/// Returns the text between the heading of the guide and the next one.
fn guide() -> String {
    let text = read("docs/how-to/operate-slurm.md");
    let section = text
        .split("\n## ")
        .find(|section| section.starts_with("Share IPUs with Kubernetes\n"));
    section.unwrap().to_owned()
}

/// Runs the commands of the guide that make a kubeconfig, and returns it.
fn proxy_kubeconfig(kubernetes: &ipu_test_cluster::Cluster) -> String {
    let guide = guide();
    let block = guide.split("```console").nth(1).unwrap();
    let (_, block) = block.split_once('\n').unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let script: String = block
        .lines()
        .map(|line| line.strip_prefix(INDENT).unwrap_or(line))
        .map(|line| format!("{}\n", line.strip_prefix("$ ").unwrap_or(line)))
        .collect();
    assert!(script.contains("delete-user admin\n"), "{script}");
    let user = kubernetes.kubectl(&["config", "get-users"]).unwrap();
    let script = script.replace(
        "delete-user admin\n",
        &format!("delete-user {}\n", user.lines().last().unwrap()),
    );
    let programs =
        std::env::var("KUBEBUILDER_ASSETS").unwrap_or_else(|_| "/usr/local/kubebuilder/bin".into());
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new("sh")
        .args(["-euxc", &script])
        .env("KUBECONFIG", kubernetes.kubeconfig())
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()))
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(directory.path().join("proxy.kubeconfig")).unwrap()
}

/// Starts the proxy with the lines that the guide has for its unit.
fn start_proxy_of_the_guide(cluster: &mut Cluster) {
    let guide = guide();
    let (_, unit) = guide.split_once("```ini\n").unwrap();
    let (unit, _) = unit.split_once("```").unwrap();
    let unit = unit.replace("\\\n", "");
    let value = |key: &str| {
        unit.lines()
            .find_map(|line| line.trim_start().strip_prefix(key))
            .unwrap()
    };
    let (_, arguments) = value("ExecStart=").split_once(' ').unwrap();
    let tokens = "/etc/slurm/ipu-proxy.tokens";
    cluster
        .bed
        .succeed("cp", &[&format!("{BED}/private/tokens"), tokens]);
    for file in [tokens, "/etc/slurm/proxy.kubeconfig"] {
        cluster.bed.succeed("chown", &["slurm", file]);
        cluster.bed.succeed("chmod", &["600", file]);
    }
    let words = [
        "setpriv",
        "--reuid=slurm",
        "--regid=slurm",
        "--clear-groups",
        "env",
        value("Environment="),
    ];
    cluster.launch_proxy_with(arguments, &words);
    cluster.wait_for_proxy();
}
