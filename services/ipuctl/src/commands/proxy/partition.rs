//! `ipuctl partition …` and `ipuctl waiting` through a proxy.

use std::time::Duration;

use ipu_core::{AllocationId, IpuCount, PartitionId, PartitionSpec};
use ipu_proxy_client::{
    ClientError, DeletePartition, HoldState, OnNoCapacity, OwnerDocument, PartitionDocument, ProxyClient,
    PutPartition, ResetPartition,
};
use serde::Serialize;
use tokio::sync::watch;

use super::{cordons_for, failure, unsupported};
use crate::cli::{Format, Partition};
use crate::commands::partition::MANUAL_OWNER;
use crate::commands::partition_table::{self, PartitionSummary};
use crate::commands::partition_watch;
use crate::connection::{does_not_fit, other_properties};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::user;
use crate::output::Output;
use crate::run::{Signals, never_fits};
use crate::table::{Table, render};
use crate::{clock, time};

/// Timeout of waits that the user interrupts.
const NO_TIMEOUT: Duration = Duration::MAX;

/// Uid of the owner of partitions that `partition create` creates.
const UID: &str = "by-hand";

/// Runs the subcommand.
pub(super) async fn run(
    command: Partition,
    proxy: &ProxyClient,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    match command {
        Partition::List { watch: true } => {
            let list = async || {
                let partitions = proxy.partitions().await.map_err(failure)?;
                Ok(summarize(&partitions, proxy).await)
            };
            partition_watch::watch(list, format, output).await
        }
        Partition::List { watch: false } => {
            let partitions = proxy.partitions().await.map_err(failure)?;
            let summaries = summarize(&partitions, proxy).await;
            partition_table::print(&summaries, &partitions, format, output)
        }
        Partition::Get { id } => {
            let partition = proxy.partition(&id).await.map_err(failure)?;
            let summaries = summarize(std::slice::from_ref(&partition), proxy).await;
            partition_table::print(&summaries, &partition, format, output)
        }
        Partition::Describe { id } => {
            let partition = proxy.partition(&id).await.map_err(failure)?;
            let summaries = summarize(std::slice::from_ref(&partition), proxy).await;
            partition_table::print_description(&summaries[0], &partition, format, output)
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
            priority,
            preemptible,
            no_wait,
            namespace,
        } => {
            let namespace = namespace.unwrap_or_else(user);
            let owner = OwnerDocument::new(MANUAL_OWNER, namespace, id.as_str(), UID);
            let mut request = PutPartition::new(owner, size.get());
            request.gcds = Some(num_gcds);
            request.replicas = num_replicas;
            request.reconfigurable = reconfigurable;
            request.allocation = allocation.map(|allocation| allocation.to_string());
            request.priority = priority;
            request.preemptible = preemptible;
            let partition = create(&id, &request, no_wait, proxy, output).await?;
            print_active(&partition, format, output)
        }
    }
}

/// Prints the queue.
pub(super) async fn waiting(proxy: &ProxyClient, format: Format, output: &Output) -> Result<Code, Failure> {
    let queue = proxy.waiting().await.map_err(failure)?;
    if format.is_text() && queue.is_empty() {
        output.say("No queued requests found.");
        return Ok(Code::Done);
    }
    let summaries = summarize(&queue, proxy).await;
    output.result(&render(format, &queue, || queue_table(&queue, &summaries))?);
    Ok(Code::Done)
}

/// Returns what is shown of partitions.
async fn summarize(partitions: &[PartitionDocument], proxy: &ProxyClient) -> Vec<PartitionSummary> {
    let reasons = partitions
        .iter()
        .filter_map(|partition| partition.waiting.as_ref())
        .map(|waiting| &waiting.reason);
    let cordons = cordons_for(reasons, proxy).await;
    partitions
        .iter()
        .map(|partition| PartitionSummary::from_document(partition, &cordons))
        .collect()
}

/// Creates a partition and waits until it is active. The request is withdrawn if it can never fit, if it is
/// queued and must not wait, or if the user interrupts it.
async fn create(
    id: &PartitionId,
    request: &PutPartition,
    no_wait: bool,
    proxy: &ProxyClient,
    output: &Output,
) -> Result<PartitionDocument, Failure> {
    let mut signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    if no_wait {
        // A request that its owner has queued already is not withdrawn.
        if let Ok(existing) = proxy.partition(id).await
            && existing.owner.as_ref() == Some(&request.owner)
            && let Some(waiting) = &existing.waiting
        {
            return Err(does_not_fit(id, &waiting.reason));
        }
        // An admitted request waits for the controller only, unless the controller rejects it.
        match proxy.put(id, request, OnNoCapacity::Reject).await {
            Ok(partition) if partition.state == HoldState::Active => return Ok(partition),
            Ok(_) => {}
            Err(error) => return Err(request_failure(error, id, request, proxy).await),
        }
    }
    let (reject, mut rejected) = watch::channel(None);
    let mut on_wait = |partition: &PartitionDocument| {
        let text = match &partition.waiting {
            Some(waiting) => display::wait_status(waiting, &[]),
            None => partition_table::progress(partition, &[]),
        };
        let reason = partition.waiting.as_ref().map(|waiting| &waiting.reason);
        if let Some(reason) = reason.filter(|reason| no_wait || never_fits(reason)) {
            reject.send_replace(Some(reason.clone()));
        } else if partition.waiting.is_some() || partition.state != HoldState::Intent {
            output.status(Some(&text));
        } else {
            output.transient(&text);
        }
    };
    let error = tokio::select! {
        active = proxy.ensure_active(id, request, NO_TIMEOUT, &mut on_wait) => {
            output.status(None);
            return match active {
                Ok(partition) => Ok(partition),
                Err(error) => Err(request_failure(error, id, request, proxy).await),
            };
        }
        Ok(reason) = rejected.wait_for(Option::is_some) => {
            let failure = reason.as_ref().map(|reason| does_not_fit(id, reason));
            failure.unwrap_or_else(|| Failure::new(Code::NoCapacity, format!("partition {id} does not fit now")))
        }
        () = signals.next() => {
            let code = Code::Signal(signals.first().unwrap_or(2));
            Failure::new(code, "interrupted, the request was withdrawn")
        }
    };
    output.status(None);
    let mut withdrawal = DeletePartition::default();
    withdrawal.uid = Some(UID.to_owned());
    withdrawal.attempt = Some(request.attempt);
    proxy.delete(id, &withdrawal).await.map_err(failure)?;
    Err(error)
}

/// Maps an error of the client to a failure, which shows how an existing partition differs from the request.
async fn request_failure(
    error: ClientError,
    id: &PartitionId,
    request: &PutPartition,
    proxy: &ProxyClient,
) -> Failure {
    if error.code() != Some("OtherProperties") {
        return failure(error);
    }
    let existing = proxy.partition(id).await.ok();
    let gcds = request.gcds.unwrap_or(1);
    let requested = PartitionSpec {
        gcds,
        replicas: request.replicas.unwrap_or(gcds),
        reconfigurable: request.reconfigurable,
        allocation: allocation(request.allocation.as_deref()),
        ..PartitionSpec::of_size(IpuCount::try_from(request.size).unwrap_or(IpuCount::ONE))
    };
    existing
        .and_then(|partition| {
            let existing = PartitionSpec {
                gcds: partition.gcds,
                replicas: partition.replicas,
                reconfigurable: partition.reconfigurable,
                allocation: allocation(partition.allocation.as_deref()),
                ..PartitionSpec::of_size(IpuCount::try_from(partition.size).ok()?)
            };
            other_properties(id, &existing, &requested)
        })
        .unwrap_or_else(|| failure(error))
}

fn allocation(id: Option<&str>) -> Option<AllocationId> {
    AllocationId::new(id?).ok()
}

fn print_active(partition: &PartitionDocument, format: Format, output: &Output) -> Result<Code, Failure> {
    let controller = partition
        .controller
        .as_ref()
        .map(|controller| controller.name.to_string());
    output.say(&format!(
        "partition {} is active: {} of {}",
        partition.id,
        display::places(&partition.ipus),
        controller.unwrap_or_default()
    ));
    if !format.is_text() {
        output.result(&render(format, partition, String::new)?);
    }
    Ok(Code::Done)
}

/// Returns the error that names the controller, which alone reports the IPUoF configuration.
async fn config(id: &PartitionId, proxy: &ProxyClient) -> Result<Code, Failure> {
    let partition = proxy.partition(id).await.map_err(failure)?;
    let address = partition.controller.and_then(|controller| {
        let host = controller.host?;
        Some(format!("{host}:{}", controller.port?))
    });
    Err(match address {
        Some(address) => unsupported(
            "partition config",
            &format!("use its controller: ipuctl --proxy '' --vipu {address} partition config {id}"),
        ),
        None => unsupported("partition config", "and the partition has no controller yet"),
    })
}

/// Returns whether `partition create` created it, so that only its user knows whether it is in use.
fn is_manual(partition: &PartitionDocument) -> bool {
    partition
        .owner
        .as_ref()
        .is_some_and(|owner| owner.kind == MANUAL_OWNER)
}

/// Rejects partitions of jobs and of unknown owners.
fn require_manual(partition: &PartitionDocument, instead: &str) -> Result<(), Failure> {
    if is_manual(partition) {
        return Ok(());
    }
    let message = match &partition.owner {
        Some(owner) => format!("partition {} is held by {owner}; {instead}", partition.id),
        None => format!(
            "partition {} is quarantined: it has no known owner; {instead}",
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
        require_manual(&partition, "end it first, or use --force")?;
    }
    let mut deletion = DeletePartition::default();
    // Releases the observed partition only, and not a later one with the same id.
    deletion.uid = partition.owner.as_ref().map(|owner| owner.uid.clone());
    deletion.attempt = deletion.uid.as_ref().map(|_| partition.attempt);
    deletion.quarantined = force && partition.owner.is_none();
    let mut on_wait = |deleted: &ipu_proxy_client::DeletedDocument| {
        let detail = deleted.detail.clone().unwrap_or_default();
        output.status(Some(&format!("Releasing partition {id}: {detail}")));
    };
    let released = proxy.wait_released(id, &deletion, NO_TIMEOUT, &mut on_wait).await;
    output.status(None);
    released.map_err(failure)?;
    output.say(&format!("partition {id} removed"));
    if !format.is_text() {
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
    require_manual(&partition, "only its owner may reset it")?;
    if partition.state == HoldState::Waiting {
        let message = format!("partition {id} is queued and does not exist yet");
        return Err(Failure::new(Code::NotFound, message));
    }
    let mut request = ResetPartition::default();
    request.attempt = Some(partition.attempt.saturating_add(1));
    request.uid = partition.owner.map(|owner| owner.uid);
    let started: Result<_, ClientError> = proxy.reset(id, &request).await;
    let active = match started.map_err(failure)? {
        partition if partition.state == HoldState::Active => partition,
        _ => proxy
            .wait_active(id, NO_TIMEOUT, &mut |_| ())
            .await
            .map_err(failure)?,
    };
    print_active(&active, format, output)
}

/// Returns the table of the queue, in queue order.
fn queue_table(queue: &[PartitionDocument], summaries: &[PartitionSummary]) -> String {
    let mut table = Table::new(&[
        "POSITION",
        "PARTITION",
        "SIZE",
        "OWNER",
        "PRIORITY",
        "AGE",
        "REASON",
    ]);
    for (partition, summary) in queue.iter().zip(summaries) {
        let position = partition.waiting.as_ref().map(|waiting| waiting.position);
        table.row([
            position.map(|position| position.to_string()).unwrap_or_default(),
            summary.id.clone(),
            summary.size.to_string(),
            summary.owner.clone(),
            partition.priority.to_string(),
            time::age(partition.since, clock::now()),
            summary.queue_reason.clone(),
        ]);
    }
    table.text()
}
