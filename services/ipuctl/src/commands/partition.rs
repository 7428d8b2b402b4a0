//! `ipuctl partition …`: manages partitions through the ledger that runs use.

mod create;

use std::time::Duration;

use ipu_core::{
    Entry, EntryState, IpuCount, OnNoCapacity, Owner, Partition as ObservedPartition, PartitionId,
    PartitionSpec, QueueDecision, Request, SpecError, Timestamp,
};
use ipu_ledger::Released;
use ipu_proxy_client::{HoldState, PartitionDocument, WaitingDocument};
use ipu_vipu_client::{Removal, VipuController as _, WaitOptions, ensure_absent};
use serde::Serialize;

use self::create::{Requested, activate, create, withdraw};
use super::partition_table::{self, PartitionSummary};
use super::partition_watch;
use crate::cli::{Format, Global, Partition};
use crate::connection::{Connection, controller_failure, ledger_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::{Holder, HolderState};
use crate::run::{OWNER_KIND, Signals};
use crate::table::render;

/// Owner kind of partitions that `ipuctl partition create` creates.
pub(crate) const MANUAL_OWNER: &str = "User";

/// Interval between two attempts to release a partition.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A partition of the ledger, of the controller, or of both.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionRow {
    id: PartitionId,
    #[serde(flatten)]
    spec: PartitionSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    ipus: Vec<ipu_core::IpuPlace>,
    /// State at the controller; none if the controller has no such partition.
    state: Option<String>,
    /// State in the ledger; none if the ledger has no such partition.
    ledger: Option<String>,
    owner: Option<Owner>,
    /// Start of the hold; none for a queued request or a partition of another program.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_since: Option<Timestamp>,
    #[serde(skip)]
    entry: Option<Entry>,
}

/// Result of a removal.
#[derive(Debug, Serialize)]
struct Removed<'a> {
    id: &'a PartitionId,
    removed: bool,
}

/// Runs the subcommand.
pub(crate) async fn run(command: Partition, global: &Global, output: &Output) -> Result<Code, Failure> {
    check_request(&command)?;
    let mut signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    let connection = Connection::open(global, output).await?;
    let created = match &command {
        Partition::Create { id, .. } => Some(id.clone()),
        _ => None,
    };
    let work = async {
        match command {
            Partition::List { watch: false } => list(&connection, global.output, output).await,
            Partition::List { watch: true } => {
                let list = async || summaries(&connection, &rows(&connection).await?).await;
                partition_watch::watch(list, global.output, output).await
            }
            Partition::Get { id } => get(&connection, &id, global.output, output).await,
            Partition::Describe { id } => describe(&connection, &id, global.output, output).await,
            Partition::Config { id, gcd } => config(&connection, &id, gcd, global.output, output).await,
            Partition::Remove { id, force } => remove(&connection, &id, force, global.output, output).await,
            Partition::Reset { id } => reset(&connection, &id, global.output, output).await,
            Partition::Create {
                id,
                size,
                num_gcds,
                num_replicas,
                reconfigurable,
                allocation,
                priority,
                preemptible,
                no_wait,
                ..
            } => {
                let mut spec = spec_of(size, num_gcds, num_replicas, reconfigurable);
                spec.allocation = allocation;
                let on_no_capacity = if no_wait {
                    OnNoCapacity::Reject
                } else {
                    OnNoCapacity::Queue
                };
                let request = Requested {
                    spec,
                    priority,
                    preemptible,
                    on_no_capacity,
                };
                create(&connection, id, request, global.output, output).await
            }
        }
    };
    let finished = tokio::select! {
        result = work => Some(result),
        () = signals.next() => None,
    };
    // An interrupted request has been dropped here, so that it cannot enter the queue again.
    let result = match finished {
        Some(result) => result,
        None => {
            output.status(None);
            if let Some(id) = &created {
                withdraw(&connection, id, &mut signals, output).await;
            }
            output.say("Interrupted.");
            Ok(Code::Signal(signals.first().unwrap_or(2)))
        }
    };
    connection.close().await;
    result
}

/// Returns the properties of a requested partition of any allocation.
fn spec_of(size: IpuCount, num_gcds: u32, num_replicas: Option<u32>, reconfigurable: bool) -> PartitionSpec {
    let mut spec = PartitionSpec::of_size(size);
    spec.gcds = num_gcds;
    spec.replicas = num_replicas.unwrap_or(num_gcds);
    spec.reconfigurable = reconfigurable;
    spec
}

/// Rejects a request that only a proxy supports or that no controller accepts, before it has an effect.
fn check_request(command: &Partition) -> Result<(), Failure> {
    let Partition::Create {
        size,
        num_gcds,
        num_replicas,
        reconfigurable,
        namespace,
        ..
    } = command
    else {
        return Ok(());
    };
    if namespace.is_some() {
        return Err(super::proxy::requires_proxy("--namespace"));
    }
    let spec = spec_of(*size, *num_gcds, *num_replicas, *reconfigurable);
    spec.check().map_err(|error| {
        let option = match error {
            SpecError::Gcds { gcds, .. } => format!("--num-gcds {gcds}"),
            SpecError::Replicas { replicas, .. } => format!("--num-replicas {replicas}"),
            _ => format!("--{}", error.field()),
        };
        Failure::new(Code::Data, format!("{option}: {error}; {}", error.fix()))
    })
}

async fn rows(connection: &Connection) -> Result<Vec<PartitionRow>, Failure> {
    let partitions = connection
        .controller
        .list_partitions(None)
        .await
        .map_err(controller_failure)?;
    let entries = connection.ledger.list().await.map_err(ledger_failure)?;
    // The ledger may also have entries of other controllers.
    let is_here = |entry: &&Entry| {
        entry
            .controller
            .as_ref()
            .is_none_or(|name| *name == connection.name)
    };
    let mut rows: Vec<PartitionRow> = entries.iter().filter(is_here).map(row_of_entry).collect();
    for partition in partitions {
        match rows.iter_mut().find(|row| row.id == partition.id) {
            Some(row) => add_observation(row, &partition),
            None => {
                let mut row = PartitionRow {
                    id: partition.id.clone(),
                    spec: partition.spec.clone(),
                    cluster: None,
                    ipus: Vec::new(),
                    state: None,
                    ledger: None,
                    owner: None,
                    held_since: None,
                    entry: None,
                };
                add_observation(&mut row, &partition);
                rows.push(row);
            }
        }
    }
    rows.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(rows)
}

fn row_of_entry(entry: &Entry) -> PartitionRow {
    PartitionRow {
        id: entry.id.clone(),
        spec: entry.spec.clone(),
        cluster: None,
        ipus: entry.places.clone(),
        state: None,
        ledger: Some(entry.state.label().to_owned()),
        owner: entry.owner.clone(),
        held_since: entry.held_since,
        entry: Some(entry.clone()),
    }
}

/// Adds what the controller reports.
fn add_observation(row: &mut PartitionRow, partition: &ObservedPartition) {
    row.cluster = partition.cluster.as_ref().map(ToString::to_string);
    row.ipus.clone_from(&partition.ipus);
    row.state = Some(partition.state.label().to_owned());
}

async fn list(connection: &Connection, format: Format, output: &Output) -> Result<Code, Failure> {
    let rows = rows(connection).await?;
    let summaries = summaries(connection, &rows).await?;
    partition_table::print(&summaries, &rows, format, output)
}

async fn summaries(connection: &Connection, rows: &[PartitionRow]) -> Result<Vec<PartitionSummary>, Failure> {
    let mut summaries = Vec::new();
    for row in rows {
        summaries.push(summarize(connection, row).await?);
    }
    Ok(summaries)
}

/// Returns what is shown of a partition; for a queued request that includes its place in the queue.
async fn summarize(connection: &Connection, row: &PartitionRow) -> Result<PartitionSummary, Failure> {
    let mut summary = PartitionSummary {
        id: row.id.to_string(),
        state: "foreign".to_owned(),
        size: row.spec.size.get(),
        places: row.ipus.clone(),
        controller: connection.name.to_string(),
        gcds: row.spec.gcds,
        replicas: row.spec.replicas,
        reconfigurable: row.spec.reconfigurable,
        allocation: row
            .spec
            .allocation
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        ..PartitionSummary::default()
    };
    let Some(entry) = &row.entry else {
        return Ok(summary);
    };
    let mut document = PartitionDocument::from(entry);
    document.reason = connection.ledger.reason(entry);
    if document.state == HoldState::Waiting {
        let decision = connection
            .ledger
            .queue_decision(&entry.id)
            .await
            .map_err(ledger_failure)?;
        if let Some(QueueDecision::Wait(waiting)) = decision {
            document.waiting = Some(WaitingDocument::from(&waiting));
        }
    }
    let places = std::mem::take(&mut summary.places);
    let mut summary = PartitionSummary::from_document(&document, &[]);
    summary.places = places;
    summary.state = partition_table::state_of_entry(&entry.state).to_owned();
    // The ledger learns of a failed or missing partition only when it reconciles.
    if matches!(entry.state, EntryState::Active) {
        match row.state.as_deref() {
            Some("ACTIVE") => {}
            Some(state) => summary.reason = format!("the controller reports {state}"),
            None => summary.reason = "the controller has no such partition".to_owned(),
        }
    }
    Ok(summary)
}

async fn get(
    connection: &Connection,
    id: &PartitionId,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let row = find_row(connection, id).await?;
    let summary = summarize(connection, &row).await?;
    partition_table::print(&[summary], &row, format, output)
}

async fn describe(
    connection: &Connection,
    id: &PartitionId,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let row = find_row(connection, id).await?;
    let summary = summarize(connection, &row).await?;
    partition_table::print_description(&summary, &row, format, output)
}

async fn find_row(connection: &Connection, id: &PartitionId) -> Result<PartitionRow, Failure> {
    let rows = rows(connection).await?;
    rows.into_iter()
        .find(|row| row.id == *id)
        .ok_or_else(|| no_such(id))
}

fn no_such(id: &PartitionId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("partition {id} not found, neither at the controller nor in the ledger"),
    )
}

async fn config(
    connection: &Connection,
    id: &PartitionId,
    gcd: Option<u32>,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let config = connection
        .controller
        .ipuof_config(id, gcd)
        .await
        .map_err(controller_failure)?;
    let format = if format.is_text() { Format::Json } else { format };
    // A configuration file has one GCD; several GCDs need the outer document.
    let text = match (config.gcds.as_slice(), gcd) {
        ([one], number) => render(format, &one.clone().for_gcd(number.unwrap_or(0)), String::new)?,
        _ => render(format, &config, String::new)?,
    };
    output.result(&text);
    Ok(Code::Done)
}

async fn remove(
    connection: &Connection,
    id: &PartitionId,
    force: bool,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let entry = connection.ledger.get(id).await.map_err(ledger_failure)?;
    match entry {
        None if force => {
            let removal = ensure_absent(
                &*connection.controller,
                id,
                Removal::Forced,
                &WaitOptions::default(),
            )
            .await;
            removal.map_err(controller_failure)?;
        }
        None => {
            let listed = connection
                .controller
                .list_partitions(None)
                .await
                .map_err(controller_failure)?;
            if listed.iter().all(|partition| partition.id != *id) {
                return Err(no_such(id));
            }
            return Err(Failure::new(
                Code::Denied,
                format!("partition {id} was created by another program; use --force to remove it"),
            ));
        }
        Some(entry) => {
            if is_in_use(&entry) && !force {
                let owner = entry.owner.as_ref().map(ToString::to_string).unwrap_or_default();
                return Err(Failure::new(
                    Code::Denied,
                    format!("partition {id} is in use by {owner}; end that run, or use --force"),
                ));
            }
            release(connection, &entry, force, output).await?;
        }
    }
    output.say(&format!("partition {id} removed"));
    if !format.is_text() {
        output.result(&render(format, &Removed { id, removed: true }, String::new)?);
    }
    Ok(Code::Done)
}

/// Returns whether a live run holds the partition.
fn is_in_use(entry: &Entry) -> bool {
    let is_of_run = entry.owner.as_ref().is_some_and(|owner| owner.kind == OWNER_KIND);
    is_of_run && Holder::judge(&entry.holder) != HolderState::Dead
}

/// Releases a partition and waits until the controller has removed it.
async fn release(
    connection: &Connection,
    entry: &Entry,
    force: bool,
    output: &Output,
) -> Result<(), Failure> {
    let id = &entry.id;
    loop {
        let released = match &entry.owner {
            Some(owner) => connection.ledger.release(id, owner, Some(entry.attempt)).await,
            None if force => connection.ledger.release_quarantined(id).await,
            None => {
                let message =
                    format!("partition {id} is quarantined: it has no known owner; use --force to remove it");
                return Err(Failure::new(Code::Denied, message));
            }
        };
        let Released::InProgress { detail } = released.map_err(ledger_failure)? else {
            output.status(None);
            return Ok(());
        };
        output.status(Some(&format!("Releasing partition {id}: {detail}")));
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn reset(
    connection: &Connection,
    id: &PartitionId,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let entry = connection
        .ledger
        .get(id)
        .await
        .map_err(ledger_failure)?
        .ok_or_else(|| {
            Failure::new(
                Code::NotFound,
                format!("partition {id} is not in this ledger, so that its users are unknown"),
            )
        })?;
    if is_in_use(&entry) {
        return Err(Failure::new(
            Code::Denied,
            format!("partition {id} is in use by a run, which resets it itself"),
        ));
    }
    let (Some(owner), false) = (
        entry.owner.clone(),
        matches!(entry.state, EntryState::Waiting { .. }),
    ) else {
        return Err(Failure::new(
            Code::NotFound,
            format!("partition {id} is queued and does not exist yet"),
        ));
    };
    let mut request = Request::with_id(id.clone(), owner, entry.spec.clone());
    request.instance = entry.instance;
    // A newer attempt resets the partition.
    request.attempt = entry.attempt.saturating_add(1);
    activate(connection, request, format, output).await
}
