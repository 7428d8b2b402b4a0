//! Doctor on a real API server: healthy installations, and planted faults that its printed commands fix.
//!
//! The cluster has no nodes. The tests write what operator, proxy and kubelet would write, and answer for
//! their Services.

mod faults;
mod site;
mod whole;

use std::path::Path;
use std::process::Command;

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::harness::{DEPLOY, Run, run};

/// Rules that need a running proxy, which a cluster without nodes does not have.
const NEED_PROXY: [&str; 2] = ["ControllerUnreachable", "PartitionsForeign"];

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

/// Words of printed commands that a person replaces, and the values of the tests.
const REPLACED: [(&str, &str); 3] = [
    ("HOST:8090:KEY=VALUE", "pod1:8090:vipu-ctrl=vctl1"),
    (" NODE ", " node-a "),
    ("REGISTRY/ipu-launcher:TAG", "registry.example.com/ipu-launcher:9"),
];

/// Runs the printed commands of all findings with this code, in the root of the repository. `helm` is a
/// folder with this program. Returns whether there are commands that change something.
#[track_caller]
fn fix(cluster: &Cluster, report: &Value, code: &str, helm: Option<&Path>) -> bool {
    let findings = report["findings"].as_array().unwrap();
    let own: Vec<&Value> = findings
        .iter()
        .filter(|finding| finding["code"] == code)
        .collect();
    assert!(!own.is_empty(), "{code}: {report:#}");
    let mut commands = Vec::new();
    for finding in own {
        let Some(command) = finding["command"].as_str() else {
            continue;
        };
        let mut command = command.to_owned();
        match finding["commandKind"].as_str() {
            // A repair needs a running proxy.
            Some("fix") if command.starts_with("kubectl ipu") => continue,
            Some("inspect") => continue,
            Some("template") => {
                for (word, value) in REPLACED {
                    command = command.replace(word, value);
                }
            }
            _ => {}
        }
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    let programs =
        std::env::var("KUBEBUILDER_ASSETS").unwrap_or_else(|_| "/usr/local/kubebuilder/bin".into());
    let helm_folder = helm.map_or_else(String::new, |helm| format!("{}:", helm.display()));
    let path = format!("{helm_folder}{programs}:{}", std::env::var("PATH").unwrap());
    for command in &commands {
        let output = Command::new("sh")
            .args(["-c", command])
            .env("KUBECONFIG", cluster.kubeconfig())
            .env("PATH", &path)
            .env("HOME", helm.unwrap_or(cluster.directory()))
            .current_dir(Path::new(DEPLOY).parent().unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{code}: {command}: {text}");
    }
    !commands.is_empty()
}
