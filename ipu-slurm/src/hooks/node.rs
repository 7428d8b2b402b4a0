//! The environments of Prolog and Epilog, and of a task on a node with static partitions.

use super::environment::{BY_SLURM, HookEnvironment};
use crate::error::InputError;
use crate::pool::is_file_name;

/// A hook that slurmd runs as root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeHook {
    /// Before the first step of a job on the node.
    Prolog,
    /// After a job. It also runs on nodes where Prolog has not run.
    Epilog,
}

/// The job of Prolog or Epilog on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeRequest {
    /// `SLURM_JOB_ID`.
    pub job_id: u32,
    /// `SLURMD_NODENAME`.
    pub node: String,
}

/// A task on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeTaskRequest {
    /// `SLURM_JOB_ID`.
    pub job_id: u32,
    /// `SLURMD_NODENAME`.
    pub node: String,
    /// `SLURM_LOCALID`: the number of the task on the node, from 0. On one node it equals `SLURM_PROCID`.
    pub local_task: u32,
    /// Whether the job asked for static partitions, by the variable `VIPU_PARTITIONS` of `ipu_slurm.lua`.
    /// Only a batch job has it.
    pub requests_partitions: bool,
}

impl NodeRequest {
    /// Parses the variables of Prolog or Epilog.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, or has a wrong value.
    ///
    /// ```
    /// use ipu_slurm::conf::ClusterConf;
    /// use ipu_slurm::{HookEnvironment, NodeHook, NodeRequest};
    ///
    /// let variables = [
    ///     ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"), ("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "host-1"),
    /// ];
    /// let variables = HookEnvironment::new(variables.map(|(name, value)| (name.into(), value.into())));
    /// let request = NodeRequest::parse(&variables, NodeHook::Prolog)?;
    /// let conf = ClusterConf::parse("vipu.conf", "PoolDir=/var/lib/ipu-pool/%n\n")?;
    /// assert_eq!(conf.pool_dir(&request.node).as_deref(), Some("/var/lib/ipu-pool/host-1"));
    ///
    /// assert_eq!(
    ///     NodeRequest::parse(&variables, NodeHook::Epilog).unwrap_err().to_string(),
    ///     "SLURM_SCRIPT_CONTEXT = prolog_slurmd: must be epilog_slurmd; \
    ///      set the program as Epilog in slurm.conf, and do not start it by hand",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(variables: &HookEnvironment, hook: NodeHook) -> Result<Self, InputError> {
        match hook {
            NodeHook::Prolog => variables.check_context("prolog_slurmd", "Prolog")?,
            NodeHook::Epilog => variables.check_context("epilog_slurmd", "Epilog")?,
        }
        Ok(Self {
            job_id: variables.number("SLURM_JOB_ID")?,
            node: node_name(variables)?,
        })
    }
}

impl NodeTaskRequest {
    /// Parses the variables of TaskProlog.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, or has a wrong value.
    pub fn parse(variables: &HookEnvironment) -> Result<Self, InputError> {
        variables.check_context("prolog_task", "TaskProlog")?;
        Ok(Self {
            job_id: variables.number("SLURM_JOB_ID")?,
            node: node_name(variables)?,
            local_task: variables.number("SLURM_LOCALID")?,
            requests_partitions: variables.text("VIPU_PARTITIONS")?.is_some(),
        })
    }
}

/// Returns the name of the node, which may be part of a path.
fn node_name(variables: &HookEnvironment) -> Result<String, InputError> {
    let name = variables.required("SLURMD_NODENAME")?;
    if is_file_name(name) {
        return Ok(name.to_owned());
    }
    let rule = "must be the name of a node";
    Err(InputError::new("SLURMD_NODENAME", Some(name), rule, BY_SLURM))
}
