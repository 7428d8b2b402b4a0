//! Generates the CRDs in `deploy/crd`, and their reference pages in `docs/reference`, from the types in
//! `ipu-k8s/src/crd/spec.rs` and `ipupartition.rs`. Manifests are checked against the schema of the Pod
//! template in the CRD, `ipu-k8s/src/crd/pod_template.json`.

mod pod;
mod reference;

use std::error::Error;
use std::path::{Path, PathBuf};

use ipu_k8s::crd::{IpuJob, IpuPartition};

use crate::Generated;

/// Generates these files; reads no file.
pub(crate) fn generate(_root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let template = pod::template()?;
    let (job, partition) = (IpuJob::definition(&template), IpuPartition::definition());
    Ok(vec![
        Generated {
            path: PathBuf::from("ipu-k8s/src/crd/pod_template.json"),
            text: format!("{template}\n"),
        },
        Generated {
            path: PathBuf::from("deploy/crd/ipujobs.graphcore.ai.yaml"),
            text: to_yaml(&job, "spec.rs")?,
        },
        Generated {
            path: PathBuf::from("docs/reference/ipujob-crd.md"),
            text: crate::wrap::wrap(&reference::render_job(&job)?),
        },
        Generated {
            path: PathBuf::from("deploy/crd/ipupartitions.graphcore.ai.yaml"),
            text: to_yaml(&partition, "ipupartition.rs")?,
        },
        Generated {
            path: PathBuf::from("docs/reference/ipupartition-crd.md"),
            text: crate::wrap::wrap(&reference::render_partition(&partition)?),
        },
    ])
}

fn to_yaml(value: &serde_json::Value, source: &str) -> Result<String, Box<dyn Error>> {
    let options = serde_saphyr::ser_options! {
        compact_list_indent: true,
        prefer_block_scalars: false,
    };
    let mut text = format!("# Written by `cargo xtask gen` from ipu-k8s/src/crd/{source}: edit that.\n");
    serde_saphyr::to_fmt_writer_with_options(&mut text, value, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}
