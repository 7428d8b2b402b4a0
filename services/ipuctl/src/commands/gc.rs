//! `ipuctl gc`: kills the processes that killed runs left on this host, and releases their partitions.
//! `ipuctl repair` is the counterpart for the ledger of a proxy.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipu_core::{Entry, EntryState, OwnerLiveness};
use ipu_ledger::Liveness;
use serde::Serialize;

use super::partition::MANUAL_OWNER;
use crate::cli::Global;
use crate::connection::{Connection, HostLedger, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::{Holder, HolderState, end_marked};
use crate::run::OWNER_KIND;
use crate::run_record::RunRecord;
use crate::table;

/// Timeout for killed processes to disappear.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of operations that take several attempts, such as the removal of a partition by the controller.
const TIMEOUT: Duration = Duration::from_secs(60);
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
    #[serde(rename = "later")]
    unfinished: Vec<String>,
}

/// Cleans up until nothing is left, or until the timeout.
pub(crate) async fn run(global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let deadline = Instant::now() + TIMEOUT;
    let mut total = GcReport::default();
    loop {
        let swept = sweep(&connection).await?;
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
    output.result(&table::render(global.output, &total, || {
        format!("{}\n", total.summary())
    })?);
    let code = if total.unfinished.is_empty() {
        Code::Done
    } else {
        Code::Unavailable
    };
    connection.close().await;
    Ok(code)
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

/// Cleans up once: processes of dead runs first, then the ledger, then files.
pub(crate) async fn sweep(connection: &Connection) -> Result<GcReport, Failure> {
    let swept = sweep_ledger(&connection.ledger).await?;
    remove_files(connection);
    Ok(swept)
}

/// Kills the processes of dead runs and repairs the ledger, once.
pub(crate) async fn sweep_ledger(ledger: &HostLedger) -> Result<GcReport, Failure> {
    let entries = ledger.list().await.map_err(ledger_failure)?;
    let dead: Vec<&Entry> = entries
        .iter()
        .filter(|entry| judge(entry) == HolderState::Dead)
        .collect();
    let mut swept = GcReport::default();
    if !dead.is_empty() {
        let markers: BTreeSet<String> = dead.iter().map(|entry| entry.id.to_string()).collect();
        let (killed, all_ended) = tokio::task::spawn_blocking(move || end_marked(&markers, KILL_TIMEOUT))
            .await
            .map_err(|error| Failure::because(Code::Bug, "kill processes", error))?;
        swept.processes = killed;
        if !all_ended {
            swept
                .unfinished
                .push("processes of a killed run do not end after SIGKILL".to_owned());
        }
    }
    let unsettled = entries
        .iter()
        .any(|entry| !matches!(entry.state, EntryState::Active));
    if !dead.is_empty() || unsettled {
        let report = ledger.repair(&HolderLiveness).await.map_err(ledger_failure)?;
        swept.unfinished.extend(
            report
                .deferred
                .iter()
                .map(|(id, reason)| format!("partition {id}: {reason}")),
        );
        swept.unfinished.extend(
            report
                .unavailable
                .iter()
                .map(|(name, reason)| format!("controller {name}: {reason}")),
        );
        let remaining = ledger.list().await.map_err(ledger_failure)?;
        let released = dead
            .iter()
            .filter(|entry| remaining.iter().all(|other| other.id != entry.id));
        swept.partitions = released.map(|entry| entry.id.to_string()).collect();
    }
    Ok(swept)
}

/// Reports the liveness of owners to the ledger. A run is dead only if none of its processes exists.
pub(crate) struct HolderLiveness;

#[async_trait]
impl Liveness for HolderLiveness {
    async fn liveness_of(&self, entry: &Entry) -> OwnerLiveness {
        match judge(entry) {
            HolderState::Live => OwnerLiveness::Live,
            HolderState::Unknown => OwnerLiveness::Unknown,
            HolderState::Dead => {
                let markers = BTreeSet::from([entry.id.to_string()]);
                if crate::process::marked(&markers).is_empty() {
                    OwnerLiveness::Dead
                } else {
                    OwnerLiveness::Unknown
                }
            }
        }
    }
}

/// Returns the state of the process that holds `entry`; unknown for owners that are not processes of this
/// host.
fn judge(entry: &Entry) -> HolderState {
    let Some(owner) = &entry.owner else {
        return HolderState::Unknown;
    };
    // A partition of `partition create` outlives the command, but its place in the queue does not.
    let is_kept = owner.kind == MANUAL_OWNER
        && !matches!(
            entry.state,
            EntryState::Waiting { .. } | EntryState::Intent { .. }
        );
    if (owner.kind == OWNER_KIND || owner.kind == MANUAL_OWNER) && !is_kept {
        Holder::judge(&entry.holder)
    } else {
        HolderState::Unknown
    }
}

/// Removes the files of dead runs.
fn remove_files(connection: &Connection) {
    let Ok(runs) = std::fs::read_dir(connection.state.runs()) else {
        return;
    };
    for run in runs.filter_map(Result::ok) {
        let holder = std::fs::read_to_string(run.path().join("holder")).unwrap_or_default();
        if Holder::judge(&holder) == HolderState::Dead {
            if let Some(mut record) = RunRecord::read_active(&run.path()) {
                "Killed".clone_into(&mut record.phase);
                // The record is for information only.
                record.write_finished(&connection.state).ok();
            }
            // A failed removal is retried by the next sweep.
            let _ = std::fs::remove_dir_all(run.path());
        }
    }
}
