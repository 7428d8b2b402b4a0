//! The CRDs and flags of cert-manager.

use std::fs;
use std::path::Path;

use crate::error::ClusterError;
use crate::tools::{CERT_MANAGER, Module, Modules, Tool};

/// Names of the servers with their programs.
pub(crate) const SERVERS: [(&str, Tool); 2] = [
    ("cert-manager-controller", Tool::CertManagerController),
    ("cert-manager-cainjector", Tool::CertManagerCainjector),
];

/// Returns the flags of both servers. No second instance competes with them.
pub(crate) fn flags(kubeconfig: &Path) -> [String; 2] {
    [
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".into(),
    ]
}

/// Returns the CRDs of the pinned module.
pub(crate) fn crds() -> Result<String, ClusterError> {
    let read_error = |error: std::io::Error| ClusterError::step("read the CRDs of cert-manager", error);
    let folder = Modules::read(Module::CertManager)?.sources(CERT_MANAGER)?;
    let mut crds = String::new();
    for entry in fs::read_dir(folder.join("deploy/crds")).map_err(read_error)? {
        let path = entry.map_err(read_error)?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(path).map_err(read_error)?;
            // The labels are templates of Helm.
            let lines = text.lines().filter(|line| !line.contains("{{"));
            crds.extend(
                ["---", "\n"]
                    .into_iter()
                    .chain(lines.flat_map(|line| [line, "\n"])),
            );
        }
    }
    Ok(crds)
}
