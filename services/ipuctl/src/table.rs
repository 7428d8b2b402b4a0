//! Renders results in the requested format: a table, or one JSON or YAML document.

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

    /// Adds a row of as many cells as there are headings.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Returns the text with line ends; an empty cell is shown as `-`.
    pub(crate) fn text(&self) -> String {
        align(&self.rows, &mut Vec::new())
    }
}

/// Returns rows as lines with aligned columns; an empty cell is shown as `-`. `widths` are the widths of the
/// columns in earlier lines, which wider cells increase.
pub(crate) fn align(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    widths.resize(columns.max(widths.len()), 1);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&*widths)
            .map(|(cell, width)| format!("{:width$}", if cell.is_empty() { "-" } else { cell }))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

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

#[cfg(test)]
mod tests {
    use super::*;

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
