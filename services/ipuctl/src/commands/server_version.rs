//! `ipuctl server-version`: prints the same lines as `vipu --server-version`, which scripts parse (seed 002
//! §5.2 and §8).

use serde_json::json;

use crate::cli::{Format, Global, ServerVersion};
use crate::connection::{Connection, controller_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table;

/// Prints version and address of the controller; the target in words goes to standard error.
pub(crate) async fn run(
    arguments: &ServerVersion,
    global: &Global,
    output: &Output,
) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let version = connection.version().await.map_err(controller_failure)?;
    let host = connection.address.to_string();
    output.say(&format!("Target: {}", connection.target()));
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
