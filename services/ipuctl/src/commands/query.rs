//! `ipuctl query SIZE`: how many partitions of a size fit now.

use ipu_core::PartitionSpec;
use serde::Serialize;

use crate::cli::{Global, Query};
use crate::connection::{Connection, ledger_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::render;

/// The fields of the proxy's `/query` (seed 000 §6.9), and more.
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

/// Answers the question; the exit code says whether one fits.
pub(crate) async fn run(arguments: Query, global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let mut spec = PartitionSpec::of_size(arguments.size);
    spec.allocation = arguments.allocation;
    let rooms = connection.ledger.query(&spec).await.map_err(ledger_failure)?;
    let size = arguments.size.get();
    let mut answer = QueryOutput {
        size,
        available: false,
        num_of_partitions: 0,
        free: 0,
        largest: 0,
        message: String::new(),
    };
    for (controller, room) in rooms {
        match room {
            Ok(room) => {
                answer.num_of_partitions += room.fit_count;
                answer.free += room.free;
                answer.largest = answer.largest.max(room.largest_block);
            }
            Err(reason) => answer.message = format!("{controller}: {}", reason.message),
        }
    }
    answer.available = answer.num_of_partitions > 0;
    if answer.message.is_empty() {
        answer.message = format!(
            "{} partitions of {size} IPUs fit; {} IPUs are free, the largest block has {}",
            answer.num_of_partitions, answer.free, answer.largest
        );
    }
    output.result(&render(global.output, &answer, || {
        format!("{}\n", answer.message)
    })?);
    let code = if answer.available {
        Code::Done
    } else {
        Code::NoRoom
    };
    connection.close().await;
    Ok(code)
}
