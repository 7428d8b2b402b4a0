//! `ipuctl gc`: ends what killed runs left on this host, and has the ledger release what they held.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ipu_core::{Entry, EntryState, OwnerLiveness};
use ipu_ledger::Liveness;
use serde::Serialize;

use super::partition::MANUAL_OWNER;
use crate::cli::Global;
use crate::connection::{Connection, HostLedger, ledger_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::{Holder, HolderState, end_marked};
use crate::run::OWNER_KIND;
use crate::table;

/// How long processes that are killed may take to vanish.
const VANISH: Duration = Duration::from_secs(10);
/// How long `gc` keeps at what cannot be finished at once, such as a partition that the controller is still removing.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The pause between two tries.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// What was found and done.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GcReport {
    /// Processes that had outlived their run and were killed.
    processes: usize,
    /// Partitions that were released or left the line.
    partitions: BTreeSet<String>,
    /// What could not be finished, and why.
    later: Vec<String>,
}

/// Runs until nothing is left to be done, or cannot be done now.
pub(crate) async fn run(global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let until = Instant::now() + TIMEOUT;
    let mut total = GcReport::default();
    loop {
        let swept = sweep(&connection, output).await?;
        total.processes += swept.processes;
        total.partitions.extend(swept.partitions);
        total.later = swept.later;
        if total.later.is_empty() || Instant::now() > until {
            break;
        }
        output.status(Some(&format!("waiting: {}", total.later.join("; "))));
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    output.status(None);
    for left in &total.later {
        output.warn(left);
    }
    let text = || {
        format!(
            "{} processes ended, {} partitions released\n",
            total.processes,
            total.partitions.len()
        )
    };
    output.result(&table::render(global.output, &total, text)?);
    let code = if total.later.is_empty() {
        Code::Done
    } else {
        Code::Unavailable
    };
    connection.close().await;
    Ok(code)
}

/// One sweep: processes of dead runs first, then the ledger, then files.
pub(crate) async fn sweep(connection: &Connection, output: &Output) -> Result<GcReport, Failure> {
    let swept = sweep_ledger(&connection.ledger, output).await?;
    remove_files(connection);
    Ok(swept)
}

/// One sweep of the ledger.
pub(crate) async fn sweep_ledger(ledger: &HostLedger, output: &Output) -> Result<GcReport, Failure> {
    let entries = ledger.list().await.map_err(ledger_failure)?;
    let dead: Vec<&Entry> = entries
        .iter()
        .filter(|entry| judge(entry) == HolderState::Dead)
        .collect();
    let mut swept = GcReport::default();
    if !dead.is_empty() {
        let marks: BTreeSet<String> = dead.iter().map(|entry| entry.id.to_string()).collect();
        let (killed, gone) = tokio::task::spawn_blocking(move || end_marked(&marks, VANISH))
            .await
            .map_err(|error| Failure::because(Code::Bug, "end processes", error))?;
        swept.processes = killed;
        if !gone {
            swept
                .later
                .push("processes of a dead run do not end although they were killed".to_owned());
        }
        output.say(&format!(
            "partitions of runs that were killed: {}; processes of theirs ended: {killed}",
            dead.len()
        ));
    }
    let unsettled = entries
        .iter()
        .any(|entry| !matches!(entry.state, EntryState::Active));
    if !dead.is_empty() || unsettled {
        let report = ledger.repair(&HolderLiveness).await.map_err(ledger_failure)?;
        swept.later.extend(
            report
                .later
                .iter()
                .map(|(id, why)| format!("partition {id}: {why}")),
        );
        swept.later.extend(
            report
                .silent
                .iter()
                .map(|(name, why)| format!("controller {name}: {why}")),
        );
        let left = ledger.list().await.map_err(ledger_failure)?;
        let gone = dead
            .iter()
            .filter(|entry| left.iter().all(|other| other.id != entry.id));
        swept.partitions = gone.map(|entry| entry.id.to_string()).collect();
    }
    Ok(swept)
}

/// Tells the ledger who is alive. A run is dead only once no process of it is left.
pub(crate) struct HolderLiveness;

#[async_trait]
impl Liveness for HolderLiveness {
    async fn life_of(&self, entry: &Entry) -> OwnerLiveness {
        match judge(entry) {
            HolderState::Live => OwnerLiveness::Live,
            HolderState::Unknown => OwnerLiveness::Unknown,
            HolderState::Dead => {
                let marks = BTreeSet::from([entry.id.to_string()]);
                if crate::process::marked(&marks).is_empty() {
                    OwnerLiveness::Dead
                } else {
                    OwnerLiveness::Unknown
                }
            }
        }
    }
}

fn judge(entry: &Entry) -> HolderState {
    let Some(owner) = &entry.owner else {
        return HolderState::Unknown;
    };
    // What was made by hand is kept after the command ended; only its place in the line is not.
    let kept = owner.kind == MANUAL_OWNER
        && !matches!(
            entry.state,
            EntryState::Waiting { .. } | EntryState::Intent { .. }
        );
    if (owner.kind == OWNER_KIND || owner.kind == MANUAL_OWNER) && !kept {
        Holder::judge(&entry.holder)
    } else {
        HolderState::Unknown
    }
}

/// Removes the files of runs whose process is gone.
fn remove_files(connection: &Connection) {
    let Ok(runs) = std::fs::read_dir(connection.state.runs()) else {
        return;
    };
    for run in runs.filter_map(Result::ok) {
        let holder = std::fs::read_to_string(run.path().join("holder")).unwrap_or_default();
        if Holder::judge(&holder) == HolderState::Dead {
            // What cannot be removed now is tried again the next time.
            let _ = std::fs::remove_dir_all(run.path());
        }
    }
}
