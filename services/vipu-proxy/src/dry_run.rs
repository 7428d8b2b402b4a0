//! What would fit if: `POST /v1/plan`.

use ipu_core::{IpuCount, PartitionId};
use ipu_proxy_client::{DryRunRequest, DryRunResponse, Planned};

use crate::app::App;
use crate::partition_api::{named, size_of};
use crate::problem::Problem;

/// Most sizes, and most partitions that are thought away, in one question: a Pod256 in single IPUs.
const MAX_PARTITIONS: usize = 256;

/// The answer of the question.
pub(crate) async fn plan(app: &App, asked: DryRunRequest) -> Result<DryRunResponse, Problem> {
    if asked.sizes.is_empty() || asked.sizes.len() > MAX_PARTITIONS {
        let rule = format!("must name 1 to {MAX_PARTITIONS} sizes");
        return Err(Problem::invalid(
            "sizes",
            asked.sizes.len(),
            rule,
            "ask several times",
        ));
    }
    if asked.if_these_ended.len() > MAX_PARTITIONS {
        let rule = format!("must name at most {MAX_PARTITIONS} partitions");
        return Err(Problem::invalid(
            "ifTheseEnded",
            asked.if_these_ended.len(),
            rule,
            "leave some out",
        ));
    }
    let sizes: Vec<IpuCount> = asked
        .sizes
        .into_iter()
        .map(|size| size_of("sizes", size))
        .collect::<Result<_, _>>()?;
    let ended: Vec<PartitionId> = asked
        .if_these_ended
        .into_iter()
        .map(|id| named("ifTheseEnded", id))
        .collect::<Result<_, _>>()?;
    let planned = app.ledger.dry_run(&sizes, &ended).await?;
    let planned = planned
        .into_iter()
        .map(|answer| Planned::new(answer.size.get(), answer.controller, answer.why));
    Ok(DryRunResponse::new(planned.collect()))
}
