//! Runs `kubectl-ipu` with the kubeconfig of a cluster, and prepares its objects.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

/// Manifests of the repository.
pub(crate) const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");

/// Result of a run.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Returns the program with the kubeconfig as the caller.
pub(crate) fn program(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-ipu"));
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(arguments)
        .env_remove("KUBECONFIG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the program as the administrator of the cluster.
pub(crate) fn run(cluster: &Cluster, arguments: &[&str]) -> Run {
    program(&cluster.kubeconfig(), arguments).output().unwrap().into()
}

/// Applies the objects of a file, and waits until IPUJobs are served.
pub(crate) fn install_crd(cluster: &Cluster) {
    let file = format!("{DEPLOY}/crd/ipujobs.graphcore.ai.yaml");
    cluster.kubectl(&["apply", "--server-side", "-f", &file]).unwrap();
    // `kubectl wait` fails before the first condition is set.
    let kind = "--for=jsonpath={.status.acceptedNames.kind}=IPUJob";
    let named = ["wait", kind, "crd/ipujobs.graphcore.ai", "--timeout=60s"];
    cluster.kubectl(&named).unwrap();
    let wait = [
        "wait",
        "--for=condition=Established",
        "crd/ipujobs.graphcore.ai",
        "--timeout=60s",
    ];
    cluster.kubectl(&wait).unwrap();
    wait_until_served(cluster, "ipujobs");
}

/// Waits until the API server has initialized the storage of an established kind.
pub(crate) fn wait_until_served(cluster: &Cluster, kind: &str) {
    while cluster.kubectl(&["get", kind]).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

/// Applies JSON objects by one command.
pub(crate) fn apply(cluster: &Cluster, objects: &[Value], options: &[&str]) {
    let file = cluster
        .directory()
        .join(format!("object-{:?}.json", std::thread::current().id()));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    std::fs::write(&file, list.to_string()).unwrap();
    let arguments = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "-f",
        file.to_str().unwrap(),
    ];
    cluster.kubectl(&[&arguments, options].concat()).unwrap();
}

/// Merges `patch` into the status of an object.
pub(crate) fn set_status(cluster: &Cluster, namespace: &str, object: &str, patch: &Value) {
    let patch = patch.to_string();
    let arguments = [
        "-n",
        namespace,
        "patch",
        object,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ];
    cluster.kubectl(&arguments).unwrap();
}
