//! Host map (option 1 of Graphcore's Slurm guide): the IPUs of a job are those of its nodes, which are
//! therefore exclusive. A job that requests a license gets IPUs by the license.

use ipu_core::hardware::Topology;
use ipu_core::{AgentId, AllocationId, IpuCount};

use crate::conf::{ConfFiles, HostMap, ModelConf, expand_nodes};
use crate::error::InputError;
use crate::hooks::{EpilogRequest, HookEnvironment, JobIpus, PrologRequest};
use crate::text::{Holder, list_holders, one_line};

/// The variable with the nodes of a job.
const JOB_NODELIST_VAR: &str = "SLURM_JOB_NODELIST";
/// The variable of the tasks of a heterogeneous job.
const HET_SIZE: &str = "SLURM_HET_SIZE";
/// The model that `vipu.conf` describes.
const DEFAULT_MODEL: &str = "vipu";
/// Maximum number of machines or partitions that a sentence names.
const MAX_NAMES: usize = 8;

/// The request of PrologSlurmctld for a job on hosts with IPU-Machines.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostMapRequest {
    /// The job. Its IPUs are the largest partition that its machines may form.
    pub job: PrologRequest,
    /// The machines of its hosts, in the order of the node list; never empty.
    pub machines: Vec<AgentId>,
}

impl HostMapRequest {
    /// Parses the variables of PrologSlurmctld; none for a job without machines, and for a later component of
    /// a heterogeneous job, whose tasks have the variables of the first one.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, or wrong. `HostMap`, if `conf` has several controllers.
    ///
    /// ```
    /// use ipu_slurm::conf::{ConfFiles, HostMap};
    /// use ipu_slurm::{HookEnvironment, HostMapRequest};
    ///
    /// let map = HostMap::parse("ipum.allocs", "n1:ipum1,ipum2,ipum3\nn2:ipum4\n")?;
    /// let conf = ConfFiles::parse(("vipu.conf", "ApiHost=pod\nIpuofDir=/home/ipuof\n"), &[])?;
    /// let variables = [
    ///     ("SLURM_CLUSTER_NAME", "testbed"), ("SLURM_JOB_ID", "7"), ("SLURM_JOB_UID", "1000"),
    ///     ("SLURM_JOB_USER", "ada"), ("SLURM_JOB_PARTITION", "ipu"), ("SLURM_JOB_NODELIST", "n1"),
    /// ];
    /// let variables = HookEnvironment::new(variables.map(|(name, value)| (name.into(), value.into())));
    /// let request = HostMapRequest::parse(&variables, &conf, &map)?.expect("n1 has machines");
    /// // Three machines have 12 IPUs, and the largest power of two among them is 8.
    /// assert_eq!((request.machines.len(), request.job.ipus.ipus.get()), (3, 8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(
        variables: &HookEnvironment,
        conf: &ConfFiles,
        map: &HostMap,
    ) -> Result<Option<Self>, InputError> {
        let machines = machines_of(variables, map)?;
        if machines.is_empty() || variables.is_later_component()? {
            return Ok(None);
        }
        let (name, model) = sole_vipu_controller(conf)?;
        let ipus = JobIpus {
            model: name.to_owned(),
            ipus: largest_partition(machines.len(), model),
            gcds: 1,
            reconfigurable: false,
        };
        let job = PrologRequest::with_ipus(variables, ipus)?;
        Ok(Some(Self { job, machines }))
    }
}

/// Returns the nodes of a job.
///
/// # Errors
///
/// If the variable is missing, not UTF-8, or no host list.
pub fn nodes_of(variables: &HookEnvironment) -> Result<Vec<String>, InputError> {
    expand_nodes(JOB_NODELIST_VAR, variables.required(JOB_NODELIST_VAR)?)
}

/// Returns the machines of the nodes of a job.
///
/// # Errors
///
/// As [`nodes_of`].
pub fn machines_of(variables: &HookEnvironment, map: &HostMap) -> Result<Vec<AgentId>, InputError> {
    let nodes = nodes_of(variables)?;
    let machines = nodes.iter().filter_map(|node| map.machines(node)).flatten();
    Ok(machines.cloned().collect())
}

/// Returns whether a task runs in a job on hosts with machines. Tasks of heterogeneous jobs have the nodes of
/// their component, and the variables of the first one: nothing is known about them.
///
/// # Errors
///
/// As [`nodes_of`].
pub fn task_has_machines(variables: &HookEnvironment, map: &HostMap) -> Result<bool, InputError> {
    if variables.text(HET_SIZE)?.is_some() {
        return Ok(false);
    }
    Ok(!machines_of(variables, map)?.is_empty())
}

/// Returns whether a host map, valid or not, seems to have one of these nodes.
#[must_use]
pub fn may_name_node(map: &str, nodes: &[String]) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    // An error may hide the names, as in `host-[1-4]:ipum1`: such a map may be about any node.
    if map.contains('[') {
        return !nodes.is_empty();
    }
    let mut words = map.split(|c| !is_name(c));
    words.any(|word| nodes.iter().any(|node| node == word))
}

/// Parses the job of EpilogSlurmctld, whatever its nodes have; none for a later component of a heterogeneous
/// job.
///
/// # Errors
///
/// The first variable that is missing, not UTF-8, or no number.
pub fn epilog_request(variables: &HookEnvironment) -> Result<Option<EpilogRequest>, InputError> {
    if variables.is_later_component()? {
        return Ok(None);
    }
    let identity = variables.identity(true)?;
    Ok(Some(EpilogRequest { identity }))
}

/// Returns the allocation of a job: `c<job id>`, in which scripts of Graphcore create partitions.
///
/// # Errors
///
/// Never: the id consists of a letter and digits.
pub fn allocation_id(job_id: u32) -> Result<AllocationId, ipu_core::NameError> {
    AllocationId::requested(format!("c{job_id}"))
}

/// Returns the only controller of a configuration, with the name of its model. Models that are links to one
/// file have one controller.
///
/// # Errors
///
/// If there is none, or there are several.
///
/// ```
/// use ipu_slurm::conf::ConfFiles;
/// use ipu_slurm::host_map::sole_vipu_controller;
///
/// let vipu_conf = ("vipu.conf", "HostMap=/etc/slurm/ipum.allocs\nApiHost=pod\nIpuofDir=/home/ipuof\n");
/// let conf = ConfFiles::parse(vipu_conf, &[("pod64", vipu_conf.1)])?;
/// assert_eq!(sole_vipu_controller(&conf)?.0, "pod64");
///
/// let conf = ConfFiles::parse(vipu_conf, &[("pod16", "ApiHost=other\nIpuofDir=/home/ipuof\n")])?;
/// assert_eq!(
///     sole_vipu_controller(&conf).unwrap_err().to_string(),
///     "HostMap = /etc/slurm/ipum.allocs: works with one V-IPU controller, and pod16 and vipu have two; \
///      describe one controller in the directory of slurm.conf",
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn sole_vipu_controller(conf: &ConfFiles) -> Result<(&str, &ModelConf), InputError> {
    let mut models: Vec<(&str, &ModelConf)> = conf.models().collect();
    // The name that jobs use for licenses comes first.
    models.sort_by_key(|(name, _)| (*name == DEFAULT_MODEL, *name));
    let file = conf.cluster().host_map();
    let Some((name, model)) = models.first().copied() else {
        let rule = "needs a model with the V-IPU controller of the machines";
        return Err(InputError::new("HostMap", file, rule, "add ApiHost to vipu.conf"));
    };
    let other = models
        .iter()
        .find(|(_, other)| other.api_address() != model.api_address());
    if let Some((second, _)) = other {
        let rule = format!("works with one V-IPU controller, and {name} and {second} have two");
        let fix = "describe one controller in the directory of slurm.conf";
        return Err(InputError::new("HostMap", file, rule, fix));
    }
    Ok((name, model))
}

/// Returns the largest partition that so many machines may form. It may not fit on them all the same.
#[must_use]
pub fn largest_partition(machines: usize, model: &ModelConf) -> IpuCount {
    let machines = u32::try_from(machines).unwrap_or(u32::MAX);
    let ipus = machines.saturating_mul(Topology::MACHINE_IPUS);
    let mut limit = ipus.min(model.max_ipus_per_job()).min(IpuCount::MAX.get());
    if model.use_reconfig_partition() {
        limit = limit.min(IpuCount::LINK_DOMAIN.get());
    }
    let size = limit.checked_ilog2().map_or(1, |order| 1_u32 << order);
    IpuCount::try_from(size).unwrap_or(IpuCount::ONE)
}

/// Returns the sentence about a job whose machines others have.
#[must_use]
pub fn waits_for_machines(ipus: u32, model: &str, problem: &str, holders: &[Holder]) -> String {
    let mut text = format!("waits for {ipus} IPUs of {model}: {problem}");
    if !holders.is_empty() {
        text.push_str("; held by ");
        text.push_str(&list_holders(holders));
    }
    one_line(&text)
}

/// Returns the sentence about a job whose machines, or whose allocation, an earlier job still has.
#[must_use]
pub fn waits_for_allocation(machines: &[AgentId], allocation: &AllocationId, job: &str) -> String {
    one_line(&format!(
        "waits for {}: the allocation {allocation} of job {job} still has them",
        list(machines.iter().map(AgentId::as_str)),
    ))
}

/// Returns the sentence about a command that created no allocation.
#[must_use]
pub fn allocation_failed(allocation: &AllocationId, problem: &str) -> String {
    one_line(&format!(
        "AllocationCreate did not create {allocation}: {problem}"
    ))
}

/// Returns the sentence about an allocation of another owner that has the id of the job's.
#[must_use]
pub fn allocation_exists(allocation: &AllocationId) -> String {
    one_line(&format!(
        "the allocation {allocation} exists, and ipu-slurm did not create it for this job; remove it if no job uses it"
    ))
}

/// Returns the sentence about partitions of the user that an allocation still has after the job.
#[must_use]
pub fn user_partitions_kept(allocation: &AllocationId, partitions: &[String]) -> String {
    one_line(&format!(
        "the allocation {allocation} stays, because it has partitions of the user: {}; remove them, or set \
         ForceDeletePartition=1",
        list(partitions.iter().map(String::as_str)),
    ))
}

fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let count = names.len();
    let mut text = names.take(MAX_NAMES).collect::<Vec<_>>().join(", ");
    if let Some(more) = count.checked_sub(MAX_NAMES).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
