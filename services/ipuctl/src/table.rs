//! Renders results in the requested format: a table, or one JSON or YAML document.

pub(crate) use ipu_proxy_client::cli::{Table, align};
use serde::Serialize;

use crate::cli::Format;
use crate::exit_code::{Code, Failure};

/// Returns a line of comma-separated values; a cell with separators is quoted (RFC 4180).
pub(crate) fn csv_line(cells: &[impl AsRef<str>]) -> String {
    let quote = |cell: &str| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    };
    let cells: Vec<String> = cells.iter().map(|cell| quote(cell.as_ref())).collect();
    cells.join(",") + "\n"
}

/// Renders `value` as a document, or as the text of `table`.
pub(crate) fn render(
    format: Format,
    value: &impl Serialize,
    table: impl FnOnce() -> String,
) -> Result<String, Failure> {
    match format {
        Format::Table | Format::Wide => Ok(table()),
        Format::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| Failure::because(Code::Bug, "print the result as JSON", error)),
        Format::Csv | Format::Name => Err(Failure::new(
            Code::Usage,
            "this command does not support -o csv and -o name; use -o json or -o yaml",
        )),
        Format::Yaml => serde_saphyr::to_string(value)
            .map(|text| if text.ends_with('\n') { text } else { text + "\n" })
            .map_err(|error| Failure::because(Code::Bug, "print the result as YAML", error)),
    }
}
