//! Host map (option 1 of Graphcore's Slurm guide): a job has the IPU-Machines of its hosts.

mod allocation;
mod command;
mod record;

use std::fs;
use std::io;
use std::path::Path;

use ipu_slurm::conf::{ConfFiles, HostMap};
use ipu_slurm::host_map::{machines_of, may_name_node, nodes_of, task_has_machines};
use ipu_slurm::{EpilogRequest, HookEnvironment};

use crate::conf_files::{first_of, ipuof_directories};
use crate::failure::Failure;
use crate::safe_file;

pub(crate) use self::allocation::Allocations;
pub(crate) use self::record::{FoundRecord, record_name, records};

/// Returns the host map; none without `HostMap`, and if a map with errors seems to have no node of the job.
///
/// # Errors
///
/// If the map cannot be read, or has an error and may have a node of the job.
pub(crate) fn load_for(variables: &HookEnvironment, conf: &ConfFiles) -> Result<Option<HostMap>, Failure> {
    let Some(path) = conf.cluster().host_map() else {
        return Ok(None);
    };
    let text = safe_file::read_text(Path::new(path))
        .map_err(|error| Failure(format!("cannot read HostMap {path}: {error}")))?;
    match HostMap::parse(path, &text) {
        Ok(map) => Ok(Some(map)),
        // A job on other hosts starts, whatever the map is like.
        Err(_) if !may_name_node(&text, &nodes_of(variables)?) => Ok(None),
        Err(mistakes) => Err(Failure(first_of(&mistakes))),
    }
}

/// Returns the job of EpilogSlurmctld, if PrologSlurmctld may have given it machines; always none without
/// `HostMap`. The map may have changed since the start of the job, so the files of the job count too.
pub(crate) fn epilog_request(
    variables: &HookEnvironment,
    conf: &ConfFiles,
) -> Result<Option<EpilogRequest>, Failure> {
    if conf.cluster().host_map().is_none() {
        return Ok(None);
    }
    let Some(request) = ipu_slurm::host_map::epilog_request(variables)? else {
        return Ok(None);
    };
    let name = request.identity.env_file_name();
    let has_file = ipuof_directories(conf)
        .iter()
        .any(|directory| directory.join(&name).exists());
    let may_have_machines = || match load_for(variables, conf) {
        Ok(Some(map)) => machines_of(variables, &map).map_or(true, |machines| !machines.is_empty()),
        Ok(None) => false,
        Err(_) => true,
    };
    Ok((has_file || may_have_machines()).then_some(request))
}

/// Returns whether a task runs in a job on hosts with machines, so that it must not start without them. A
/// node without a copy of the map makes no statement.
///
/// # Errors
///
/// If the map cannot be read, or has an error and may have a node of the job.
pub(crate) fn has_machines(variables: &HookEnvironment, conf: &ConfFiles) -> Result<bool, Failure> {
    let Some(path) = conf.cluster().host_map() else {
        return Ok(false);
    };
    if let Err(error) = fs::metadata(Path::new(path))
        && error.kind() == io::ErrorKind::NotFound
    {
        return Ok(false);
    }
    match load_for(variables, conf)? {
        Some(map) => Ok(task_has_machines(variables, &map)?),
        None => Ok(false),
    }
}
