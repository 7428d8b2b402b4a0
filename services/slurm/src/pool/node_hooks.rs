//! Prolog and Epilog: root, on a node, without network of their own.
//!
//! Exit code 1 drains the node, so they fail only if the node cannot work with its files. A job that cannot
//! have its partition gets a reason, with which TaskProlog fails the job.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use ipu_core::IpuCount;
use ipu_slurm::conf::ClusterConf;
use ipu_slurm::{
    Counting, HookEnvironment, JobState, NodeHook, NodeRequest, PoolError, PoolRequest, SlurmJob,
};

use crate::conf_facts::ConfFacts;
use crate::conf_files;
use crate::failure::Failure;
use crate::pool_directory::{LockedPool, PointerVersion, PoolDirectory, PoolDirectoryError};
use crate::report;
use crate::slurm_commands::Slurm;

/// Allocates the partitions that Slurm gave to the job on this node.
pub(crate) fn prolog(variables: &HookEnvironment) -> Result<(), Failure> {
    let request = NodeRequest::parse(variables, NodeHook::Prolog)?;
    let conf_directory = conf_files::directory();
    let slurm = Slurm::find(&conf_directory);
    let job_id = request.job_id;
    let (conf, directory) = match pool_of_node(&conf_directory, &request.node) {
        Ok(Some(pool)) => pool,
        Ok(None) => return Ok(()),
        Err(failure) => return refuse_without_settings(&conf_directory, &slurm, &request, &failure),
    };
    let reason = match requested(&conf, &slurm, job_id) {
        Ok(None) => None,
        // With EveryJobHasOne, Prolog asks slurmctld for nothing.
        Ok(Some(wanted)) if conf.every_job_has_one() => allocate(&directory, &slurm, job_id, &wanted)?,
        Ok(Some(wanted)) => match crate::block_on(async { Ok(slurm.run_key(job_id).await?) }) {
            Ok(run) => {
                let directory = directory.clone().with_run(run.to_string());
                allocate(&directory, &slurm, job_id, &wanted)?
            }
            Err(failure) => Some(failure),
        },
        Err(failure) => Some(failure),
    };
    if let Some(failure) = &reason {
        report::failure("prolog", failure);
    }
    let reason = reason.as_ref().map(|failure| failure.0.as_str());
    Ok(directory
        .set_reason(job_id, reason)
        .map_err(|error| directory.error(error))?)
}

/// Frees the partitions of the job on this node. It runs also for jobs, and on nodes, without partitions.
pub(crate) fn epilog(variables: &HookEnvironment) -> Result<(), Failure> {
    let request = NodeRequest::parse(variables, NodeHook::Epilog)?;
    let directory = match pool_of_node(&conf_files::directory(), &request.node) {
        Ok(Some((_, directory))) => directory,
        Ok(None) => return Ok(()),
        Err(failure) => {
            report::failure("epilog", &failure);
            return Ok(());
        }
    };
    let job_id = request.job_id;
    match directory.lock() {
        Ok(mut pool) => {
            let steps = pool.state.release(job_id);
            pool.take(&steps).map_err(|error| directory.error(error))?;
        }
        // The Prolog of a job that finds no free partition frees those of jobs that have ended.
        Err(error) if !is_unfit(&error) => report::failure("epilog", &error.into()),
        Err(error) => return Err(error.into()),
    }
    Ok(directory
        .set_reason(job_id, None)
        .map_err(|error| directory.error(error))?)
}

/// Returns whether a node cannot work with its files. A lock that is held, and a directory that users can
/// change or another node has, fail the jobs with partitions only.
const fn is_unfit(error: &PoolDirectoryError) -> bool {
    matches!(error, PoolDirectoryError::Io { .. })
}

/// Leaves the error of the settings as reason of a job with static partitions. Others start.
fn refuse_without_settings(
    conf_directory: &Path,
    slurm: &Slurm,
    request: &NodeRequest,
    failure: &Failure,
) -> Result<(), Failure> {
    report::failure("prolog", failure);
    let any_count = ClusterConf::parse(conf_files::VIPU_CONF, "OnePartitionPerTask=1\n").ok();
    for root in ConfFacts::gather(conf_directory).pool_dirs(&request.node) {
        let directory = PoolDirectory::open(root, &request.node)?;
        let wanted = any_count
            .as_ref()
            .filter(|_| directory.exists())
            .map(|conf| requested(conf, slurm, request.job_id));
        if let Some(Ok(Some(_))) = wanted {
            directory
                .set_reason(request.job_id, Some(&failure.0))
                .map_err(|error| directory.error(error))?;
        }
    }
    Ok(())
}

/// Returns the settings and the directory of the node; none for a node without static partitions.
fn pool_of_node(conf_directory: &Path, node: &str) -> Result<Option<(ClusterConf, PoolDirectory)>, Failure> {
    let conf = match conf_files::load_cluster(conf_directory) {
        Ok(conf) => conf,
        Err(conf_files::LoadError::Absent(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let Some(root) = conf.pool_dir(node) else {
        return Ok(None);
    };
    let directory = PoolDirectory::open(root, node)?;
    Ok(directory.exists().then_some((conf, directory)))
}

/// Returns what Slurm gave to the job; none for a job without static partitions.
pub(super) fn requested(
    conf: &ClusterConf,
    slurm: &Slurm,
    job_id: u32,
) -> Result<Option<PoolRequest>, Failure> {
    if conf.every_job_has_one() {
        return Ok(Some(PoolRequest { size: None, count: 1 }));
    }
    let gres = crate::block_on(async { Ok(slurm.gres(job_id).await?) })?;
    let mut found: Option<PoolRequest> = None;
    for gres in gres.named("vipu") {
        // Another type is the model of a job of option 4.
        let size: Option<IpuCount> = gres.kind().and_then(|kind| kind.parse().ok());
        if size.is_none() || gres.count() == 0 || gres.counting() == Counting::NotConsumed {
            continue;
        }
        if found.is_some() {
            return Err(Failure(format!(
                "{gres}: the job has partitions of another size too; ask for one size"
            )));
        }
        if gres.count() > 1 && !conf.one_partition_per_task() {
            return Err(Failure(format!(
                "{gres}: a job has one partition on a node, and an exclusive job has all; ask for a count of 1 \
                 without --exclusive, or set OnePartitionPerTask=1 in vipu.conf"
            )));
        }
        let count = u32::try_from(gres.count()).unwrap_or(u32::MAX);
        found = Some(PoolRequest { size, count });
    }
    Ok(found)
}

/// Allocates partitions. Returns the reason that there are none.
fn allocate(
    directory: &PoolDirectory,
    slurm: &Slurm,
    job_id: u32,
    request: &PoolRequest,
) -> Result<Option<Failure>, Failure> {
    let lock = || match directory.lock() {
        Ok(pool) => Ok(Ok(pool)),
        Err(error) if !is_unfit(&error) => Ok(Err(error)),
        Err(error) => Err(error),
    };
    let mut pool = match lock()? {
        Ok(pool) => pool,
        Err(busy) => return Ok(Some(busy.into())),
    };
    if directory
        .has_earlier_run(job_id)
        .map_err(|error| directory.error(error))?
    {
        return Ok(Some(Failure(format!(
            "an earlier run of job {job_id} still has its partition on this node; submit the job again"
        ))));
    }
    let mut allocation = pool.state.allocate(job_id, request);
    if let Err(PoolError::TooFew { .. }) = allocation {
        // Slurm has counted them as free, so the Epilog of a job was lost.
        let jobs: Vec<u32> = pool.state.pointers.keys().copied().collect();
        let pointers = versions(directory, &jobs).map_err(|error| directory.error(error))?;
        // slurmctld may not answer for a minute, and other jobs of the node need the lock.
        drop(pool);
        let ended: BTreeMap<u32, PointerVersion> = pointers
            .into_iter()
            .filter(|(job_id, _)| has_ended(slurm, *job_id))
            .collect();
        pool = match lock()? {
            Ok(pool) => pool,
            Err(busy) => return Ok(Some(busy.into())),
        };
        release_ended(&mut pool, directory, &ended).map_err(|error| directory.error(error))?;
        allocation = pool.state.allocate(job_id, request);
    }
    match allocation {
        Ok(allocation) => {
            let taken = pool.take(&allocation.steps);
            taken.map_err(|error| directory.error(error))?;
            Ok(None)
        }
        Err(error) => Ok(Some(error.into())),
    }
}

/// Returns the versions of the pointers of jobs.
fn versions(directory: &PoolDirectory, jobs: &[u32]) -> io::Result<BTreeMap<u32, PointerVersion>> {
    let mut found = BTreeMap::new();
    for job_id in jobs {
        if let Some(version) = directory.pointer_version(*job_id)? {
            found.insert(*job_id, version);
        }
    }
    Ok(found)
}

/// Frees the partitions of jobs that have ended: slurmctld knows no process of them, and this node has none.
/// A pointer that has changed since slurmctld answered is of a later job with the id.
fn release_ended(
    pool: &mut LockedPool<'_>,
    directory: &PoolDirectory,
    ended: &BTreeMap<u32, PointerVersion>,
) -> io::Result<()> {
    for (job_id, version) in ended {
        if directory.pointer_version(*job_id)?.as_ref() == Some(version) && !has_steps(*job_id)? {
            let steps = pool.state.release(*job_id);
            pool.take(&steps)?;
        }
    }
    Ok(())
}

/// Returns whether slurmctld knows that a job has no node: it has ended, or is pending after a requeue. An
/// unknown answer is not an end.
fn has_ended(slurm: &Slurm, job_id: u32) -> bool {
    let has_no_node =
        |job: SlurmJob| job.state.is_finished() || job.state == JobState::Pending && job.node_list.is_none();
    let job = crate::block_on(async { Ok(slurm.job(job_id).await?) });
    job.is_ok_and(|job| job.is_none_or(has_no_node))
}

/// Returns whether this node has a step of a job: slurmstepd names itself `slurmstepd: [<job id>.<step>]`.
fn has_steps(job_id: u32) -> io::Result<bool> {
    let title = format!("slurmstepd: [{job_id}.");
    for entry in std::fs::read_dir("/proc")? {
        // A process may end meanwhile.
        let command_line = entry.map(|entry| std::fs::read(entry.path().join("cmdline")));
        if let Ok(Ok(command_line)) = command_line
            && command_line.starts_with(title.as_bytes())
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
