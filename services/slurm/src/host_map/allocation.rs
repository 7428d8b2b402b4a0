//! The allocation `c<job id>` of a job, which AllocationCreate makes of the machines of its hosts.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ipu_core::{AgentId, AllocationId, ControllerName};
use ipu_proxy_client::ProxyClient;
use ipu_slurm::RunStart;
use ipu_slurm::conf::{AllocationCommands, ConfFiles};
use ipu_slurm::host_map::{
    allocation_exists, allocation_failed, allocation_id, sole_vipu_controller, user_partitions_kept,
    waits_for_allocation,
};
use tokio::time::Instant;

use super::command::{self, CommandError};
use super::record::{AllocationRecord, LockedRecord, Progress, record_name, records};
use crate::failure::Failure;

/// Maximum wait until the controller has removed the partitions of the user.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two checks of these partitions.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The allocations of a configuration.
pub(crate) struct Allocations<'a> {
    commands: &'a AllocationCommands,
    controller: ControllerName,
    directory: PathBuf,
    /// `ForceDeletePartition`.
    may_force: bool,
    timeout: Duration,
}

impl<'a> Allocations<'a> {
    /// Returns the allocations; none without host map, or without commands.
    ///
    /// # Errors
    ///
    /// If the configuration has several controllers.
    pub(crate) fn of(conf: &'a ConfFiles) -> Result<Option<Self>, Failure> {
        let cluster = conf.cluster();
        let (Some(_), Some(commands)) = (cluster.host_map(), cluster.allocation_commands()) else {
            return Ok(None);
        };
        let (_, model) = sole_vipu_controller(conf)?;
        Ok(Some(Self {
            commands,
            controller: ControllerName::new(model.api_address())?,
            directory: PathBuf::from(model.ipuof_dir()),
            may_force: model.force_delete_partition(),
            timeout: model.api_timeout(),
        }))
    }

    /// Returns the directory of the records.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates the allocation of a run, unless it exists. The error is a sentence about the obstacle, which
    /// may pass.
    pub(crate) async fn create(
        &self,
        proxy: &ProxyClient,
        cluster: &str,
        start: &RunStart,
        machines: &[AgentId],
    ) -> Result<AllocationId, Failure> {
        let allocation = allocation_id(start.key.job_id)?;
        let name = record_name(cluster, start.key.job_id);
        for found in records(&self.directory)? {
            let other = found.record;
            if other.start != *start && machines.iter().any(|machine| other.machines.contains(machine)) {
                let theirs = allocation_id(other.start.key.job_id)?;
                let job = other.start.key.job_id.to_string();
                return Err(Failure(waits_for_allocation(machines, &theirs, &job)));
            }
        }
        let record = AllocationRecord {
            start: start.clone(),
            machines: machines.to_vec(),
            progress: Progress::Planned,
        };
        // If the record is locked, another hook of the same run is working.
        let Some(mut locked) = LockedRecord::create(&self.directory, &name, &record)? else {
            let job = format!("{} of an earlier run", start.key.job_id);
            return Err(Failure(waits_for_allocation(machines, &allocation, &job)));
        };
        match locked.record.progress {
            Progress::Created => return Ok(allocation),
            Progress::Requested => {
                // It may exist, and has no partition then.
                let remove = self.commands.remove.argv(&allocation, machines);
                let _ = command::run(&remove, self.timeout).await;
            }
            Progress::Planned => {
                // An existing allocation is that of another cluster, or of an administrator.
                if self.exists(proxy, &allocation).await? {
                    locked.remove()?;
                    return Err(Failure(allocation_exists(&allocation)));
                }
                locked.set_requested()?;
            }
        }
        let create = self.commands.create.argv(&allocation, machines);
        let problem = match command::run(&create, self.timeout).await {
            Ok(()) => {
                locked.set_created()?;
                return Ok(allocation);
            }
            Err(problem) => problem,
        };
        // The reply of the controller may have been lost. Otherwise the end of the run removes the
        // allocation.
        match self.exists(proxy, &allocation).await {
            Ok(true) => {
                locked.set_created()?;
                return Ok(allocation);
            }
            Ok(false) if matches!(problem, CommandError::Failed(_)) => locked.remove()?,
            Ok(false) | Err(_) => {}
        }
        Err(Failure(allocation_failed(&allocation, &problem.to_string())))
    }

    /// Returns whether the controller has an allocation.
    async fn exists(&self, proxy: &ProxyClient, allocation: &AllocationId) -> Result<bool, Failure> {
        match proxy.unrecorded_partitions(&self.controller, allocation).await {
            Ok(_) => Ok(true),
            Err(error) if is_refused(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the allocation of a run that has ended and has no partition in the ledger. Returns whether it
    /// had one.
    ///
    /// # Errors
    ///
    /// If it has partitions of the user and the controller must not be forced, or cannot be removed. The
    /// record stays, and the agent repeats the removal.
    pub(crate) async fn remove(
        &self,
        proxy: &ProxyClient,
        cluster: &str,
        start: &RunStart,
    ) -> Result<bool, Failure> {
        let name = record_name(cluster, start.key.job_id);
        // Without the lock, another process removes it.
        let Some(locked) =
            LockedRecord::open(&self.directory, &name)?.filter(|locked| locked.record.start == *start)
        else {
            return Ok(false);
        };
        let allocation = allocation_id(start.key.job_id)?;
        if locked.record.progress == Progress::Planned {
            locked.remove()?;
            return Ok(true);
        }
        self.remove_user_partitions(proxy, &allocation).await?;
        let remove = self.commands.remove.argv(&allocation, &locked.record.machines);
        match command::run(&remove, self.timeout).await {
            Ok(()) => {}
            // AllocationCreate may not have created it.
            Err(_)
                if locked.record.progress == Progress::Requested
                    && !self.exists(proxy, &allocation).await? => {}
            Err(error) => return Err(Failure(format!("AllocationRemove of {allocation}: {error}"))),
        }
        locked.remove()?;
        Ok(true)
    }

    /// Removes the partitions that the user made in the allocation, or names them.
    async fn remove_user_partitions(
        &self,
        proxy: &ProxyClient,
        allocation: &AllocationId,
    ) -> Result<(), Failure> {
        let started = Instant::now();
        loop {
            let listed = match proxy.unrecorded_partitions(&self.controller, allocation).await {
                Ok(listed) => listed,
                // The controller has no such allocation, which AllocationRemove reports.
                Err(error) if is_refused(&error) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if listed.partitions.is_empty() {
                return Ok(());
            }
            if !self.may_force || started.elapsed() >= REMOVAL_TIMEOUT {
                let shown = listed.partitions.iter();
                let shown: Vec<String> = shown.map(|one| format!("{} ({})", one.id, one.size)).collect();
                return Err(Failure(user_partitions_kept(allocation, &shown)));
            }
            proxy
                .remove_unrecorded_partitions(&self.controller, allocation)
                .await?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

fn is_refused(error: &ipu_proxy_client::ClientError) -> bool {
    error
        .problem()
        .is_some_and(|problem| problem.code == "ControllerRefused")
}

#[cfg(test)]
mod tests;
