//! `ipuctl partition …` and `ipuctl waiting` through a proxy.

use std::time::Duration;

use ipu_core::PartitionId;
use ipu_proxy_client::{
    ClientError, DeletePartition, HoldState, OnNoCapacity, OwnerDocument, PartitionDocument, ProxyClient,
    PutPartition, ResetPartition,
};
use serde::Serialize;
use tokio::sync::watch;

use super::{failure, unsupported, why};
use crate::cli::{Format, Partition};
use crate::commands::partition::MANUAL_OWNER;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::user;
use crate::output::Output;
use crate::run::never_fits;
use crate::table::{Table, render};

/// Somebody waits at the terminal and ends it when he has waited long enough.
const NO_TIMEOUT: Duration = Duration::MAX;

/// What tells what is made by hand from what jobs own; there is no second one of the same name.
const UID: &str = "by-hand";

/// Does what the subcommand says.
pub(super) async fn run(
    command: Partition,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    match command {
        Partition::List => {
            let partitions = proxy.partitions().await.map_err(failure)?;
            output.result(&render(format, &partitions, || table(&partitions))?);
            Ok(Code::Done)
        }
        Partition::Get { id } => {
            let partition = proxy.partition(&id).await.map_err(failure)?;
            let table = || table(std::slice::from_ref(&partition));
            output.result(&render(format, &partition, table)?);
            Ok(Code::Done)
        }
        Partition::Config { id, .. } => config(&id, proxy).await,
        Partition::Remove { id, force } => remove(&id, force, proxy, format, output).await,
        Partition::Reset { id } => reset(&id, proxy, format, output).await,
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
            let namespace = namespace.unwrap_or_else(user);
            let owner = OwnerDocument::new(MANUAL_OWNER, namespace, id.as_str(), UID);
            let mut wanted = PutPartition::new(owner, size.get());
            wanted.gcds = Some(num_gcds);
            wanted.replicas = num_replicas;
            wanted.reconfigurable = reconfigurable;
            wanted.allocation = allocation.map(|allocation| allocation.to_string());
            let made = if no_wait {
                at_once(&id, &wanted, proxy).await?
            } else {
                in_line(&id, &wanted, proxy, output).await?
            };
            shown(&made, format, output)
        }
    }
}

/// The line.
pub(super) async fn waiting(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let waiting = proxy.waiting().await.map_err(failure)?;
    output.result(&render(format, &waiting, || table(&waiting))?);
    Ok(Code::Done)
}

async fn at_once(
    id: &PartitionId,
    wanted: &PutPartition,
    proxy: &ProxyClient,
) -> Result<PartitionDocument, Failure> {
    let made = proxy
        .put(id, wanted, OnNoCapacity::Refuse)
        .await
        .map_err(failure)?;
    if made.state == HoldState::Active {
        return Ok(made);
    }
    // It is let go already, and waits for nobody but its controller.
    proxy
        .ensure_active(id, wanted, NO_TIMEOUT, &mut |_| ())
        .await
        .map_err(failure)
}

/// Waits for a partition, and withdraws the request if it can never fit or the person at the terminal ends it.
async fn in_line(
    id: &PartitionId,
    wanted: &PutPartition,
    proxy: &ProxyClient,
    output: &Output,
) -> Result<PartitionDocument, Failure> {
    let (never, mut told) = watch::channel(None);
    let mut tell = |partition: &PartitionDocument| {
        output.status(Some(&format!(
            "partition {id} is {}: {}",
            partition.state,
            why(partition)
        )));
        if let Some(waiting) = partition
            .waiting
            .as_ref()
            .filter(|waiting| never_fits(&waiting.reason))
        {
            never.send_replace(Some(waiting.reason.message.clone()));
        }
    };
    let ended = tokio::select! {
        made = proxy.ensure_active(id, wanted, NO_TIMEOUT, &mut tell) => {
            output.status(None);
            return made.map_err(failure);
        }
        Ok(never) = told.wait_for(Option::is_some) => {
            let why = never.as_deref().unwrap_or_default();
            Failure::new(Code::Impossible, format!("a partition of {} IPUs can never fit: {why}", wanted.size))
        }
        _ = tokio::signal::ctrl_c() => Failure::new(Code::Signal(2), "interrupted: the request was withdrawn"),
    };
    output.status(None);
    let mut how = DeletePartition::default();
    how.uid = Some(UID.to_owned());
    how.attempt = Some(wanted.attempt);
    proxy.delete(id, &how).await.map_err(failure)?;
    Err(ended)
}

fn shown(partition: &PartitionDocument, format: Format, output: &Output) -> Result<Code, Failure> {
    let at = partition
        .controller
        .as_ref()
        .map(|controller| controller.name.to_string());
    output.say(&format!(
        "partition {} is active: {} of {}",
        partition.id,
        display::places(&partition.ipus),
        at.unwrap_or_default()
    ));
    if format != Format::Table {
        output.result(&render(format, partition, String::new)?);
    }
    Ok(Code::Done)
}

/// The IPUoF configuration is the controller's to tell; where that is, the proxy tells.
async fn config(id: &PartitionId, proxy: &ProxyClient) -> Result<Code, Failure> {
    let partition = proxy.partition(id).await.map_err(failure)?;
    let address = partition.controller.and_then(|controller| {
        let host = controller.host?;
        Some(format!("{host}:{}", controller.port?))
    });
    Err(match address {
        Some(address) => unsupported(
            "partition config",
            &format!("ask its controller: ipuctl --proxy '' --vipu {address} partition config {id}"),
        ),
        None => unsupported("partition config", "and the partition is at no controller yet"),
    })
}

/// Whether a person made it, who alone knows whether anything uses it.
fn is_by_hand(partition: &PartitionDocument) -> bool {
    partition
        .owner
        .as_ref()
        .is_some_and(|owner| owner.kind == MANUAL_OWNER)
}

/// Refuses what a job owns.
fn check_by_hand(partition: &PartitionDocument, instead: &str) -> Result<(), Failure> {
    if is_by_hand(partition) {
        return Ok(());
    }
    let message = match &partition.owner {
        Some(owner) => format!("partition {} is held by {owner}; {instead}", partition.id),
        None => format!(
            "partition {} is in quarantine: nobody is known to own it; {instead}",
            partition.id
        ),
    };
    Err(Failure::new(Code::Denied, message))
}

#[derive(Debug, Serialize)]
struct Removed<'a> {
    id: &'a PartitionId,
    removed: bool,
}

async fn remove(
    id: &PartitionId,
    force: bool,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let partition = proxy.partition(id).await.map_err(failure)?;
    if !force {
        check_by_hand(&partition, "end that first, or take it away with --force")?;
    }
    let mut how = DeletePartition::default();
    // What was meant is what was seen, and not what somebody makes there meanwhile.
    how.uid = partition.owner.as_ref().map(|owner| owner.uid.clone());
    how.attempt = how.uid.as_ref().map(|_| partition.attempt);
    how.quarantined = force && partition.owner.is_none();
    let mut tell = |left: &ipu_proxy_client::DeletedDocument| {
        let detail = left.detail.clone().unwrap_or_default();
        output.status(Some(&format!("partition {id} is being released: {detail}")));
    };
    let gone = proxy.wait_released(id, &how, NO_TIMEOUT, &mut tell).await;
    output.status(None);
    gone.map_err(failure)?;
    output.say(&format!("partition {id} removed"));
    if format != Format::Table {
        output.result(&render(format, &Removed { id, removed: true }, String::new)?);
    }
    Ok(Code::Done)
}

async fn reset(
    id: &PartitionId,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let partition = proxy.partition(id).await.map_err(failure)?;
    check_by_hand(&partition, "who holds it has it reset")?;
    if partition.state == HoldState::Waiting {
        let message = format!("partition {id} does not exist yet");
        return Err(Failure::new(Code::NotFound, message));
    }
    let mut how = ResetPartition::default();
    how.attempt = Some(partition.attempt.saturating_add(1));
    how.uid = partition.owner.map(|owner| owner.uid);
    let begun: Result<_, ClientError> = proxy.reset(id, &how).await;
    let made = match begun.map_err(failure)? {
        ready if ready.state == HoldState::Active => ready,
        _ => proxy
            .wait_active(id, NO_TIMEOUT, &mut |_| ())
            .await
            .map_err(failure)?,
    };
    shown(&made, format, output)
}

fn table(partitions: &[PartitionDocument]) -> String {
    let mut table = Table::new(&["PARTITION", "SIZE", "STATE", "CONTROLLER", "OWNER", "WHY"]);
    for partition in partitions {
        let controller = partition.controller.as_ref();
        table.row([
            partition.id.to_string(),
            partition.size.to_string(),
            partition.state.to_string(),
            controller
                .map(|controller| controller.name.to_string())
                .unwrap_or_default(),
            partition
                .owner
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            why(partition),
        ]);
    }
    table.text()
}
