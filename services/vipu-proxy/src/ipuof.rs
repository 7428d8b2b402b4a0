//! The `/v1/partitions/{id}/ipuof-config` endpoint.

use http::StatusCode;
use ipu_allocator::AllocatorError;
use ipu_core::PartitionId;
use ipu_core::allocator::Entry;
use ipu_proxy_client::{HoldState, IpuofConfigDocument};

use crate::app::App;
use crate::problem::Problem;

/// Handles `GET /v1/partitions/{id}/ipuof-config`.
pub(crate) async fn config(
    app: &App,
    id: &PartitionId,
    gcd: Option<u32>,
) -> Result<IpuofConfigDocument, Problem> {
    let entry = app.entry(id).await?;
    if let Some(gcd) = gcd {
        check_gcd(&entry, gcd)?;
    }
    match app.allocator.ipuof_config(&entry, gcd).await {
        Ok(config) => Ok(IpuofConfigDocument::new(&entry, config, gcd.unwrap_or(0))),
        Err(AllocatorError::NotActive { id, phase }) => Err(not_active(app, &id, phase).await),
        Err(error) => Err(error.into()),
    }
}

fn check_gcd(entry: &Entry, gcd: u32) -> Result<(), Problem> {
    let gcds = entry.spec.gcds;
    if gcd < gcds {
        return Ok(());
    }
    let rule = match gcds {
        1 => "must be 0: the partition has one GCD".to_owned(),
        _ => format!("must be from 0 to {}: the partition has {gcds} GCDs", gcds - 1),
    };
    let fix = "use a number in that range, or leave it out for all GCDs";
    Err(Problem::invalid("gcd", gcd, rule, fix))
}

/// Creates the problem of a partition that is not active, with its present reason.
async fn not_active(app: &App, id: &PartitionId, state: &str) -> Problem {
    let document = match app.document(id).await {
        Ok(document) => document,
        // Released in the meantime, or the store is unavailable.
        Err(problem) => return problem,
    };
    let detail = match document.reason {
        Some(reason) => format!("partition {id} is {}: {}", document.state, reason.message),
        None if document.state == HoldState::Active => format!("partition {id} is {state}"),
        None => format!("partition {id} is {}", document.state),
    };
    let fix = "repeat the request when the partition is active, such as after PUT with wait";
    let problem = Problem::new(StatusCode::CONFLICT, "NotActive", detail).with_fix(fix);
    problem.with_state(document.waiting, document.errors)
}
