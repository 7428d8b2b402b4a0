//! `ipuctl map`: prints the map of the simulated IPU-POD.

use serde_json::json;

use crate::cli::Global;
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table;

/// Prints link domains, machines and partitions.
///
/// # Errors
///
/// [`Code::Usage`] for a real controller: the simulator draws the map.
pub(crate) async fn run(global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let map = connection.map();
    connection.close().await;
    let Some(map) = map? else {
        let message =
            "the map shows the simulated IPU-POD only; `ipuctl partition list` shows a real controller";
        return Err(Failure::new(Code::Usage, message));
    };
    output.result(&table::render(global.output, &json!({ "map": map }), || {
        map.clone()
    })?);
    Ok(Code::Done)
}
