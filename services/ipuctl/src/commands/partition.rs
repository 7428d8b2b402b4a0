//! `ipuctl partition …`: partitions by hand, through the same ledger that runs go through.

use std::time::Duration;

use ipu_core::{
    Entry, EntryState, JobKey, OnNoCapacity, Owner, Partition as Found, PartitionId, PartitionSpec, Request,
};
use ipu_ledger::Released;
use ipu_vipu_client::{Removal, VipuController as _, WaitOptions, ensure_absent};
use serde::Serialize;

use crate::cli::{Format, Global, Partition};
use crate::connection::{Connection, controller_failure, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::user;
use crate::output::Output;
use crate::process::{Holder, HolderState};
use crate::run::{OWNER_KIND, never_fits};
use crate::table::{Table, render};

/// The kind of the owner of what is made by hand.
pub(crate) const MANUAL_OWNER: &str = "User";

/// The pause between two looks at a partition that is being removed.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A partition as the ledger and the controller know it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PartitionRow {
    id: PartitionId,
    #[serde(flatten)]
    spec: PartitionSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<String>,
    ipus: Vec<ipu_core::IpuPlace>,
    /// What the controller says; none if it has no such partition.
    state: Option<String>,
    /// What the ledger says; none if the partition is not of this ledger.
    ledger: Option<String>,
    owner: Option<Owner>,
}

/// The answer of a removal.
#[derive(Debug, Serialize)]
struct Removed<'a> {
    id: &'a PartitionId,
    removed: bool,
}

/// Does what the subcommand says.
pub(crate) async fn run(command: Partition, global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let work = async {
        match command {
            Partition::List => list(&connection, global.output, output).await,
            Partition::Get { id } => get(&connection, &id, global.output, output).await,
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
                no_wait,
                namespace,
            } => {
                if namespace.is_some() {
                    return Err(super::proxy::needed("--namespace"));
                }
                let mut spec = PartitionSpec::of_size(size);
                spec.gcds = num_gcds;
                spec.replicas = num_replicas.unwrap_or(num_gcds);
                spec.reconfigurable = reconfigurable;
                spec.allocation = allocation;
                let line = if no_wait {
                    OnNoCapacity::Reject
                } else {
                    OnNoCapacity::Queue
                };
                create(&connection, id, spec, line, global.output, output).await
            }
        }
    };
    // The line forgets whoever does not wait any more: the next sweep sees that this process is gone.
    let done = tokio::select! {
        done = work => done,
        _ = tokio::signal::ctrl_c() => Ok(Code::Signal(2)),
    };
    connection.close().await;
    done
}

async fn create(
    connection: &Connection,
    id: PartitionId,
    spec: PartitionSpec,
    line: OnNoCapacity,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    if spec.gcds == 0 || !spec.size.get().is_multiple_of(spec.gcds) {
        return Err(Failure::new(
            Code::Usage,
            format!("--num-gcds {} does not divide {} IPUs", spec.gcds, spec.size),
        ));
    }
    connection.require_answer().await?;
    super::gc::sweep(connection, output).await?;
    let key = JobKey::new(user(), id.as_str(), "by-hand")
        .map_err(|error| Failure::because(Code::Usage, "partition id", error))?;
    let mut request = Request::named(
        id,
        Owner {
            kind: MANUAL_OWNER.to_owned(),
            job: key,
        },
        spec,
    );
    request.holder = Holder::own()
        .map_err(|error| Failure::because(Code::Host, "name this process", error))?
        .to_string();
    request.line = line;
    activate(connection, request, format, output).await
}

/// Waits until a partition is active, and says what it waits for.
async fn activate(
    connection: &Connection,
    request: Request,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let (id, size, owner) = (request.id.clone(), request.spec.size, request.owner.clone());
    let attempt = request.attempt;
    let (told, mut tell) = (output.clone(), tokio::sync::watch::channel(false));
    let mut on_wait = |waiting: &ipu_core::QueueStatus| {
        told.status(Some(&display::waiting(size, waiting)));
        if never_fits(&waiting.reason) {
            let _ = tell.0.send(true);
        }
    };
    let granted = tokio::select! {
        granted = connection.ledger.ensure_active(request, &mut on_wait) => granted.map_err(ledger_failure),
        _ = tell.1.changed() => {
            connection.ledger.release(&id, &owner, Some(attempt)).await.map_err(ledger_failure)?;
            Err(Failure::new(Code::Impossible, format!("a partition of {size} IPUs can never fit")))
        }
    };
    output.status(None);
    let grant = granted?;
    let row = row(connection, &id).await?;
    output.say(&format!(
        "partition {id} is active: {} of {}",
        display::places(&row.ipus),
        grant.controller
    ));
    if format != Format::Table {
        output.result(&render(format, &row, String::new)?);
    }
    Ok(Code::Done)
}

async fn rows(connection: &Connection) -> Result<Vec<PartitionRow>, Failure> {
    let found = connection
        .controller
        .list_partitions(None)
        .await
        .map_err(controller_failure)?;
    let entries = connection.ledger.list().await.map_err(ledger_failure)?;
    // Entries of other controllers are somewhere else.
    let here = |entry: &&Entry| {
        entry
            .controller
            .as_ref()
            .is_none_or(|name| *name == connection.name)
    };
    let mut rows: Vec<PartitionRow> = entries.iter().filter(here).map(row_of_entry).collect();
    for partition in found {
        match rows.iter_mut().find(|row| row.id == partition.id) {
            Some(row) => fill(row, &partition),
            None => {
                let mut row = PartitionRow {
                    id: partition.id.clone(),
                    spec: partition.spec.clone(),
                    cluster: None,
                    ipus: Vec::new(),
                    state: None,
                    ledger: None,
                    owner: None,
                };
                fill(&mut row, &partition);
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
    }
}

fn fill(row: &mut PartitionRow, partition: &Found) {
    row.cluster = partition.cluster.as_ref().map(ToString::to_string);
    row.ipus.clone_from(&partition.ipus);
    row.state = Some(partition.state.label().to_owned());
}

async fn list(connection: &Connection, format: Format, output: &Output) -> Result<Code, Failure> {
    let rows = rows(connection).await?;
    output.result(&render(format, &rows, || table_of(&rows))?);
    Ok(Code::Done)
}

fn table_of(rows: &[PartitionRow]) -> String {
    let mut table = Table::new(&[
        "PARTITION",
        "CLUSTER",
        "ILDS",
        "SIZE",
        "GCDS",
        "STATE",
        "LEDGER",
        "OWNER",
    ]);
    for row in rows {
        let mut domains: Vec<u32> = row.ipus.iter().map(|place| place.link_domain).collect();
        domains.dedup();
        table.row([
            row.id.to_string(),
            row.cluster.clone().unwrap_or_default(),
            if domains.is_empty() {
                String::new()
            } else {
                domains.len().to_string()
            },
            row.spec.size.to_string(),
            row.spec.gcds.to_string(),
            row.state.clone().unwrap_or_default(),
            row.ledger.clone().unwrap_or_else(|| "foreign".to_owned()),
            row.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        ]);
    }
    table.text()
}

async fn get(
    connection: &Connection,
    id: &PartitionId,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let row = row(connection, id).await?;
    output.result(&render(format, &row, || table_of(std::slice::from_ref(&row)))?);
    Ok(Code::Done)
}

async fn row(connection: &Connection, id: &PartitionId) -> Result<PartitionRow, Failure> {
    let rows = rows(connection).await?;
    rows.into_iter()
        .find(|row| row.id == *id)
        .ok_or_else(|| no_such(id))
}

fn no_such(id: &PartitionId) -> Failure {
    Failure::new(
        Code::NotFound,
        format!("neither the controller nor the ledger knows partition {id}"),
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
    let format = if format == Format::Table {
        Format::Json
    } else {
        format
    };
    // One GCD is what one configuration file holds; several are told apart.
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
            let found = connection
                .controller
                .list_partitions(None)
                .await
                .map_err(controller_failure)?;
            if found.iter().all(|partition| partition.id != *id) {
                return Err(no_such(id));
            }
            return Err(Failure::new(
                Code::Denied,
                format!("partition {id} was not made through this ledger; --force removes it all the same"),
            ));
        }
        Some(entry) => {
            if is_in_use(&entry) && !force {
                let owner = entry.owner.as_ref().map(ToString::to_string).unwrap_or_default();
                return Err(Failure::new(
                    Code::Denied,
                    format!(
                        "partition {id} is in use by {owner}; end that run, or take it away with --force"
                    ),
                ));
            }
            give_back(connection, &entry, force, output).await?;
        }
    }
    output.say(&format!("partition {id} removed"));
    if format != Format::Table {
        output.result(&render(format, &Removed { id, removed: true }, String::new)?);
    }
    Ok(Code::Done)
}

/// Whether a run that still lives holds the partition.
fn is_in_use(entry: &Entry) -> bool {
    let of_a_run = entry.owner.as_ref().is_some_and(|owner| owner.kind == OWNER_KIND);
    of_a_run && Holder::judge(&entry.holder) != HolderState::Dead
}

/// Gives a partition back, for as long as it takes.
async fn give_back(
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
                let message = format!("partition {id} is in quarantine: nobody owns it; --force removes it");
                return Err(Failure::new(Code::Denied, message));
            }
        };
        let Released::InProgress { detail } = released.map_err(ledger_failure)? else {
            output.status(None);
            return Ok(());
        };
        output.status(Some(&format!("partition {id} is being released: {detail}")));
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
                format!("partition {id} is not of this ledger, so that nobody can say who uses it"),
            )
        })?;
    if is_in_use(&entry) {
        return Err(Failure::new(
            Code::Denied,
            format!("partition {id} is in use by a run, which resets it by itself"),
        ));
    }
    let (Some(owner), false) = (
        entry.owner.clone(),
        matches!(entry.state, EntryState::Waiting { .. }),
    ) else {
        return Err(Failure::new(
            Code::NotFound,
            format!("partition {id} does not exist yet"),
        ));
    };
    let mut request = Request::named(id.clone(), owner, entry.spec.clone());
    request.instance = entry.instance;
    // Asking for a newer attempt than the partition was made fresh for resets it.
    request.attempt = entry.attempt.saturating_add(1);
    activate(connection, request, format, output).await
}
