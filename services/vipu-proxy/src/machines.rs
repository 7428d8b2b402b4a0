//! The machines of a requested partition.

use ipu_allocator::AllocatorError;
use ipu_core::AgentId;
use ipu_core::allocator::{MachinesError, PlacementConstraint, Request};

use crate::app::App;
use crate::partition_api::parse_name;
use crate::problem::Problem;

/// Number of machines that a problem repeats.
const MAX_NAMES: usize = 16;

/// Parses the names of machines.
pub(crate) fn machines_of(names: Vec<String>) -> Result<Vec<AgentId>, Problem> {
    let named = names.into_iter().enumerate();
    named
        .map(|(index, name)| parse_name(&format!("machines[{index}]"), name))
        .collect()
}

/// Returns the constraint with which the partition of `request` lies on `machines`.
pub(crate) async fn pin_to_machines(
    app: &App,
    request: &Request,
    machines: &[AgentId],
) -> Result<PlacementConstraint, Problem> {
    match app.allocator.pin_to_machines(request, machines).await {
        Err(AllocatorError::Machines(error)) if !matches!(error, MachinesError::Unavailable { .. }) => Err(
            Problem::invalid("machines", joined(machines), error.to_string(), error.fix()),
        ),
        pinned => Ok(pinned?),
    }
}

fn joined(machines: &[AgentId]) -> String {
    let names: Vec<&str> = machines.iter().take(MAX_NAMES).map(AgentId::as_str).collect();
    let more = if machines.len() > MAX_NAMES { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
