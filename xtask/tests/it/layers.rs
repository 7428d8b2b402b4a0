//! Dependencies point one way: services → adapters → allocator → client → core.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Crates by layer, the lowest first. A crate may use crates of lower layers only.
const LAYERS: [&[&str]; 8] = [
    &[
        "ipu-core",
        "ipu-example-policy",
        "ipu-test-cluster",
        "ipu-test-slurm",
    ],
    &["ipu-core-wasm", "ipu-vipu-client"],
    &["ipu-allocator", "ipu-proxy-client"],
    &["ipu-k8s", "ipu-serve", "ipu-slurm"],
    &[
        "ipu-launcher",
        "ipu-operator",
        "ipu-slurm-hooks",
        "ipu-slurm-spank",
        "ipuctl",
        "kubectl-ipu",
        "vipu-proxy",
        "vipu-sim",
    ],
    // For tests only: no service may use it.
    &["ipu-testkit"],
    &["ipu-bench", "ipu-fuzz", "ipu-test-system"],
    &["xtask"],
];

/// The services that others are built on: a simulated IPU-POD where no controller is given, and the proxy
/// that `ipuctl` starts where none is given. `ipuctl policy`, a feature, tests the policies of users.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("ipuctl", "ipu-testkit"),
    ("ipuctl", "vipu-proxy"),
    ("ipuctl", "vipu-sim"),
    ("vipu-proxy", "vipu-sim"),
];

const SERVICES: usize = 4;

#[test]
fn every_crate_has_a_layer() {
    for package in packages() {
        assert!(
            layer(name(&package)).is_some(),
            "{} is in no layer",
            name(&package)
        );
    }
}

#[test]
fn a_crate_uses_lower_layers_only_and_nothing_uses_a_service() {
    for package in packages() {
        let user = name(&package);
        for used in dependencies(&package, None) {
            let measures = layer(user) > Some(SERVICES);
            let allowed = EXCEPTIONS.contains(&(user, used.as_str()))
                || (layer(&used) < layer(user) && (layer(&used) < Some(SERVICES) || measures));
            assert!(allowed, "{user} must not depend on {used}");
        }
    }
}

#[test]
fn the_core_is_tested_with_nothing_but_what_its_users_test_with() {
    let core = packages()
        .into_iter()
        .find(|package| name(package) == "ipu-core")
        .unwrap();
    for used in dependencies(&core, Some("dev")) {
        assert_eq!(used, "ipu-testkit");
    }
}

/// The members of this workspace that a package depends on, by kind (`None` is a normal dependency).
fn dependencies(package: &Value, kind: Option<&str>) -> Vec<String> {
    let all = package["dependencies"].as_array().unwrap();
    all.iter()
        .filter(|dependency| dependency["kind"].as_str() == kind && dependency["path"].is_string())
        .map(|dependency| name(dependency).to_owned())
        .collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn name(value: &Value) -> &str {
    value["name"].as_str().unwrap()
}

/// Returns the folders of all packages.
pub(crate) fn folders() -> Vec<PathBuf> {
    let manifest = |package: Value| PathBuf::from(package["manifest_path"].as_str().unwrap());
    let manifests = packages().into_iter().map(manifest);
    manifests.map(|path| path.parent().unwrap().to_owned()).collect()
}

fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--offline",
            "--locked",
            "--no-deps",
            "--format-version",
            "1",
        ])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}
