//! Doctor on a real API server: healthy installations, and planted faults that its printed commands mend.
//!
//! The cluster has no nodes. The tests write what operator, proxy and kubelet would write.

mod faults;
mod healthy;
mod manifests;
mod site;

use std::path::Path;
use std::process::Command;

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::harness::{DEPLOY, Run, run};

/// Rules that need a running proxy, which a cluster without nodes does not have.
const NEED_PROXY: [&str; 3] = [
    "ControllerUnreachable",
    "ControllerTlsFailed",
    "ControllerVersionUnknown",
];

/// Returns the report as JSON.
fn report(run: &Run) -> Value {
    serde_json::from_str(&run.out).unwrap_or_else(|error| panic!("{error}: {} {}", run.out, run.err))
}

/// Runs doctor as the administrator of the cluster.
fn examine(cluster: &Cluster) -> Value {
    report(&run(cluster, &["doctor", "-o", "json"]))
}

/// Returns the codes of a list of the report, each once.
fn codes<'a>(report: &'a Value, list: &str) -> Vec<&'a str> {
    let list = report[list].as_array().unwrap();
    let mut codes: Vec<_> = list.iter().map(|entry| entry["code"].as_str().unwrap()).collect();
    codes.dedup();
    codes
}

/// Asserts that a report has no finding, and that all rules were checked that need no running proxy.
#[track_caller]
fn assert_clean(report: &Value, case: &str) {
    assert_eq!(
        codes(report, "findings"),
        Vec::<&str>::new(),
        "{case}: {report:#}"
    );
    assert_eq!(codes(report, "notChecked"), NEED_PROXY, "{case}: {report:#}");
}

/// Words of printed commands that a person replaces, and the values of the tests. `VALUES.yaml` is an empty
/// file, and `NETWORK.yaml` the definition of a network, in the folder of the cluster.
const REPLACED: [(&str, &str); 5] = [
    ("HOST:8090:KEY=VALUE", "pod1:8090:vipu-ctrl=vctl1"),
    (" NODE ", " node-a "),
    ("REGISTRY/ipu-launcher:TAG", "registry.example.com/ipu-launcher:9"),
    ("VALUES.yaml", "DIRECTORY/VALUES.yaml"),
    ("NETWORK.yaml", "DIRECTORY/NETWORK.yaml"),
];

/// Returns a printed command with the values of the tests.
fn replaced(cluster: &Cluster, finding: &Value) -> String {
    let mut command = finding["command"].as_str().unwrap().to_owned();
    if finding["commandKind"] == "template" {
        for (word, value) in REPLACED {
            command = command.replace(word, value);
        }
        command = command.replace("DIRECTORY", cluster.directory().to_str().unwrap());
    }
    command
}

/// Runs the printed commands of all findings with this code, in the root of the repository. `helm` is a
/// folder with this program.
#[track_caller]
fn fix(cluster: &Cluster, report: &Value, code: &str, helm: Option<&Path>) {
    let findings = report["findings"].as_array().unwrap();
    let own = findings.iter().filter(|finding| finding["code"] == code);
    let mut commands: Vec<_> = own
        .map(|finding| {
            assert_ne!(finding["commandKind"], "inspect", "{finding:#}");
            replaced(cluster, finding)
        })
        .collect();
    commands.dedup();
    assert!(!commands.is_empty(), "{code}: {report:#}");
    let programs =
        std::env::var("KUBEBUILDER_ASSETS").unwrap_or_else(|_| "/usr/local/kubebuilder/bin".into());
    let mut path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    if let Some(helm) = helm {
        path = format!("{}:{path}", helm.display());
    }
    let root = Path::new(DEPLOY).parent().unwrap();
    for command in commands {
        let output = Command::new("sh")
            .args(["-c", &command])
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("PATH", &path)
            .env("HOME", helm.unwrap_or(cluster.directory()))
            .current_dir(root)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{code}: {command}: {text}");
    }
}
