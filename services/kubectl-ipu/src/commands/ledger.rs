//! `kubectl ipu stats`, `usage`, `repair` and `release`: the ledger of the proxy.

use ipu_core::PartitionId;
use ipu_proxy_client::cli::{self, time};
use ipu_proxy_client::now;
use ipu_proxy_client::{DeletePartition, DeletedDocument, HoldState, MAX_WAIT, ProxyClient, RepairDocument};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{self, render};

/// Prints the used and available IPUs of each namespace.
pub(crate) async fn stats(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let stats = proxy.stats().await?;
    output::result(&render(format, &stats, || cli::stats(&stats).to_string())?)?;
    // The note is an addition: without it the answer is complete.
    let controllers = proxy.controllers().await.ok();
    if let Some(note) = controllers.as_ref().and_then(cli::foreign_partitions) {
        output::say(&note);
    }
    Ok(Code::Done)
}

/// Prints the holds that ended at `since` or later.
pub(crate) async fn usage(since: &str, proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let time = time::parse(since, now())
        .ok_or_else(|| Failure::new(Code::Usage, format!("--since {since:?}: {}", time::FORMATS)))?;
    let list = proxy.usage(time).await?;
    output::result(&render(format, &list, || cli::usage(&list.records).to_string())?)?;
    Ok(Code::Done)
}

/// Compares ledger, controllers and owners now, and prints the repairs.
pub(crate) async fn repair(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let repair = proxy.repair().await?;
    output::result(&render(format, &repair, || repair_text(&repair))?)?;
    Ok(if repair.is_settled() {
        Code::Done
    } else {
        Code::Unavailable
    })
}

fn repair_text(repair: &RepairDocument) -> String {
    let mut lines = Vec::new();
    for action in &repair.done {
        lines.push(format!("{}: {}", action.id, action.action));
    }
    for unfinished in &repair.unfinished {
        lines.push(format!("{}: not finished: {}", unfinished.id, unfinished.reason));
    }
    for unavailable in &repair.unavailable {
        lines.push(format!(
            "{}: unavailable: {}",
            unavailable.controller, unavailable.reason
        ));
    }
    let (done, quarantined) = (repair.done.len(), repair.quarantined);
    lines.push(format!("{done} repairs, {quarantined} partitions in quarantine"));
    lines.join("\n") + "\n"
}

/// Releases a partition; a quarantined one only with `quarantined`.
pub(crate) async fn release(
    id: &str,
    quarantined: bool,
    proxy: &ProxyClient,
    format: Format,
) -> Result<Code, Failure> {
    let id = PartitionId::new(id).map_err(|error| Failure::because(Code::Usage, "partition", error))?;
    // The deletion of an unknown id succeeds, so that clients can repeat it.
    proxy.partition(&id).await?;
    let mut options = DeletePartition::default();
    options.quarantined = quarantined;
    // A controller that answers late delays the removal by up to 30 s.
    options.wait = MAX_WAIT;
    let deleted = proxy.delete(&id, &options).await?;
    let (text, code) = outcome(&deleted);
    output::result(&render(format, &deleted, || text)?)?;
    Ok(code)
}

/// Returns whether the partition is released, or why its release is not finished.
fn outcome(deleted: &DeletedDocument) -> (String, Code) {
    let id = &deleted.id;
    if deleted.state == HoldState::Gone {
        return (format!("partition {id} released\n"), Code::Done);
    }
    let reason = deleted.detail.as_deref().unwrap_or("the controller removes it");
    let text = format!("partition {id} is being released: {reason}; the proxy completes the release\n");
    (text, Code::Unavailable)
}
