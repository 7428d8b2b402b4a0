//! `ipuctl map`: prints the map of the simulated IPU-POD.

use ipu_core::hardware::Topology;
use serde_json::json;
use vipu_sim::Simulator;

use crate::cli::Format;
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::state_dir::StateDir;
use crate::table;

/// Prints link domains, machines and partitions.
///
/// # Errors
///
/// [`Code::Usage`] for a real controller: the simulator draws the map.
pub(crate) async fn run(connection: &Connection, format: Format, output: &Output) -> Result<Code, Failure> {
    if !connection.is_simulated() {
        let message =
            "the map shows the simulated IPU-POD only; `ipuctl partition list` shows a real controller";
        return Err(Failure::new(Code::Usage, message));
    }
    let map = simulated(&connection.state).await?;
    output.result(&table::render(format, &json!({ "map": map }), || map.clone())?);
    Ok(Code::Done)
}

/// Returns the map from the state file, which the simulated controller of the local server writes.
pub(crate) async fn simulated(state: &StateDir) -> Result<String, Failure> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        Failure::because(Code::Host, "read the state of the simulated IPU-POD", error)
    };
    let reader = Simulator::builder(Topology::pod16()).state_file(state.create_simulator_state_path()?);
    let reader = reader.start().await.map_err(|error| failed(error.into()))?;
    let map = reader.map().map_err(|error| failed(error.into()));
    reader.shutdown().await;
    map
}
