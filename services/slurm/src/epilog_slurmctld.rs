//! EpilogSlurmctld: waits until the nodes are done with a job, and releases its partition.
//!
//! Slurm starts it at once when a job is cancelled, while processes may still run. `NodeList` of
//! `squeue` becomes empty when all of them are gone. The licenses of the job come back when the
//! hook ends, so it ends after the release.

use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::Duration;

use ipu_proxy_client::HoldState;
use ipu_slurm::conf::ConfFiles;
use ipu_slurm::{EpilogRequest, HookEnvironment, RunKey, RunStart, SlurmJob, SlurmctldConfig};
use tokio::time::Instant;

use crate::conf_facts::ConfFacts;
use crate::conf_files::{self, ipuof_directories};
use crate::failure::Failure;
use crate::host_map::{self, Allocations};
use crate::proxy::{is_not_found, release_options};
use crate::run_file::{self, RunFile};
use crate::slurm_commands::{Slurm, SlurmError};

/// Maximum wait for the nodes. The agent releases the partition if they need longer.
const NODES_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum wait for the release. The proxy completes it in any case.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(50);
/// First pause between two checks of the job; each pause is twice the previous one, up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause between two checks of the job.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Releases the partition of the job, if it has IPUs.
pub(crate) fn run(variables: &HookEnvironment) -> Result<(), Failure> {
    // Before any other work: the parent may end, and a later slurmctld may start.
    let (parent, started) = (parent_id(), ipu_proxy_client::now().as_millis() / 1000);
    let directory = conf_files::directory();
    let loaded = conf_files::load_for_job(&directory, &conf_files::license_names());
    if loaded.is_err() && !ConfFacts::gather(&directory).may_request_ipus(variables) {
        return Ok(());
    }
    let mut request = EpilogRequest::parse(variables, loaded.as_ref().ok())?;
    if let (None, Ok(conf)) = (&request, &loaded) {
        request = host_map::epilog_request(variables, conf)?;
    }
    let Some(request) = request else {
        return Ok(());
    };
    let conf = loaded?;
    let slurm = Slurm::find(&directory);
    crate::block_on(async {
        // Before the job: what the answers below say is about one slurmctld.
        let hook = HookStart {
            parent,
            started,
            slurmctld: SlurmctldConfig::parse(&slurm.config().await?)?,
        };
        let job = slurm.job(request.identity.job_id).await?;
        let job =
            job.ok_or_else(|| Failure("slurmctld does not know the job; the agent releases it".into()))?;
        let key = request.identity.run_key(Some(&job.submit_time))?;
        wait_for_nodes(&slurm, &job).await?;
        let name = request.identity.env_file_name();
        let found = file_of(&conf, &name, &key)?;
        let file = found.as_ref().map(|(_, file)| file);
        let granted = file.and_then(RunFile::active);
        let start = match granted {
            Some(grant) => grant.start.clone(),
            None => RunStart::choose(&key, file.and_then(|file| file.used(&key))),
        };
        let is_unused = file.is_some_and(|file| file.proves_unused(&start));
        let proxy = crate::proxy::connect(&conf)?;
        let cluster = request.identity.cluster.as_str();
        let id = start.owner(cluster)?.job.partition_id(0);
        let held = match proxy.partition(&id).await {
            Ok(held) => Some(held),
            Err(error) if is_not_found(&error) => None,
            Err(error) => return Err(error.into()),
        };
        // After all facts. A hook that takes over the partition later has another attempt.
        hook.ensure_slurmctld(&slurm).await?;
        match (&held, granted) {
            // A proxy that has lost its ledger finds the partition once the controller answers: the file then
            // names its owner to the agent.
            (None, Some(_)) => return Ok(()),
            (None, None) => {}
            // Processes of a start that slurmctld has forgotten may use it. The agent knows when they are
            // gone.
            (Some(held), None) if held.state != HoldState::Waiting && !is_unused => return Ok(()),
            (Some(held), _) => {
                let options = release_options(&conf, &start, Some(held));
                proxy
                    .wait_released(&id, &options, RELEASE_TIMEOUT, &mut |_| ())
                    .await?;
            }
        }
        // After the release: a directory that cannot be written keeps no IPUs. The agent tries again.
        let mut result = Ok(());
        if let Some((directory, file)) = &found {
            let ended = run_file::end(directory, &name, file);
            let is_own = matches!(ended, Ok(true));
            result = ended
                .map(drop)
                .map_err(|error| Failure(format!("cannot remove {}/{name}: {error}", directory.display())));
            if granted.is_none() && is_own {
                // A hook that was killed may have left the configuration.
                result = result.and(run_file::remove_start(directory, &name, &start, &id));
            }
        }
        // The line of the failed hook names partitions that are left; the agent repeats the removal.
        if let Some(allocations) = Allocations::of(&conf)? {
            let removed = allocations.remove(&proxy, cluster, &start).await;
            result = result.and(removed.map(drop));
        }
        result
    })
}

/// The start of this hook.
struct HookStart {
    /// The parent process.
    parent: u32,
    /// Seconds since 1970.
    started: u64,
    /// The slurmctld that answered first.
    slurmctld: SlurmctldConfig,
}

impl HookStart {
    /// Returns whether `slurmctld` started this hook. A later one, and a backup that has taken over, may have
    /// forgotten processes of the run.
    fn is_of(&self, slurmctld: &SlurmctldConfig, parent: u32) -> bool {
        slurmctld.is_same_slurmctld(&self.slurmctld)
            && slurmctld.started <= self.started
            && parent == self.parent
    }

    /// Checks that the slurmctld that answers started this hook.
    async fn ensure_slurmctld(&self, slurm: &Slurm) -> Result<(), Failure> {
        let config = SlurmctldConfig::parse(&slurm.config().await?)?;
        if self.is_of(&config, parent_id()) {
            return Ok(());
        }
        Err(Failure(
            "another slurmctld than that of the hook answers, or a clock was set; the agent releases the \
             partition"
                .into(),
        ))
    }
}

/// Returns the file of a run, or the marker of a hook that handed no partition to tasks, with its directory.
fn file_of(conf: &ConfFiles, name: &str, key: &RunKey) -> Result<Option<(PathBuf, RunFile)>, Failure> {
    for directory in ipuof_directories(conf) {
        let path = directory.join(name);
        let file = RunFile::read(&path).map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        let is_own = |file: &RunFile| file.active().is_none_or(|grant| grant.start.key == *key);
        if let Some(file) = file.filter(is_own) {
            return Ok(Some((directory, file)));
        }
    }
    Ok(None)
}

/// Waits until no node of the run has processes of it.
async fn wait_for_nodes(slurm: &Slurm, first: &SlurmJob) -> Result<(), Failure> {
    let started = Instant::now();
    let mut pause = MIN_PAUSE;
    let mut job: Result<Option<SlurmJob>, SlurmError> = Ok(Some(first.clone()));
    loop {
        match &job {
            // The next run of the job id has begun.
            Ok(Some(job)) if job.submit_time != first.submit_time => return Ok(()),
            // A run whose epilog has begun has ended.
            Ok(Some(job)) if job.node_list.is_none() => return Ok(()),
            Ok(None) => return Ok(()),
            Ok(Some(_)) | Err(_) => {}
        }
        if started.elapsed() >= NODES_TIMEOUT {
            return Err(match job {
                Ok(_) => {
                    Failure("the nodes are not done with the job; the agent releases its partition".into())
                }
                Err(error) => error.into(),
            });
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(MAX_PAUSE);
        job = slurm.job(first.id).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_that_outlives_its_slurmctld_releases_nothing() {
        let slurmctld = |boot_time: u64, host: &str| {
            let config = format!(
                "BOOT_TIME = {boot_time}\nKillWait = 2 sec\nSlurmdTimeout = 20 sec\nUnkillableStepTimeout = 5 \
                 sec\n\nSlurmctld(primary) at {host} is UP\n"
            );
            SlurmctldConfig::parse(&config).unwrap()
        };
        for (first, last, parent, is_own) in [
            ((900, "a"), (900, "a"), 7, true),
            ((1_000, "a"), (1_000, "a"), 7, true),
            // slurmctld started after the hook.
            ((1_001, "a"), (1_001, "a"), 7, false),
            ((900, "a"), (900, "a"), 1, false),
            // A backup that has waited since before, or since the same second, has taken over.
            ((900, "a"), (800, "b"), 7, false),
            ((900, "a"), (900, "b"), 7, false),
        ] {
            let hook = HookStart {
                parent: 7,
                started: 1_000,
                slurmctld: slurmctld(first.0, first.1),
            };
            let last = slurmctld(last.0, last.1);
            assert_eq!(hook.is_of(&last, parent), is_own, "{first:?} {last:?} {parent}");
        }
    }
}
