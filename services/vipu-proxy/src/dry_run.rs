//! The `/v1/plan` endpoint: a dry run of the placement.

use ipu_core::PartitionId;
use ipu_core::hardware::PartitionSpec;
use ipu_proxy_client::{DryRunRequest, DryRunResponse, DryRunResult};

use crate::app::App;
use crate::partition_api::{allocation_of, parse_name, size_of};
use crate::problem::Problem;

/// Maximum number of sizes, and of partitions that are assumed to have ended, in one request: a Pod256 in
/// single IPUs.
const MAX_PARTITIONS: usize = 256;

/// Handles `POST /v1/plan`.
pub(crate) async fn plan(app: &App, body: DryRunRequest) -> Result<DryRunResponse, Problem> {
    if body.sizes.is_empty() || body.sizes.len() > MAX_PARTITIONS {
        let rule = format!("must have 1 to {MAX_PARTITIONS} sizes");
        return Err(Problem::invalid(
            "sizes",
            body.sizes.len(),
            rule,
            "send several requests",
        ));
    }
    if body.if_these_ended.len() > MAX_PARTITIONS {
        let rule = format!("must have at most {MAX_PARTITIONS} partitions");
        return Err(Problem::invalid(
            "ifTheseEnded",
            body.if_these_ended.len(),
            rule,
            "remove some",
        ));
    }
    let allocation = allocation_of(body.allocation)?;
    let spec_of = |size| {
        let mut spec = PartitionSpec::of_size(size_of("sizes", size)?);
        spec.allocation.clone_from(&allocation);
        Ok(spec)
    };
    let sizes = body.sizes.into_iter();
    let specs: Vec<PartitionSpec> = sizes.map(spec_of).collect::<Result<_, Problem>>()?;
    let ended: Vec<PartitionId> = body
        .if_these_ended
        .into_iter()
        .map(|id| parse_name("ifTheseEnded", id))
        .collect::<Result<_, _>>()?;
    let _permit = app.acquire_read().await;
    let results = app.allocator.fresh_view().await?.dry_run(&specs, &ended);
    let results = results.into_iter().map(|result| {
        let mut document = DryRunResult::new(result.size.get(), result.controller, result.reasons);
        document.ipus = result.places;
        document.blockers = result.blockers;
        document
    });
    Ok(DryRunResponse::new(results.collect()))
}
