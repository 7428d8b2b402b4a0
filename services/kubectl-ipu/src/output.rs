//! Renders results as a table, or as one JSON or YAML document, and prints them.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::cli::Format;
use crate::exit_code::{Code, Failure};

/// A table with aligned columns, separated by two blanks.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with a header.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()],
        }
    }

    /// Adds a row of as many cells as there are headings. Their text may be that of users and containers.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter();
        self.rows.push(cells.map(|cell| printable(&cell)).collect());
    }

    /// Returns the text with line ends; an empty cell is shown as `-`.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![1; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut text = String::new();
        for row in &self.rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{:width$}", if cell.is_empty() { "-" } else { cell }))
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

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

/// Prints a result, which contains its line ends, to standard output. A closed reader is no error.
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

/// Replaces control characters, which may be escape sequences of a terminal, by `?`.
pub(crate) fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2J\tb\r\n"), "a?[2J\tb??");
    }

    #[test]
    fn a_cell_of_a_table_neither_controls_the_terminal_nor_adds_a_row() {
        let mut table = Table::new(&["NAME", "MESSAGE"]);
        table.row(["x".into(), "\u{1b}]0;evil\u{7}\nx  Running".into()]);
        assert_eq!(table.text(), "NAME  MESSAGE\nx     ?]0;evil??x  Running\n");
    }

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["long-name".into(), String::new()]);
        table.row(["x".into(), "ACTIVE".into()]);
        assert_eq!(
            table.text(),
            "ID         STATE\nlong-name  -\nx          ACTIVE\n"
        );
    }
}
