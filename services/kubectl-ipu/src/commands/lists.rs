//! `kubectl ipu top`, `controllers`, `machines`, `partitions`, `waiting`, `cordons`: the state of the proxy.

use std::io::{IsTerminal as _, stdout};

use ipu_core::Timestamp;
use ipu_proxy_client::cli::top::{self, TerminalOptions};
use ipu_proxy_client::cli::{self, Table, time};
use ipu_proxy_client::{BlockerDocument, HoldState, OwnerDocument, PartitionDocument, ProxyClient, now};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{self, render};

/// Shows map, queue and controllers on a terminal until the user ends it, else prints one picture, or the map
/// as a document.
pub(crate) async fn top(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let options = TerminalOptions::from_variables(|name| std::env::var(name).ok());
    if format != Format::Table {
        let map = proxy.map().await?;
        output::result(&render(format, &map, String::new)?)?;
    } else if stdout().is_terminal() {
        top::watch(proxy, options).await?;
    } else {
        output::result(&top::picture(proxy, options.utf8).await?)?;
    }
    Ok(Code::Done)
}

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
            cli::state_label(partition.state).to_owned(),
            partition.size.to_string(),
            cli::text_or_empty(partition.controller.as_ref().map(|controller| &controller.name)),
            cli::text_or_empty(partition.owner.as_ref().map(OwnerDocument::qualified_name)),
            time::age(partition.held_since.unwrap_or(partition.since), now),
            reason_text(partition),
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
            cli::text_or_empty(waiting.map(|waiting| waiting.position)),
            cli::text_or_empty(request.owner.as_ref().map(OwnerDocument::qualified_name)),
            request.instance.to_string(),
            request.size.to_string(),
            request.priority.to_string(),
            time::age(request.since, now),
            reason_text(request),
            blockers.iter().map(blocker_name).collect::<Vec<_>>().join(", "),
        ]);
    }
    table.to_string()
}

/// Returns the reason why a partition is not active, or why its request is queued.
fn reason_text(partition: &PartitionDocument) -> String {
    let waiting = partition.waiting.as_ref().map(|waiting| &waiting.reason);
    let reason = waiting.or(partition.reason.as_ref());
    reason.map_or_else(String::new, |reason| {
        format!("{}: {}", reason.code, reason.message)
    })
}

fn blocker_name(blocker: &BlockerDocument) -> String {
    let owner = blocker.owner.as_ref();
    owner.map_or_else(|| blocker.id.to_string(), OwnerDocument::qualified_name)
}
