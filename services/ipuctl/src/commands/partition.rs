//! `ipuctl partition …` and `ipuctl waiting`.

use std::time::Duration;

use ipu_core::hardware::{PartitionSpec, SpecError};
use ipu_core::{AllocationId, IpuCount, PartitionId};
use ipu_proxy_client::{
    ClientError, ControllerDocument, ControllerList, ControllerStatus, DeletePartition, HoldState,
    OnNoCapacity, OwnerDocument, PartitionDocument, PutPartition, ResetPartition,
};
use serde::Serialize;
use tokio::sync::watch;

use super::partition_table::{self, PartitionSummary};
use super::{gc, partition_watch};
use crate::cli::{Format, Partition};
use crate::connection::{Connection, does_not_fit, other_properties};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::user;
use crate::output::Output;
use crate::signals::Signals;
use crate::table::{Table, render};
use crate::time;

/// Owner kind of partitions that `ipuctl partition create` creates.
const MANUAL_OWNER: &str = "User";

/// Timeout of the withdrawal of an interrupted request. The release is recorded within milliseconds; its
/// removal by a slow controller takes seconds.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of waits that the user interrupts.
const NO_TIMEOUT: Duration = Duration::MAX;

/// Uid of the owner of partitions that `partition create` creates.
const OWNER_UID: &str = "by-hand";

/// Runs the subcommand.
pub(crate) async fn run(
    command: Partition,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let proxy = &connection.proxy;
    match command {
        Partition::List { watch: true } => {
            let list = async || {
                let partitions = proxy.partitions().await?;
                Ok(summarize(&partitions, connection).await)
            };
            partition_watch::watch(list, format, output).await
        }
        Partition::List { watch: false } => {
            let partitions = proxy.partitions().await?;
            let mut summaries = summarize(&partitions, connection).await;
            let foreign = foreign(&proxy.controllers().await?);
            summaries.extend(foreign.iter().map(ForeignPartition::summary));
            let own = partitions.iter().map(ListedPartition::Own);
            let listed: Vec<ListedPartition<'_>> =
                own.chain(foreign.iter().map(ListedPartition::Foreign)).collect();
            partition_table::print(&summaries, &listed, format, output)
        }
        Partition::Get { id } => {
            let partition = proxy.partition(&id).await?;
            let summaries = summarize(std::slice::from_ref(&partition), connection).await;
            partition_table::print(&summaries, &partition, format, output)
        }
        Partition::Describe { id } => {
            let partition = proxy.partition(&id).await?;
            let summaries = summarize(std::slice::from_ref(&partition), connection).await;
            partition_table::print_description(&summaries[0], &partition, format, output)
        }
        Partition::Config { id, gcd } => config(&id, gcd, connection, format, output).await,
        Partition::Remove { id, force } => remove(&id, force, connection, format, output).await,
        Partition::Reset { id } => reset(&id, connection, format, output).await,
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
            let owner = OwnerDocument::new(MANUAL_OWNER, namespace, id.as_str(), OWNER_UID);
            let mut request = PutPartition::new(owner, size.get());
            request.gcds = Some(num_gcds);
            request.replicas = num_replicas;
            request.reconfigurable = reconfigurable;
            request.allocation = allocation.map(|allocation| allocation.to_string());
            request.priority = priority;
            request.preemptible = preemptible;
            if connection.is_local() {
                connection.require_answer().await?;
                gc::sweep(connection).await?.report(output);
                // The place in the queue ends with this process, and the partition outlives it.
                request.process_id = Some(std::process::id());
            }
            output.transient(&format!("Creating partition {id}…"));
            let partition = create(&id, &request, no_wait, connection, output).await?;
            print_active(&partition, connection, format, output).await
        }
    }
}

/// Rejects a request that no controller accepts, before it has an effect.
pub(crate) fn check(command: &Partition) -> Result<(), Failure> {
    let Partition::Create {
        size,
        num_gcds,
        num_replicas,
        reconfigurable,
        ..
    } = command
    else {
        return Ok(());
    };
    let mut spec = PartitionSpec::of_size(*size);
    spec.gcds = *num_gcds;
    spec.replicas = num_replicas.unwrap_or(*num_gcds);
    spec.reconfigurable = *reconfigurable;
    spec.check().map_err(|error| {
        let option = match error {
            SpecError::Gcds { gcds, .. } => format!("--num-gcds {gcds}"),
            SpecError::Replicas { replicas, .. } => format!("--num-replicas {replicas}"),
            _ => format!("--{}", error.field()),
        };
        Failure::new(Code::Data, format!("{option}: {error}; {}", error.fix()))
    })
}

/// Prints the queue.
pub(crate) async fn waiting(
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let queue = connection.proxy.waiting().await?;
    if format.is_text() && queue.is_empty() {
        output.say("No queued requests found.");
        return Ok(Code::Done);
    }
    let summaries = summarize(&queue, connection).await;
    output.result(&render(format, &queue, || queue_table(&queue, &summaries))?);
    Ok(Code::Done)
}

/// Returns what is shown of partitions.
/// A partition of the list, as JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ListedPartition<'a> {
    Own(&'a PartitionDocument),
    Foreign(&'a ForeignPartition),
}

/// A partition at a controller that the ledger does not record.
#[derive(Debug, Serialize)]
struct ForeignPartition {
    id: PartitionId,
    /// Always `foreign`.
    state: &'static str,
    size: u32,
    controller: ControllerDocument,
}

impl ForeignPartition {
    fn summary(&self) -> PartitionSummary {
        PartitionSummary {
            id: self.id.to_string(),
            state: self.state.to_owned(),
            size: self.size,
            controller: self.controller.name.to_string(),
            ..PartitionSummary::default()
        }
    }
}

/// Returns the partitions of other programs at the controllers.
fn foreign(list: &ControllerList) -> Vec<ForeignPartition> {
    let of_controller = |status: &ControllerStatus| {
        let controller = status.controller.clone();
        let foreign = status.foreign.iter().cloned();
        let foreign = foreign.map(move |partition| ForeignPartition {
            id: partition.id,
            state: "foreign",
            size: partition.size,
            controller: controller.clone(),
        });
        foreign.collect::<Vec<_>>()
    };
    list.controllers.iter().flat_map(of_controller).collect()
}

async fn summarize(partitions: &[PartitionDocument], connection: &Connection) -> Vec<PartitionSummary> {
    let reasons = partitions
        .iter()
        .filter_map(|partition| partition.waiting.as_ref())
        .map(|waiting| &waiting.reason);
    let cordons = connection.cordons_for(reasons).await;
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
    connection: &Connection,
    output: &Output,
) -> Result<PartitionDocument, Failure> {
    let proxy = &connection.proxy;
    let mut signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    if no_wait {
        // A request that its owner has queued already is not withdrawn.
        if let Ok(existing) = proxy.partition(id).await
            && existing.owner.as_ref() == Some(&request.owner)
            && let Some(waiting) = &existing.waiting
        {
            return Err(does_not_fit(&format!("partition {id}"), &waiting.reason));
        }
        // An admitted request waits for the controller only, unless the controller rejects it.
        match proxy.put(id, request, OnNoCapacity::Reject).await {
            Ok(partition) if partition.state == HoldState::Active => {
                return keep(partition, request, connection).await;
            }
            Ok(_) => {}
            Err(error) => return Err(request_failure(error, id, request, connection).await),
        }
    }
    let (reject, mut rejected) = watch::channel(None);
    let mut on_wait = |partition: &PartitionDocument| {
        let text = match &partition.waiting {
            Some(waiting) => display::wait_status(waiting, &[]),
            None => partition_table::progress(partition, &[]),
        };
        let reason = partition.waiting.as_ref().map(|waiting| &waiting.reason);
        if let Some(reason) = reason.filter(|reason| no_wait || reason.code.is_permanent()) {
            reject.send_replace(Some(reason.clone()));
        } else if partition.waiting.is_some() || !partition.state.is_in_progress() {
            output.status(Some(&text));
        } else {
            output.transient(&text);
        }
    };
    let active = async {
        loop {
            match proxy.ensure_active(id, request, NO_TIMEOUT, &mut on_wait).await {
                // The local server was killed or replaced.
                Err(ClientError::Unreachable { .. } | ClientError::ConnectionLost { .. })
                    if connection.is_local() =>
                {
                    connection.restart_local_server().await?;
                }
                Err(error) => return Err(request_failure(error, id, request, connection).await),
                Ok(partition) => return Ok(partition),
            }
        }
    };
    let error = tokio::select! {
        active = active => {
            output.status(None);
            return keep(active?, request, connection).await;
        }
        Ok(reason) = rejected.wait_for(Option::is_some) => {
            let failure = reason.as_ref().map(|reason| does_not_fit(&format!("partition {id}"), reason));
            failure.unwrap_or_else(|| Failure::new(Code::NoCapacity, format!("partition {id} does not fit now")))
        }
        () = signals.next() => {
            // The request has been dropped here, so that it cannot enter the queue again.
            output.status(None);
            withdraw_interrupted(id, request, connection, &mut signals, output).await;
            output.say("Interrupted.");
            return Err(Failure::reported(Code::Signal(signals.first().unwrap_or(2))));
        }
    };
    output.status(None);
    proxy.delete(id, &withdrawal(request)).await?;
    Err(error)
}

/// Ends the observation of this process, because the partition outlives it.
async fn keep(
    partition: PartitionDocument,
    request: &PutPartition,
    connection: &Connection,
) -> Result<PartitionDocument, Failure> {
    if request.process_id.is_none() {
        return Ok(partition);
    }
    let mut kept = request.clone();
    kept.process_id = Some(0);
    let wait = OnNoCapacity::Queue(Duration::ZERO);
    connection
        .proxy
        .put(&partition.id, &kept, wait)
        .await
        .map_err(Failure::from)
}

fn withdrawal(request: &PutPartition) -> DeletePartition {
    let mut withdrawal = DeletePartition::default();
    withdrawal.uid = Some(request.owner.uid.clone());
    withdrawal.attempt = Some(request.attempt);
    withdrawal
}

/// Withdraws the interrupted request of this process, until [`WITHDRAW_TIMEOUT`] or another signal. The proxy
/// completes an unfinished withdrawal. A partition that existed before, and a request that another process
/// has repeated since, are kept.
async fn withdraw_interrupted(
    id: &PartitionId,
    request: &PutPartition,
    connection: &Connection,
    signals: &mut Signals,
    output: &Output,
) {
    let proxy = &connection.proxy;
    let work = async {
        let existing = match proxy.partition(id).await {
            Err(error) if error.code() == Some("NotFound") => return Ok(()),
            existing => existing?,
        };
        let is_unfinished = existing.state == HoldState::Waiting || existing.state.is_in_progress();
        if existing.owner.as_ref() != Some(&request.owner)
            || existing.attempt != request.attempt
            || existing.process_id != request.process_id
            || !is_unfinished
        {
            return Ok(());
        }
        let mut on_wait = |deleted: &ipu_proxy_client::DeletedDocument| {
            let detail = deleted.detail.clone().unwrap_or_default();
            output.status(Some(&format!("Releasing partition {id}: {detail}")));
        };
        let withdrawal = withdrawal(request);
        let released = proxy.wait_released(id, &withdrawal, WITHDRAW_TIMEOUT, &mut on_wait);
        released.await.map_err(Failure::from)
    };
    let failure = tokio::select! {
        result = work => result.err().map(|failure| failure.chain()),
        () = signals.next() => Some("interrupted again".to_owned()),
    };
    output.status(None);
    if let Some(failure) = failure {
        output.warn(&format!("partition {id} is not released yet: {failure}"));
    }
}

/// Maps an error of the client to a failure, which shows how an existing partition differs from the request.
async fn request_failure(
    error: ClientError,
    id: &PartitionId,
    request: &PutPartition,
    connection: &Connection,
) -> Failure {
    if error.code() == Some("DoesNotFit")
        && let Some(reason) = error.reason()
    {
        return does_not_fit(&format!("partition {id}"), reason);
    }
    if error.code() != Some("OtherProperties") {
        return error.into();
    }
    let existing = connection.proxy.partition(id).await.ok();
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
        .unwrap_or_else(|| error.into())
}

fn allocation(id: Option<&str>) -> Option<AllocationId> {
    AllocationId::new(id?).ok()
}

async fn print_active(
    partition: &PartitionDocument,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    // The document of the single partition has its IPUs.
    let observed = connection.proxy.partition(&partition.id).await;
    let partition = observed.as_ref().unwrap_or(partition);
    output.say(&display::active(partition, &partition.ipus));
    if !format.is_text() {
        output.result(&render(format, partition, String::new)?);
    }
    Ok(Code::Done)
}

/// Prints the IPUoF configuration of a GCD, or of all.
async fn config(
    id: &PartitionId,
    gcd: Option<u32>,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let config = connection.proxy.ipuof_config(id, gcd).await?;
    let format = if format.is_text() { Format::Json } else { format };
    // A configuration file has one GCD; several GCDs need the outer document.
    let text = match config.files.as_slice() {
        [one] => render(format, &one.config, String::new)?,
        _ => render(format, &config, String::new)?,
    };
    output.result(&text);
    Ok(Code::Done)
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
struct RemovedPartition<'a> {
    id: &'a PartitionId,
    removed: bool,
}

async fn remove(
    id: &PartitionId,
    force: bool,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let proxy = &connection.proxy;
    let partition = proxy.partition(id).await?;
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
    released?;
    output.say(&format!("partition {id} removed"));
    if !format.is_text() {
        output.result(&render(
            format,
            &RemovedPartition { id, removed: true },
            String::new,
        )?);
    }
    Ok(Code::Done)
}

async fn reset(
    id: &PartitionId,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let proxy = &connection.proxy;
    output.transient(&format!("Resetting partition {id}…"));
    let partition = proxy.partition(id).await?;
    require_manual(&partition, "only its owner may reset it")?;
    if partition.state == HoldState::Waiting {
        let message = format!("partition {id} is queued and does not exist yet");
        return Err(Failure::new(Code::NotFound, message));
    }
    let mut request = ResetPartition::default();
    request.attempt = Some(partition.attempt.saturating_add(1));
    request.uid = partition.owner.map(|owner| owner.uid);
    let started: Result<_, ClientError> = proxy.reset(id, &request).await;
    let active = match started? {
        partition if partition.state == HoldState::Active => partition,
        _ => proxy.wait_active(id, NO_TIMEOUT, &mut |_| ()).await?,
    };
    print_active(&active, connection, format, output).await
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
            time::age(partition.since, ipu_proxy_client::now()),
            summary.queue_reason.clone(),
        ]);
    }
    table.to_string()
}
