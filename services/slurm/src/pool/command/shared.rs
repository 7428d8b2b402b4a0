//! The command `ipu-slurm pool create-shared` (option 3).

use ipu_core::render::IpuofEnv;
use ipu_core::{IpuCount, PartitionId};
use ipu_proxy_client::{OwnerDocument, PutPartition};

use super::{SHARED_NODE, make, only_model, owner, print};
use crate::conf_files;
use crate::failure::Failure;

/// Maximum number of IPUs of a reconfigurable partition.
const MAX_RECONFIGURABLE: u32 = 64;
/// The port that Poplar assumes.
const DEFAULT_PORT: u16 = 8090;

/// Creates the partition, and prints the TaskProlog with its variables.
pub(super) async fn create(name: &str, size: IpuCount, model: Option<&str>) -> Result<(), Failure> {
    if size.get() > MAX_RECONFIGURABLE {
        return Err(Failure(format!(
            "--size {size}: a reconfigurable partition has at most {MAX_RECONFIGURABLE} IPUs; use {MAX_RECONFIGURABLE}"
        )));
    }
    let id = PartitionId::new(name)?;
    let directory = conf_files::directory();
    let conf = conf_files::load(&directory, &[])?;
    let cluster = conf_files::cluster_name(&directory)
        .ok_or_else(|| Failure("slurm.conf has no ClusterName: add ClusterName=<name>".into()))?;
    let model = only_model(&conf, model)?;
    let owner = owner(&cluster, SHARED_NODE, name)?;
    let mut request = PutPartition::new(OwnerDocument::from(&owner), size.get());
    request.reconfigurable = true;
    request.controller = Some(model.api_address());
    make(&crate::proxy::connect(&conf)?, &id, &request).await?;
    let mut script = format!("#!/bin/sh\n# TaskProlog of Slurm: every job uses partition {id}.\n");
    for name in IpuofEnv::NAMES {
        script.push_str(&format!("echo unset {name}\n"));
    }
    script.push_str(&format!(
        "echo export IPUOF_VIPU_API_HOST={}\necho export IPUOF_VIPU_API_PARTITION_ID={id}\n",
        model.api_host()
    ));
    if model.api_port() != DEFAULT_PORT {
        script.push_str(&format!("echo export IPUOF_VIPU_API_PORT={}\n", model.api_port()));
    }
    print(&script)
}
