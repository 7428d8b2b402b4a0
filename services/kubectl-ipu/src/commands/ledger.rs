//! `kubectl ipu stats`, `usage`, `repair` and `release`: the ledger of the proxy.

use std::time::Duration;

use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::{DeletePartition, DeletedDocument, HoldState, ProxyClient, RecordDocument};
use ipu_proxy_client::{RepairDocument, Stats};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{self, Table, render};
use crate::proxy::failure;
use crate::time;

/// Time that the proxy has to remove a partition before the release is reported as unfinished.
const RELEASE_WAIT: Duration = Duration::from_secs(30);

/// Prints the used and available IPUs of each namespace.
pub(crate) fn stats(stats: &Stats, format: Format) -> Result<Code, Failure> {
    let table = || {
        let mut table = Table::new(&["NAMESPACE", "USED", "AVAILABLE"]);
        let (totals, namespaces): (Vec<_>, Vec<_>) =
            stats.0.iter().partition(|(name, _)| *name == Stats::TOTAL);
        for (name, usage) in namespaces.into_iter().chain(totals) {
            table.row([name.clone(), usage.used.to_string(), usage.available.to_string()]);
        }
        table.text()
    };
    output::result(&render(format, stats, table)?)?;
    Ok(Code::Done)
}

/// Prints the holds that ended at `since` or later.
pub(crate) async fn usage(since: &str, proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let parsed = time::parse(since, jiff::Timestamp::now())
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .ok_or_else(|| Failure::new(Code::Usage, format!("--since {since:?}: {}", time::FORMATS)))?;
    let list = proxy
        .usage(Timestamp::from_millis(parsed))
        .await
        .map_err(failure)?;
    output::result(&render(format, &list, || usage_table(&list.records))?)?;
    Ok(Code::Done)
}

fn usage_table(records: &[RecordDocument]) -> String {
    let mut table = Table::new(&[
        "PARTITION",
        "OWNER",
        "ACCOUNT",
        "SIZE",
        "ATTEMPTS",
        "SECONDS",
        "IPU-SECONDS",
        "END",
    ]);
    for record in records {
        let owner = record.owner.as_ref();
        let seconds = record.released_at.since(record.held_since).as_secs();
        table.row([
            record.id.to_string(),
            owner.map_or_else(String::new, |owner| format!("{}/{}", owner.namespace, owner.name)),
            record.account.clone().unwrap_or_default(),
            record.size.to_string(),
            record.attempts.to_string(),
            seconds.to_string(),
            (seconds * u64::from(record.size)).to_string(),
            record.end.clone(),
        ]);
    }
    table.text()
}

/// Compares ledger, controllers and owners now, and prints the repairs.
pub(crate) async fn repair(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let repair = proxy.repair().await.map_err(failure)?;
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
    proxy.partition(&id).await.map_err(failure)?;
    let mut options = DeletePartition::default();
    options.quarantined = quarantined;
    options.wait = RELEASE_WAIT;
    let deleted = proxy.delete(&id, &options).await.map_err(failure)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unfinished_release_is_no_success() {
        let id = PartitionId::new("p-training-0").unwrap();
        let (text, code) = outcome(&DeletedDocument::deleted(id.clone()));
        assert_eq!(
            (text.as_str(), code),
            ("partition p-training-0 released\n", Code::Done)
        );
        let (text, code) = outcome(&DeletedDocument::releasing(
            id,
            "pod1:8090 does not respond".into(),
        ));
        assert_eq!(
            (text.as_str(), code),
            (
                "partition p-training-0 is being released: pod1:8090 does not respond; the proxy completes the release\n",
                Code::Unavailable
            )
        );
    }
}
