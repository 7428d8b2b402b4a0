//! The manifest for krew.

use serde_json::Value;

use crate::harness::DEPLOY;

#[test]
fn the_manifest_for_krew_installs_this_version_of_the_program() {
    let text = std::fs::read_to_string(format!("{DEPLOY}/krew/ipu.yaml")).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(manifest["metadata"]["name"], "ipu");
    assert_eq!(manifest["spec"]["version"], format!("v{version}"));
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    for platform in platforms {
        assert_eq!(platform["bin"], "kubectl-ipu");
        assert_eq!(platform["files"][0]["from"], "kubectl-ipu");
        let uri = platform["uri"].as_str().unwrap();
        assert!(uri.contains(&format!("/v{version}/")), "{uri}");
    }
}
