//! `ipuctl gc`: kills the processes that killed runs left on this host, and releases their partitions.
//! `ipuctl repair` also compares the ledger of the proxy with its controllers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ipu_allocator::process::ProcessHolder;
use ipu_core::PartitionId;
use ipu_core::allocator::OwnerLiveness;
use ipu_proxy_client::{DeletePartition, HoldState, PartitionDocument};
use serde::Serialize;

use crate::cli::Format;
use crate::connection::Connection;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::end_marked;
use crate::run_record::{LEASE_SECONDS, RunRecord};
use crate::state_dir::StateDir;
use crate::table;

/// Timeout for killed processes to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of operations that take several attempts, such as the removal of a partition by the controller.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Result of a cleanup.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GcReport {
    /// Number of killed processes that had outlived their run.
    processes: usize,
    /// Partitions that were released or removed from the queue.
    partitions: BTreeSet<String>,
    /// Unfinished operations with their reasons.
    unfinished: Vec<String>,
}

/// Cleans up until nothing is left, or until the timeout.
pub(crate) async fn run(connection: &Connection, format: Format, output: &Output) -> Result<Code, Failure> {
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    let mut total = GcReport::default();
    loop {
        let swept = sweep(connection).await?;
        total.processes += swept.processes;
        total.partitions.extend(swept.partitions);
        total.unfinished = swept.unfinished;
        if total.unfinished.is_empty() || Instant::now() > deadline {
            break;
        }
        output.status(Some(&format!("Waiting: {}", total.unfinished.join("; "))));
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    output.status(None);
    for unfinished in &total.unfinished {
        output.warn(unfinished);
    }
    output.result(&table::render(format, &total, || {
        format!("{}\n", total.summary())
    })?);
    Ok(if total.unfinished.is_empty() {
        Code::Done
    } else {
        Code::Unavailable
    })
}

impl GcReport {
    /// Returns whether anything was cleaned up.
    fn is_empty(&self) -> bool {
        self.processes == 0 && self.partitions.is_empty()
    }

    /// Returns the counts as a phrase.
    fn summary(&self) -> String {
        format!(
            "{} ended, {} released",
            display::count(self.processes, "process"),
            display::count(self.partitions.len(), "partition")
        )
    }

    /// Prints the counts, unless there was nothing to clean up.
    pub(crate) fn report(&self, output: &Output) {
        if !self.is_empty() {
            output.say(&format!("Cleaned up after killed runs: {}.", self.summary()));
        }
    }
}

/// Cleans up once: processes of dead runs first, then their partitions, then their files.
pub(crate) async fn sweep(connection: &Connection) -> Result<GcReport, Failure> {
    let mut swept = GcReport::default();
    let before = partitions(connection).await?;
    for run in dead_runs(connection, &before) {
        let markers = before
            .values()
            .filter(|partition| run.owns(partition))
            .map(|partition| partition.id.to_string())
            .chain(
                run.record
                    .iter()
                    .flat_map(|record| &record.partitions)
                    .map(ToString::to_string),
            )
            .collect();
        let (killed, all_ended) = tokio::task::spawn_blocking(move || end_marked(&markers, KILL_TIMEOUT))
            .await
            .map_err(|error| Failure::because(Code::Bug, "kill processes", error))?;
        swept.processes += killed;
        if !all_ended {
            let message = "processes of a killed run do not end after SIGKILL, or /proc cannot be read";
            swept.unfinished.push(message.to_owned());
            continue;
        }
        let mut is_released = true;
        for partition in before.values().filter(|partition| run.owns(partition)) {
            is_released &= release(partition, connection, &mut swept).await?;
        }
        if is_released {
            run.remove(connection);
        }
    }
    if connection.is_local() && before.values().any(needs_repair) {
        repair(connection, &before, &mut swept).await?;
    }
    Ok(swept)
}

async fn partitions(connection: &Connection) -> Result<BTreeMap<PartitionId, PartitionDocument>, Failure> {
    let partitions = connection.proxy.partitions().await?;
    let by_id = partitions.into_iter();
    Ok(by_id.map(|partition| (partition.id.clone(), partition)).collect())
}

/// A run whose process has ended without removing its files.
struct DeadRun {
    directory: PathBuf,
    record: Option<RunRecord>,
}

impl DeadRun {
    fn owns(&self, partition: &PartitionDocument) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.owns(partition))
    }

    /// Moves the record to the finished runs, and removes the files.
    fn remove(mut self, connection: &Connection) {
        if let Some(record) = &mut self.record {
            "Killed".clone_into(&mut record.phase);
            // The record of a finished run is for information only.
            record.write_finished(&connection.state).ok();
        }
        // A failed removal is retried by the next sweep.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns the dead runs with this proxy, which has `partitions`.
fn dead_runs(connection: &Connection, partitions: &BTreeMap<PartitionId, PartitionDocument>) -> Vec<DeadRun> {
    let directories = std::fs::read_dir(connection.state.runs_dir())
        .into_iter()
        .flatten();
    // Its first request may not have arrived yet.
    let has_begun_lately = |run: &DeadRun| {
        let changed = std::fs::metadata(&run.directory).and_then(|directory| directory.modified());
        let age = changed.map(|changed| changed.elapsed().unwrap_or_default());
        age.is_ok_and(|age| age < Duration::from_secs(LEASE_SECONDS.into()))
    };
    let is_dead = |run: &DeadRun| {
        let may_have_leases =
            partitions.values().any(|partition| run.owns(partition)) || has_begun_lately(run);
        let has_leases = !connection.is_local() && may_have_leases;
        StateDir::liveness_of_run(&run.directory, has_leases) == OwnerLiveness::Dead
    };
    let proxy = connection.remote_url();
    directories
        .filter_map(|entry| Some(entry.ok()?.path()))
        .map(|directory| DeadRun {
            record: RunRecord::read_active(&directory),
            directory,
        })
        .filter(|run| run.record.as_ref().is_none_or(|record| record.proxy == proxy))
        .filter(is_dead)
        .collect()
}

/// Releases the partition of a dead run. Returns whether it is removed.
async fn release(
    partition: &PartitionDocument,
    connection: &Connection,
    swept: &mut GcReport,
) -> Result<bool, Failure> {
    let mut deletion = DeletePartition::default();
    deletion.uid = partition.owner.as_ref().map(|owner| owner.uid.clone());
    let deleted = connection.proxy.delete(&partition.id, &deletion).await;
    let deleted = deleted?;
    if deleted.state == HoldState::Gone {
        swept.partitions.insert(partition.id.to_string());
        return Ok(true);
    }
    let detail = deleted.detail.unwrap_or_default();
    swept
        .unfinished
        .push(format!("partition {}: {detail}", partition.id));
    Ok(false)
}

/// Returns whether a partition is not settled, or its process has ended.
fn needs_repair(partition: &PartitionDocument) -> bool {
    let has_ended = |pid| ProcessHolder::of(pid).is_err();
    partition.state != HoldState::Active || partition.process_id.is_some_and(has_ended)
}

/// Repairs the ledger of the local server, which judges the processes that hold partitions.
async fn repair(
    connection: &Connection,
    before: &BTreeMap<PartitionId, PartitionDocument>,
    swept: &mut GcReport,
) -> Result<(), Failure> {
    let report = connection.proxy.repair().await?;
    let unfinished = report.unfinished.iter();
    swept
        .unfinished
        .extend(unfinished.map(|one| format!("partition {}: {}", one.id, one.reason)));
    let unavailable = report.unavailable.iter();
    swept
        .unfinished
        .extend(unavailable.map(|one| format!("controller {}: {}", one.controller, one.reason)));
    let after = partitions(connection).await?;
    let is_released =
        |partition: &&PartitionDocument| partition.process_id.is_some() && !after.contains_key(&partition.id);
    let released = before.values().filter(is_released);
    swept
        .partitions
        .extend(released.map(|partition| partition.id.to_string()));
    Ok(())
}
