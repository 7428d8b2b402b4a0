//! `ipuctl query SIZE`: counts the partitions of a size that fit now.

use ipu_core::{PartitionSpec, Placement, PlacementRequest, Reason, place};
use serde::Serialize;

use super::plan;
use crate::cli::{Global, Query};
use crate::connection::{Connection, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run::never_fits;
use crate::table::render;

/// The fields of `/query` of the proxy (seed 000 §6.9), and more.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QueryOutput {
    size: u32,
    available: bool,
    num_of_partitions: u32,
    free: u32,
    largest: u32,
    message: String,
}

/// Prints the count. The exit code is 0 if at least one fits, 75 if none fits now, 78 if none can ever fit.
pub(crate) async fn run(arguments: Query, global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let mut spec = PartitionSpec::of_size(arguments.size);
    spec.allocation = arguments.allocation;
    let capacities = connection.ledger.query(&spec).await.map_err(ledger_failure)?;
    let size = arguments.size.get();
    let mut answer = QueryOutput {
        size,
        available: false,
        num_of_partitions: 0,
        free: 0,
        largest: 0,
        message: String::new(),
    };
    for (controller, capacity) in capacities {
        match capacity {
            Ok(capacity) => {
                answer.num_of_partitions += capacity.fit_count;
                answer.free += capacity.free;
                answer.largest = answer.largest.max(capacity.largest_block);
            }
            Err(reason) => answer.message = format!("{controller}: {}", reason.message),
        }
    }
    answer.available = answer.num_of_partitions > 0;
    let impossible = if answer.available {
        None
    } else {
        impossible(&connection, &spec).await?
    };
    if let Some(reason) = &impossible {
        answer.message = display::reason(reason);
    } else if answer.message.is_empty() {
        answer.message = format!(
            "{}; {} free, the largest free block is {}",
            fit_count(u64::from(answer.num_of_partitions), size),
            display::count(answer.free, "IPU"),
            answer.largest
        );
    }
    output.result(&render(global.output, &answer, || {
        format!("{}\n", answer.message)
    })?);
    connection.close().await;
    Ok(match (answer.available, impossible) {
        (true, _) => Code::Done,
        (false, Some(_)) => Code::Impossible,
        (false, None) => Code::NoCapacity,
    })
}

/// Returns the reason why a partition can never fit; none if it can, or if the controller does not report its
/// hardware.
async fn impossible(connection: &Connection, spec: &PartitionSpec) -> Result<Option<Reason>, Failure> {
    let Some(observed) = plan::observe_inventory(connection).await? else {
        return Ok(None);
    };
    let request = PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone());
    let reason = match place(&observed.inventory, &request, connection.placement.policy()) {
        Placement::Impossible(cause) => Some(Reason::from(cause)),
        _ => None,
    };
    Ok(reason.filter(never_fits))
}

/// Returns the number of partitions of `size` IPUs that fit, as a phrase.
pub(crate) fn fit_count(number: u64, size: u32) -> String {
    let verb = if number == 1 { "fits" } else { "fit" };
    format!(
        "{} of {} {verb} now",
        display::count(number, "partition"),
        display::count(size, "IPU")
    )
}
