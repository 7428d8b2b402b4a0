//! The `/v1/plan` endpoint: a dry run of the placement.

use ipu_core::{IpuCount, PartitionId};
use ipu_proxy_client::{DryRunRequest, DryRunResponse, Planned};

use crate::app::App;
use crate::partition_api::{parse_name, size_of};
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
    let sizes: Vec<IpuCount> = body
        .sizes
        .into_iter()
        .map(|size| size_of("sizes", size))
        .collect::<Result<_, _>>()?;
    let ended: Vec<PartitionId> = body
        .if_these_ended
        .into_iter()
        .map(|id| parse_name("ifTheseEnded", id))
        .collect::<Result<_, _>>()?;
    let planned = app.ledger.dry_run(&sizes, &ended).await?;
    let planned = planned
        .into_iter()
        .map(|planned| Planned::new(planned.size.get(), planned.controller, planned.reasons));
    Ok(DryRunResponse::new(planned.collect()))
}
