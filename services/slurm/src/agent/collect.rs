//! The release of partitions of runs that have ended.

pub(super) mod allocations;
mod files;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ipu_core::{PartitionId, ReasonCode};
use ipu_proxy_client::{ClientError, HoldState, PartitionDocument};
use ipu_slurm::{Hold, Life, LifeFacts, RunList, RunStart, SlurmctldConfig, SlurmctldWatch, life_of};

use super::context::{Context, now};
use crate::conf_files::ipuof_directories;
use crate::failure::Failure;
use crate::leftovers;
use crate::proxy::{is_old_attempt, release_options};
use crate::report;
use crate::run_file::{self, RunFile};

/// A file of a run in IpuofDir.
pub(super) struct FoundFile {
    pub(super) directory: PathBuf,
    pub(super) name: String,
    pub(super) job_id: u32,
    pub(super) file: RunFile,
}

impl FoundFile {
    /// Returns the start whose partition a hook handed to tasks last.
    fn start(&self) -> Option<&RunStart> {
        self.file.grant.as_ref().map(|grant| &grant.start)
    }
}

/// The answers of slurmctld.
pub(super) struct SlurmFacts<'a> {
    runs: RunList,
    /// All starts in the ledger and in IpuofDir.
    starts: Vec<RunStart>,
    watch: &'a SlurmctldWatch,
    has_settled: bool,
}

impl<'a> SlurmFacts<'a> {
    /// Asks slurmctld. `starts` are those in the ledger and in IpuofDir.
    pub(super) async fn load(
        context: &Context,
        starts: Vec<RunStart>,
        watch: &'a mut SlurmctldWatch,
    ) -> Result<Self, Failure> {
        let runs = context.slurm.runs().await?;
        // After the list: a slurmctld that got control in between counts.
        let config = SlurmctldConfig::parse(&context.slurm.config().await?)?;
        let answered = Instant::now();
        if !watch.knows(&config, answered) {
            if !watch.is_empty() {
                report::note(
                    "another slurmctld has control, or had it meanwhile: this one knows all processes once it has \
                     settled",
                );
            }
            // The list of this pass may lack a hold of the slurmctld before.
            let partitions = context.proxy.partitions().await?;
            let held = partitions
                .iter()
                .filter_map(|partition| context.hold_of(partition));
            let in_files = starts.iter().cloned().map(|start| Hold { start, since: None });
            let in_files = in_files.filter(|hold| !held.clone().any(|held| held.start == hold.start));
            watch.take_over(&config, held.clone().chain(in_files), answered, now());
        }
        Ok(Self {
            runs,
            starts,
            has_settled: watch.has_settled(&config, answered),
            watch,
        })
    }

    /// Returns whether the processes of a start are gone. `is_held` says that the ledger has its hold.
    pub(super) fn is_dead(&self, start: &RunStart, is_held: bool) -> bool {
        self.life(start, is_held) == Life::Dead
    }

    /// Returns whether the run that a job id has now may have a hook at work.
    pub(super) fn may_have_hook(&self, job_id: u32) -> bool {
        self.runs.may_have_nodes(job_id)
    }

    fn life(&self, start: &RunStart, is_held: bool) -> Life {
        life_of(&LifeFacts {
            answer: start.listed_in(&self.runs, &self.starts),
            saw_begin: is_held && self.watch.saw_begin(start),
            has_settled: self.has_settled,
        })
    }
}

/// The result of a pass, as lines for the administrator.
#[derive(Debug, Default)]
pub(super) struct CollectReport {
    /// The partitions that were released.
    pub(super) released: Vec<String>,
    /// The partitions that stay held although their run has ended, with the reason.
    pub(super) kept: BTreeSet<String>,
}

/// Releases the partitions of runs that have ended, and removes their files. Adds lines to `collected`.
///
/// # Errors
///
/// All problems. One with a run, or with a directory, keeps no other run from its release.
pub(super) async fn collect(
    context: &Context,
    watch: &mut SlurmctldWatch,
    collected: &mut CollectReport,
) -> Result<(), Failure> {
    // First the ledger: a run that starts later is not in it, so it cannot look dead.
    let partitions = context.proxy.partitions().await?;
    // A directory that cannot be read keeps no partition from its release.
    let mut problems = Vec::new();
    let files = find_files(context, &mut problems);
    let in_ledger = partitions
        .iter()
        .filter_map(|partition| context.start_of(partition));
    let in_files = files.iter().filter_map(FoundFile::start).cloned();
    let starts = in_ledger.chain(in_files).chain(allocations::starts(context));
    let facts = SlurmFacts::load(context, starts.collect(), watch).await?;
    for partition in &partitions {
        let Some((start, is_held)) = claim(context, partition, &files) else {
            continue;
        };
        let options = release_options(&context.conf, &start, Some(partition));
        let refused = partition
            .reason
            .as_ref()
            .is_some_and(|reason| reason.code == ReasonCode::RemovalRefused);
        // The proxy completes a release, unless the controller must be forced.
        let is_under_way = partition.state == HoldState::Releasing && (options.without_force || !refused);
        if is_under_way {
            continue;
        }
        let id = &partition.id;
        match facts.life(&start, is_held) {
            Life::Dead => {}
            Life::StartForgotten => {
                // A hook takes over a request with its attempt, and an active partition with the next one.
                let has_hook = files
                    .iter()
                    .any(|found| found.job_id == start.key.job_id && found.file.active().is_none());
                if partition.state != HoldState::Active || has_hook {
                    continue;
                }
                // The file of the job names the start that may have been used, for the next hook.
                match context.proxy.delete(id, &options).await {
                    Ok(_) => collected.released.push(format!(
                        "run {start} pends again: released partition {id} of its forgotten start"
                    )),
                    // A hook has taken it over.
                    Err(error) if is_old_attempt(&error) => {}
                    Err(error) => problems.push(cannot_release(id, error)),
                }
                continue;
            }
            Life::Superseded => {
                let job_id = start.key.job_id;
                collected.kept.insert(format!(
                    "processes of run {start} may remain while a later run of job {job_id} is live: partition {id} \
                     stays held until the later run has ended"
                ));
                continue;
            }
            Life::Live | Life::Unknown => continue,
        }
        match context.proxy.delete(id, &options).await {
            Ok(deleted) => {
                let line = format!("run {start} has ended: released partition {id}");
                collected.released.push(line);
                // The proxy may lose its ledger before it completes the release.
                if deleted.state != HoldState::Gone {
                    continue;
                }
                // The file may be the only record of the owner of another start's partition.
                if start.number > 0 && files.iter().any(|found| found.start() == Some(&start)) {
                    continue;
                }
                let name = format!("{}-{}.env", context.cluster, start.key.job_id);
                for directory in ipuof_directories(&context.conf) {
                    let removed = run_file::remove_start(&directory, &name, &start, id);
                    problems.extend(removed.err().map(|failure| failure.0));
                }
            }
            // A slurmctld that started since the list was read has forgotten more, and a hook has taken it
            // over.
            Err(error) if is_old_attempt(&error) => {}
            Err(error) => problems.push(cannot_release(id, error)),
        }
    }
    files::remove_files(context, &facts, &partitions, &files, &mut problems).await;
    // The files of a run that was released above are found a second time.
    problems.sort();
    problems.dedup();
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure(problems.join("; ")))
}

pub(super) fn cannot_release(id: &PartitionId, error: ClientError) -> String {
    format!("cannot release partition {id}: {}", Failure::from(error).0)
}

/// Returns the start that owns a partition, and whether the ledger knows it. A quarantined partition has lost
/// its owner. The file of a run names the owner, but no time, so it may name an earlier start.
fn claim(context: &Context, partition: &PartitionDocument, files: &[FoundFile]) -> Option<(RunStart, bool)> {
    if let Some(start) = context.start_of(partition) {
        return Some((start, true));
    }
    // Quarantined, or in a release that began so.
    if partition.owner.is_some() {
        return None;
    }
    let mut known = files.iter().flat_map(|found| found.file.known_starts());
    let start = known.find(|start| partition_of(context, start).as_ref() == Some(&partition.id))?;
    Some((start, false))
}

/// Returns the id of the partition of a start.
pub(super) fn partition_of(context: &Context, start: &RunStart) -> Option<PartitionId> {
    let owner = start.owner(context.cluster.as_str()).ok()?;
    Some(owner.job.partition_id(0))
}

/// Finds the files of runs of this cluster. A directory that cannot be read is a problem.
fn find_files(context: &Context, problems: &mut Vec<String>) -> Vec<FoundFile> {
    let mut found = Vec::new();
    for directory in ipuof_directories(&context.conf) {
        let kinds = [".env.", ".conf.", ".allocation."];
        if let Err(error) = leftovers::sweep(&directory, &kinds, leftovers::MIN_AGE) {
            problems.push(format!(
                "cannot remove unfinished files of {}: {error}",
                directory.display()
            ));
        }
        let entries = match fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            // A model that no job has used.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                problems.push(format!("cannot read {}: {error}", directory.display()));
                continue;
            }
        };
        for entry in entries {
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                continue;
            };
            // Another cluster may share the directory.
            found.extend(read_own(context, &directory, name));
        }
    }
    found
}

/// Reads a file that a hook of this cluster wrote.
fn read_own(context: &Context, directory: &Path, name: &str) -> Option<FoundFile> {
    let job_id = name
        .strip_suffix(".env")?
        .strip_prefix(context.cluster.as_str())?
        .strip_prefix('-')?;
    let file = RunFile::read(&directory.join(name)).ok()??;
    let job_id: u32 = job_id.parse().ok()?;
    let is_of_job = |start: &RunStart| start.key.job_id == job_id;
    let found = FoundFile {
        directory: directory.to_owned(),
        name: name.to_owned(),
        job_id,
        file,
    };
    found.start().is_none_or(is_of_job).then_some(found)
}
