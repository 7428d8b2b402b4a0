//! Kueue and JobSet on a node: images of their programs, installed by their own charts.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::Cluster;
use crate::error::ClusterError;
use crate::image::Image;
use crate::tools::{Tool, Tools};

/// User and group of the programs, as in their images.
const USER: &str = "65532:65532";

/// Maximum time until a program has its certificate, and answers by it.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Kueue manages the labelled namespaces only: the other tests share the node.
const KUEUE: &str = "
controllerManager:
  manager:
    image: {repository: docker.io/library/kueue, tag: test, pullPolicy: Never}
    resources: {requests: {cpu: 10m, memory: 64Mi}}
  readinessProbe: {initialDelaySeconds: 1, periodSeconds: 1}
managerConfig:
  controllerManagerConfigYaml: |
    apiVersion: config.kueue.x-k8s.io/v1beta2
    kind: Configuration
    health: {healthProbeBindAddress: ':8081'}
    metrics: {bindAddress: ':8443'}
    webhook: {port: 9443}
    leaderElection: {leaderElect: false}
    managedJobsNamespaceSelector: {matchLabels: {queues: kueue}}
    clientConnection: {qps: 300, burst: 500}
    integrations: {frameworks: [batch/job, jobset.x-k8s.io/jobset]}
";
const JOBSET: &str = "
image: {repository: docker.io/library/jobset, tag: test, pullPolicy: Never}
controller:
  leaderElection: {enable: false}
  resources: {requests: {cpu: 10m, memory: 64Mi}}
";

/// An AdmissionCheck of the operator, and a flavor. Their creation calls Kueue's webhooks.
const OBJECTS: &str = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: ipu-partition}
spec: {controllerName: graphcore.ai/ipu-partition}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: ipu}
";

/// Installs Kueue and JobSet in namespaces of their names, with an AdmissionCheck `ipu-partition`, a flavor
/// `ipu`, and the resource `graphcore.ai/ipu` on all nodes. Kueue manages the namespaces with the label
/// `queues=kueue`.
///
/// # Errors
///
/// The command that fails, or what does not get ready within five minutes.
pub fn install_kueue(cluster: &Cluster, tools: &Tools) -> Result<(), ClusterError> {
    let file = cluster.directory().join("kueue.yaml");
    let path = file.display().to_string();
    let write = |text: &str| {
        let error = |error| ClusterError::step("write the values of Kueue", error);
        fs::write(&file, text).map_err(error)
    };
    for (tool, values) in Tool::KUEUE.into_iter().zip([KUEUE, JOBSET]) {
        let name = tool.name();
        let image = Image::scratch(&format!("{name}:test")).file(&tools.path(tool), "/manager");
        cluster.load(&image.entrypoint(["/manager"]).user(USER))?;
        write(values)?;
        let chart = tools.chart(tool).display().to_string();
        let release = ["install", name, &chart, "--namespace", name];
        let options = ["--create-namespace", "--values", &path];
        cluster.helm(Tool::Helm4, &[&release[..], &options].concat())?;
    }
    for tool in Tool::KUEUE {
        // The kubelet shows a running Pod a changed Secret after a minute, and a new Pod at once.
        let name = tool.name();
        let secrets = ["-n", name, "get", "secrets", "-o", "jsonpath={.items[*].data}"];
        until(|| {
            cluster
                .kubectl(&secrets)
                .and_then(|data| contains(&data, "tls.crt"))
        })?;
        restart_pods(cluster, name)?;
    }
    let capacity = r#"{"status": {"capacity": {"graphcore.ai/ipu": "1024"}}}"#;
    for node in cluster.kubectl(&["get", "nodes", "-o", "name"])?.lines() {
        let patch = ["--subresource=status", "--type=merge", "-p", capacity];
        cluster.kubectl(&[&["patch", node][..], &patch].concat())?;
    }
    write(OBJECTS)?;
    until(|| cluster.kubectl(&["apply", "-f", &path]))
}

/// Ends the Pods of a namespace as a crash does, and waits for the next.
///
/// # Errors
///
/// The command that fails.
pub fn restart_pods(cluster: &Cluster, namespace: &str) -> Result<(), ClusterError> {
    cluster.kubectl(&["-n", namespace, "delete", "pods", "--all", "--force"])?;
    let next = ["rollout", "status", "deployment", "--timeout=180s"];
    cluster.kubectl(&[&["-n", namespace], &next[..]].concat())?;
    Ok(())
}

fn contains(text: &str, part: &str) -> Result<String, ClusterError> {
    if text.contains(part) {
        return Ok(text.to_owned());
    }
    Err(ClusterError::step(format!("find {part}"), text))
}

/// Waits until a check succeeds.
fn until(check: impl Fn() -> Result<String, ClusterError>) -> Result<(), ClusterError> {
    let started = Instant::now();
    loop {
        match check() {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > TIMEOUT => return Err(error),
            Err(_) => thread::sleep(Duration::from_millis(500)),
        }
    }
}
