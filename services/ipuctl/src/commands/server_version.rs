//! `ipuctl server-version`: prints the same lines as `vipu --server-version`, which scripts parse (RDMA guide
//! §5.2 and §8).

use serde_json::json;

use crate::cli::{Format, ServerVersion};
use crate::connection::{Connection, controller_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table;

/// Prints version and address of the controller; the target in words goes to standard error.
pub(crate) async fn run(
    arguments: &ServerVersion,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let status = connection.controller().await?;
    let Some(version) = &status.version else {
        return Err(controller_failure(&status));
    };
    let controller = &status.controller;
    let host = match (&controller.host, controller.port) {
        (Some(host), Some(port)) if host.contains(':') => format!("[{host}]:{port}"),
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => controller.name.to_string(),
    };
    output.say(&format!("Target: {}", connection.target()));
    let format = if arguments.json { Format::Json } else { format };
    let value = json!({ "version": version, "host": host });
    output.result(&table::render(format, &value, || {
        format!("version: {version}\nhost: {host}\n")
    })?);
    Ok(Code::Done)
}
