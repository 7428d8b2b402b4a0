//! TaskProlog of a task on a node with static partitions.

use std::collections::BTreeMap;

use ipu_core::PartitionId;
use ipu_slurm::conf::ConfFiles;
use ipu_slurm::{HookEnvironment, NodeTaskRequest, PoolFile};

use super::node_hooks::requested;
use crate::failure::Failure;
use crate::pool_directory::PoolDirectory;
use crate::slurm_commands::Slurm;

/// Returns the variables of the task's static partition; none for a task without one. slurmctld decides
/// about a job that Prolog left without partition: its environment may be that of the job which submitted
/// it, and Prolog may not have reached slurmctld.
pub(crate) fn ipuof_variables(
    environment: &HookEnvironment,
    conf: &ConfFiles,
    slurm: impl FnOnce() -> Slurm,
) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let cluster = conf.cluster();
    if cluster.pool_dir("").is_none() {
        return Ok(None);
    }
    let task = NodeTaskRequest::parse(environment)?;
    let Some(root) = cluster.pool_dir(&task.node) else {
        return Ok(None);
    };
    let directory = PoolDirectory::open(root, &task.node)?;
    let may_have_partitions = || !matches!(requested(cluster, &slurm(), task.job_id), Ok(None));
    if let Some(reason) = directory.reason(task.job_id)? {
        return if may_have_partitions() {
            Err(Failure(reason))
        } else {
            Ok(None)
        };
    }
    let pointer = directory.pointer(task.job_id)?;
    let wants = task.requests_partitions || (cluster.every_job_has_one() && directory.exists());
    if directory.exists() && (wants || pointer.is_some()) {
        // A user could have written the pointer, or another node.
        directory.check_access()?;
        directory.check_owner()?;
    }
    let Some(partitions) = pointer else {
        return if wants && may_have_partitions() {
            Err(Failure(format!(
                "the job asked for a static partition, and Prolog has allocated none in {}; check that Prolog is \
                 set in slurm.conf",
                directory.root().display()
            )))
        } else {
            Ok(None)
        };
    };
    let index = if partitions.len() == 1 { 0 } else { task.local_task };
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let Some(partition) = partitions.get(index) else {
        return Err(Failure(format!(
            "task {index} of this node has no partition: the job has {} here; ask for as many partitions as tasks",
            partitions.len()
        )));
    };
    let file = directory
        .allocated_file(partition)
        .map_err(|error| Failure(format!("cannot read the file of partition {partition}: {error}")))?;
    variables_of_file(file, partition, conf).map(Some)
}

/// Returns the variables of a file. One of Graphcore's scripts has none: they then follow from the only
/// model.
fn variables_of_file(
    file: PoolFile,
    partition: &str,
    conf: &ConfFiles,
) -> Result<BTreeMap<String, String>, Failure> {
    if !file.variables.is_empty() {
        return Ok(file.variables);
    }
    let partition = PartitionId::new(partition).map_err(|error| {
        Failure(format!(
            "{partition} is not a partition name: a name must have {}",
            error.rule
        ))
    })?;
    let mut models: Vec<(&str, u16)> = conf
        .models()
        .map(|(_, model)| (model.api_host(), model.api_port()))
        .collect();
    models.dedup();
    let [(host, port)] = models[..] else {
        return Err(Failure(format!(
            "the file of partition {partition} has no variables, and vipu.conf has not one controller; run \
             ipu-slurm pool create"
        )));
    };
    let variables = [
        ("IPUOF_VIPU_API_HOST", host.to_owned()),
        ("IPUOF_VIPU_API_PARTITION_ID", partition.to_string()),
        ("IPUOF_VIPU_API_PORT", port.to_string()),
    ];
    Ok(variables.map(|(name, value)| (name.to_owned(), value)).into())
}

#[cfg(test)]
mod tests;
