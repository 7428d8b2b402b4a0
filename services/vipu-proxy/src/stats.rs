//! Used and free IPUs: the documented `/stats` and `/query` (V-IPU guide §6.9), and usage records.

use std::collections::BTreeMap;

use ipu_allocator::UsagePosition;
use ipu_core::hardware::PartitionSpec;
use ipu_core::{IpuCount, Timestamp};
use ipu_proxy_client::{CapacityQuery, Fit, RecordDocument, RecordList, Stats, Usage};

use crate::app::App;
use crate::partition_api::allocation_of;
use crate::problem::Problem;
use crate::query::Params;

/// Handles `GET /stats`.
pub(crate) async fn stats(app: &App) -> Result<Stats, Problem> {
    let stats = app.allocator.fresh_view().await?.stats();
    let usage = |used| Usage::new(used, stats.available);
    let by_namespace = stats.by_namespace.iter();
    let mut all = Stats(
        by_namespace
            .map(|(name, used)| (name.to_string(), usage(*used)))
            .collect(),
    );
    // The total replaces a namespace of that name.
    all.0.insert(Stats::TOTAL.to_owned(), usage(stats.used));
    Ok(all)
}

/// Counts IPUs by kind, for the metrics.
pub(crate) fn ipus_by_kind(stats: &ipu_core::allocator::Stats) -> BTreeMap<&'static str, u32> {
    BTreeMap::from([
        ("used", stats.used),
        ("available", stats.available),
        ("cordoned", stats.cordoned),
        ("foreign", stats.foreign),
        ("leaked", stats.leaked),
        ("quarantined", stats.quarantined),
        ("unhealthy", stats.unhealthy),
        ("all", stats.ipus),
    ])
}

/// Handles `GET /v1/usage`: a page of the holds that ended at `since`, in milliseconds since 1970, or later.
pub(crate) async fn usage(app: &App, params: &Params) -> Result<RecordList, Problem> {
    let (since, after) = (Timestamp::from_millis(params.since), params.after.as_ref());
    let records = {
        // A log in ConfigMaps is read completely for each page.
        let _lock = app.usage_reads.lock().await;
        // One more record shows that there is another page.
        app.allocator.usage(since, after, params.limit + 1).await?
    };
    let (page, rest) = records.split_at(params.limit.min(records.len()));
    let mut list = RecordList::new(page.iter().map(RecordDocument::from).collect());
    if !rest.is_empty() {
        list.continue_token = page.last().map(|last| UsagePosition::from(last).to_string());
    }
    Ok(list)
}

/// Handles `POST /query`. The answer to an invalid size is the rule in `message`, which the documented
/// clients expect.
pub(crate) async fn query(app: &App, query: CapacityQuery) -> Result<Fit, Problem> {
    let (size, broken_rule) = match IpuCount::try_from(query.size) {
        Ok(size) => (size, None),
        Err(error) => (IpuCount::ONE, Some(error.to_string())),
    };
    let mut spec = PartitionSpec::of_size(size);
    spec.allocation = allocation_of(query.allocation)?;
    let capacities = app.allocator.fresh_view().await?.free_capacity(&spec);
    let available = capacities.iter().any(|(_, capacity)| capacity.is_ok());
    let mut errors = Vec::new();
    let mut fits = 0;
    for (_, capacity) in capacities {
        match capacity {
            Ok(capacity) => fits += u64::from(capacity.fit_count),
            Err(reason) => errors.push(reason.message),
        }
    }
    if !available && errors.is_empty() {
        errors.push("no controller is configured".to_owned());
    }
    let mut fit = Fit::default();
    fit.available = available;
    fit.num_of_partitions = if broken_rule.is_some() { 0 } else { fits };
    fit.message = broken_rule.unwrap_or_else(|| errors.join("; "));
    Ok(fit)
}
