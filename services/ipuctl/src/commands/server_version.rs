//! `ipuctl server-version`: what `vipu --server-version` prints, line by line, because scripts take it apart (seed 002
//! §5.2 and §8).

use serde_json::json;

use crate::cli::{Format, Global, ServerVersion};
use crate::connection::{Connection, controller_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table;

/// Prints the controller's version and address.
pub(crate) async fn run(
    arguments: &ServerVersion,
    global: &Global,
    output: &Output,
) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let version = connection.version().await.map_err(controller_failure)?;
    let host = connection.address.to_string();
    let format = if arguments.json {
        Format::Json
    } else {
        global.output
    };
    let value = json!({ "version": version, "host": host });
    output.result(&table::render(format, &value, || {
        format!("version: {version}\nhost: {host}\n")
    })?);
    connection.close().await;
    Ok(Code::Done)
}
