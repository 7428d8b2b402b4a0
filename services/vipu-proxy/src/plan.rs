//! What would fit if: `POST /v1/plan`.

use ipu_core::{IpuCount, PartitionId, Reason};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::app::App;
use crate::partition::{named, size_of};
use crate::problem::Problem;

/// Most sizes, and most partitions that are thought away, in one question: a Pod256 in single IPUs.
const MOST: usize = 256;

/// The body of `POST /v1/plan`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Plan {
    sizes: Vec<u32>,
    #[serde(default)]
    if_these_ended: Vec<String>,
}

/// What would become of one size.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Planned {
    size: u32,
    fits: bool,
    controller: Option<String>,
    /// What each controller says that has no room.
    reasons: Vec<ControllerReason>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct ControllerReason {
    controller: String,
    #[serde(flatten)]
    reason: Reason,
}

/// The answer of the question.
pub(crate) async fn plan(app: &App, asked: Plan) -> Result<Value, Problem> {
    if asked.sizes.is_empty() || asked.sizes.len() > MOST {
        let rule = format!("must name 1 to {MOST} sizes");
        return Err(Problem::invalid(
            "sizes",
            asked.sizes.len(),
            rule,
            "ask several times",
        ));
    }
    if asked.if_these_ended.len() > MOST {
        let rule = format!("must name at most {MOST} partitions");
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
    let planned = app.ledger.what_if(&sizes, &ended).await?;
    let planned: Vec<Planned> = planned
        .into_iter()
        .map(|answer| Planned {
            size: answer.size.get(),
            fits: answer.controller.is_some(),
            controller: answer.controller.map(|name| name.to_string()),
            reasons: answer
                .why
                .into_iter()
                .map(|(controller, reason)| ControllerReason {
                    controller: controller.to_string(),
                    reason,
                })
                .collect(),
        })
        .collect();
    Ok(serde_json::json!({"planned": planned}))
}
