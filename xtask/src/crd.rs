//! Generates `deploy/crd/ipujobs.graphcore.ai.yaml`, the CRD of the IPUJob, and
//! `docs/reference/ipujob-crd.md`, its reference page. Both are derived from the type in
//! `ipu-k8s/src/crd/spec.rs`. Manifests are checked against the schema of the Pod template in the CRD,
//! `ipu-k8s/src/crd/pod_template.json`.

mod pod;
mod reference;

use std::error::Error;
use std::path::{Path, PathBuf};

use ipu_k8s::crd::IpuJob;
use serde_saphyr::SerializerOptions;

use crate::Generated;

const HEADER: &str = "# Written by `cargo xtask gen` from ipu-k8s/src/crd/spec.rs: edit that.\n";

/// Generates these files; reads no file.
pub(crate) fn generate(_root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let template = pod::template()?;
    let definition = IpuJob::definition(&template);
    let mut yaml = HEADER.to_owned();
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: false,
    };
    yaml.push_str(&to_yaml(&definition, options)?);
    Ok(vec![
        Generated {
            path: PathBuf::from("ipu-k8s/src/crd/pod_template.json"),
            text: format!("{template}\n"),
        },
        Generated {
            path: PathBuf::from("deploy/crd/ipujobs.graphcore.ai.yaml"),
            text: yaml,
        },
        Generated {
            path: PathBuf::from("docs/reference/ipujob-crd.md"),
            text: crate::wrap::wrap(&reference::render(&definition)?),
        },
    ])
}

fn to_yaml(value: &serde_json::Value, options: SerializerOptions) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut text, value, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crd_and_its_reference_are_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in generate(root).unwrap() {
            let committed = std::fs::read_to_string(root.join(&file.path)).unwrap_or_default();
            assert!(
                committed == file.text,
                "{} is stale: run `cargo xtask gen` and commit it",
                file.path.display()
            );
        }
    }
}
