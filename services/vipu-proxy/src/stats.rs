//! How many IPUs are used and free: the documented `/stats` and `/query` (seed 000 §6.9).

use std::collections::BTreeMap;

use ipu_core::{IpuCount, PartitionSpec, Timestamp, UsageRecord};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::partition::OwnerDocument;
use crate::problem::Problem;

/// The key of `/stats` for the whole system.
const TOTAL: &str = "total";

/// The numbers of one namespace, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// IPUs that the ledger holds.
    used: u32,
    /// Free IPUs of the whole system, the same number everywhere.
    available: u32,
}

/// The body of `POST /query`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    size: u32,
}

/// The answer of `POST /query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fit {
    /// Whether at least one controller answered.
    available: bool,
    /// How many partitions of the size fit now, over all controllers.
    num_of_partitions: u64,
    /// Why the number is not the whole truth; empty if it is.
    message: String,
}

/// `GET /stats`. A namespace that is called `total` is only counted in the total.
pub(crate) async fn stats(app: &App) -> Result<BTreeMap<String, Usage>, Problem> {
    let stats = app.ledger.stats().await?;
    let available = stats.available;
    let by_namespace = stats.by_namespace.into_iter();
    let mut usage: BTreeMap<String, Usage> = by_namespace
        .map(|(name, used)| (name.to_string(), Usage { used, available }))
        .collect();
    usage.insert(
        TOTAL.to_owned(),
        Usage {
            used: stats.used,
            available,
        },
    );
    Ok(usage)
}

/// IPUs by what they are, for the metrics.
pub(crate) async fn kinds(app: &App) -> Result<BTreeMap<&'static str, u32>, Problem> {
    let stats = app.ledger.stats().await?;
    Ok(BTreeMap::from([
        ("used", stats.used),
        ("available", stats.available),
        ("excluded", stats.excluded),
        ("foreign", stats.foreign),
        ("unhealthy", stats.unhealthy),
        ("all", stats.ipus),
    ]))
}

/// A hold that is over.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RecordDocument {
    id: String,
    owner: Option<OwnerDocument>,
    instance: u32,
    account: Option<String>,
    controller: Option<String>,
    size: u32,
    attempts: u32,
    held_since: Timestamp,
    released_at: Timestamp,
    end: &'static str,
}

/// `GET /v1/usage`: the holds that ended at `since`, in milliseconds since 1970, or later.
pub(crate) async fn usage(app: &App, since: u64) -> Result<Vec<RecordDocument>, Problem> {
    let records = app.ledger.usage_since(Timestamp::from_millis(since)).await?;
    let document = |record: UsageRecord| RecordDocument {
        id: record.id.to_string(),
        owner: record.owner.as_ref().map(OwnerDocument::from),
        instance: record.instance,
        account: record.account,
        controller: record.controller.map(|name| name.to_string()),
        size: record.size.get(),
        attempts: record.attempts,
        held_since: record.held_since,
        released_at: record.released_at,
        end: record.end.label(),
    };
    Ok(records.into_iter().map(document).collect())
}

/// `POST /query`. A size that no partition has is answered with the rule: that is how the documented clients ask.
pub(crate) async fn query(app: &App, query: Query) -> Result<Fit, Problem> {
    let (size, broken) = match IpuCount::try_from(query.size) {
        Ok(size) => (size, None),
        Err(error) => (IpuCount::ONE, Some(error.to_string())),
    };
    let rooms = app.ledger.query(&PartitionSpec::of_size(size)).await?;
    let available = rooms.iter().any(|(_, room)| room.is_ok());
    let mut silent = Vec::new();
    let mut fits = 0;
    for (_, room) in rooms {
        match room {
            Ok(room) => fits += u64::from(room.fits),
            Err(reason) => silent.push(reason.message),
        }
    }
    if !available && silent.is_empty() {
        silent.push("no controller is configured".to_owned());
    }
    Ok(Fit {
        available,
        num_of_partitions: if broken.is_some() { 0 } else { fits },
        message: broken.unwrap_or_else(|| silent.join("; ")),
    })
}
