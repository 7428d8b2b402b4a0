//! How many IPUs are used and free: the documented `/stats` and `/query` (seed 000 §6.9).

use std::collections::BTreeMap;

use ipu_core::{IpuCount, PartitionSpec};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::problem::Problem;

/// The key of `/stats` for the whole system.
const TOTAL: &str = "total";

/// The numbers of one namespace, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Usage {
    /// IPUs that the ledger holds.
    used: u64,
    /// Free IPUs of the whole system, the same number everywhere.
    available: u64,
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

/// `GET /stats`.
pub(crate) async fn stats(app: &App) -> Result<BTreeMap<String, Usage>, Problem> {
    let rooms = app.ledger.query(&PartitionSpec::of_size(IpuCount::ONE)).await?;
    let free = rooms.iter().filter_map(|(_, room)| room.as_ref().ok());
    let available = free.map(|room| u64::from(room.free)).sum();
    let mut used: BTreeMap<String, u64> = BTreeMap::from([(TOTAL.to_owned(), 0)]);
    for entry in app
        .ledger
        .list()
        .await?
        .iter()
        .filter(|entry| entry.state.holds())
    {
        let size = u64::from(entry.spec.size.get());
        *used.entry(TOTAL.to_owned()).or_default() += size;
        let namespace = entry.owner.as_ref().map(|owner| owner.job.namespace.as_str());
        if let Some(namespace) = namespace.filter(|name| *name != TOTAL) {
            *used.entry(namespace.to_owned()).or_default() += size;
        }
    }
    let usage = used
        .into_iter()
        .map(|(name, used)| (name, Usage { used, available }));
    Ok(usage.collect())
}

/// IPUs by what they are, for the metrics.
pub(crate) async fn kinds(app: &App) -> Result<BTreeMap<&'static str, u64>, Problem> {
    let usage = stats(app).await?;
    let total = usage.get(TOTAL).copied();
    let total = total.unwrap_or(Usage {
        used: 0,
        available: 0,
    });
    Ok(BTreeMap::from([
        ("used", total.used),
        ("available", total.available),
    ]))
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
