//! Renders results as a table, or as one JSON or YAML document, and prints them.

use std::io::{self, ErrorKind, Write};

pub(crate) use ipu_proxy_client::cli::printable;
use serde::Serialize;

use crate::cli::Format;
use crate::exit_code::{Code, Failure};

/// Renders `value` as a document, or as the text of `table`.
pub(crate) fn render(
    format: Format,
    value: &impl Serialize,
    table: impl FnOnce() -> String,
) -> Result<String, Failure> {
    match format {
        Format::Table => Ok(table()),
        Format::Json => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|error| Failure::because(Code::Bug, "print the result as JSON", error)),
        Format::Yaml => serde_saphyr::to_string(value)
            .map(|text| if text.ends_with('\n') { text } else { text + "\n" })
            .map_err(|error| Failure::because(Code::Bug, "print the result as YAML", error)),
    }
}

/// A list as `kubectl get -o json` prints it.
#[derive(Serialize)]
pub(crate) struct List<'a, T> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    items: &'a [T],
}

impl<'a, T> List<'a, T> {
    pub(crate) fn new(items: &'a [T]) -> Self {
        Self {
            api_version: "v1",
            kind: "List",
            items,
        }
    }
}

/// Prints a result, which contains its line ends, to standard output. A closed reader is not an error.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    match bytes(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(write_failure(error)),
        _ => Ok(()),
    }
}

/// Writes bytes to standard output.
///
/// # Errors
///
/// [`ErrorKind::BrokenPipe`] if the reader is gone.
pub(crate) fn bytes(bytes: &[u8]) -> io::Result<()> {
    write(&mut io::stdout().lock(), bytes)
}

/// Returns the failure of an incomplete result.
pub(crate) fn write_failure(error: io::Error) -> Failure {
    Failure::because(Code::Host, "cannot write to standard output", error)
}

/// Prints a line of progress to standard error.
pub(crate) fn say(text: &str) {
    // A closed terminal cannot be reported.
    let _ = write(&mut io::stderr().lock(), format!("{text}\n").as_bytes());
}

fn write(stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).and_then(|()| stream.flush())
}
