//! `kubectl ipu controllers`, `machines`, `partitions`, `waiting` and `cordons`: the state of the proxy.

use ipu_core::Timestamp;
use ipu_proxy_client::cli::{self, Table, time};
use ipu_proxy_client::{BlockerDocument, HoldState, OwnerDocument, PartitionDocument, ProxyClient};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{self, render};

/// Prints the controllers. The exit code is 0 if all respond, else 69.
pub(crate) async fn controllers(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let list = proxy.controllers().await?;
    output::result(&render(format, &list, || cli::controllers(&list).to_string())?)?;
    Ok(if list.controllers.iter().all(|status| status.available) {
        Code::Done
    } else {
        Code::Unavailable
    })
}

/// Prints the machines of the controllers with their cordons and partitions.
pub(crate) async fn machines(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let list = proxy.controllers().await?;
    let cordons = proxy.cordons().await?.cordons;
    output::result(&render(format, &list, || {
        cli::machines(&list, &cordons).to_string()
    })?)?;
    Ok(Code::Done)
}

/// Prints the entries of the ledger, queued requests last. A note names the partitions of other programs.
pub(crate) async fn partitions(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let mut list = proxy.partitions().await?;
    list.sort_by_key(|partition| partition.state == HoldState::Waiting);
    let now = now();
    output::result(&render(format, &list, || partitions_table(&list, now))?)?;
    // The note is an addition: without it the answer is complete.
    let controllers = proxy.controllers().await.ok();
    if let Some(note) = controllers.as_ref().and_then(cli::foreign_partitions) {
        output::say(&note);
    }
    Ok(Code::Done)
}

/// Prints the queue in its order.
pub(crate) async fn waiting(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let queue = proxy.waiting().await?;
    let now = now();
    output::result(&render(format, &queue, || queue_table(&queue, now))?)?;
    Ok(Code::Done)
}

/// Prints the cordons.
pub(crate) async fn cordons(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let list = proxy.cordons().await?;
    let now = now();
    output::result(&render(format, &list, || {
        cli::cordons(&list.cordons, now).to_string()
    })?)?;
    Ok(Code::Done)
}

fn partitions_table(partitions: &[PartitionDocument], now: Timestamp) -> String {
    let mut table = Table::new(&[
        "PARTITION",
        "STATE",
        "SIZE",
        "CONTROLLER",
        "OWNER",
        "AGE",
        "REASON",
    ]);
    for partition in partitions {
        table.row([
            partition.id.to_string(),
            state(partition).to_owned(),
            partition.size.to_string(),
            text(partition.controller.as_ref().map(|controller| &controller.name)),
            owner(partition.owner.as_ref()),
            time::age(partition.held_since.unwrap_or(partition.since), now),
            reason(partition),
        ]);
    }
    table.to_string()
}

fn queue_table(queue: &[PartitionDocument], now: Timestamp) -> String {
    let mut table = Table::new(&[
        "POSITION", "OWNER", "INSTANCE", "SIZE", "PRIORITY", "AGE", "REASON", "BLOCKERS",
    ]);
    for request in queue {
        let waiting = request.waiting.as_ref();
        let blockers = waiting
            .map(|waiting| waiting.blockers.as_slice())
            .unwrap_or_default();
        table.row([
            text(waiting.map(|waiting| waiting.position)),
            owner(request.owner.as_ref()),
            request.instance.to_string(),
            request.size.to_string(),
            request.priority.to_string(),
            time::age(request.since, now),
            reason(request),
            blockers.iter().map(blocker).collect::<Vec<_>>().join(", "),
        ]);
    }
    table.to_string()
}

/// Returns the state with the words of `ipuctl partition list`.
fn state(partition: &PartitionDocument) -> &'static str {
    match partition.state {
        HoldState::Waiting => "queued",
        other => other.label(),
    }
}

/// Returns the reason why a partition is not active, or why its request is queued.
fn reason(partition: &PartitionDocument) -> String {
    let waiting = partition.waiting.as_ref().map(|waiting| &waiting.reason);
    let reason = waiting.or(partition.reason.as_ref());
    reason.map_or_else(String::new, |reason| {
        format!("{}: {}", reason.code, reason.message)
    })
}

fn blocker(blocker: &BlockerDocument) -> String {
    match &blocker.owner {
        Some(_) => owner(blocker.owner.as_ref()),
        None => blocker.id.to_string(),
    }
}

fn owner(owner: Option<&OwnerDocument>) -> String {
    owner.map_or_else(String::new, |owner| format!("{}/{}", owner.namespace, owner.name))
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Returns the current time.
pub(super) fn now() -> Timestamp {
    cli::time::of_jiff(jiff::Timestamp::now()).unwrap_or_default()
}
