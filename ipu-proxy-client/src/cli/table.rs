//! Text with aligned columns.

use std::fmt;

/// A table with aligned columns, separated by two blanks. It formats as lines; an empty cell is shown as `-`.
///
/// ```
/// use ipu_proxy_client::cli::Table;
///
/// let mut table = Table::new(&["PARTITION", "ACCOUNT", "SIZE"]);
/// table.row(["training".into(), String::new(), "8".into()]);
/// // Text of users cannot control the terminal.
/// table.row(["eval".into(), "\u{1b}[31mred".into(), "16".into()]);
/// let expected = "\
/// PARTITION  ACCOUNT   SIZE
/// training   -         8
/// eval       ?[31mred  16
/// ";
/// assert_eq!(table.to_string(), expected);
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with a header.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()],
        }
    }

    /// Adds a row of as many cells as there are headings. Their text may be that of users and containers.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter();
        self.rows.push(cells.map(|cell| printable(&cell)).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&align(&self.rows, &mut Vec::new()))
    }
}

/// Returns rows as lines with aligned columns; an empty cell is shown as `-`. `widths` are the widths of the
/// columns in earlier lines, which wider cells increase.
///
/// ```
/// use ipu_proxy_client::cli::align;
///
/// // Each line is printed when it arrives.
/// let mut widths = Vec::new();
/// let mut print = |name: &str, state: &str| align(&[vec![name.into(), state.into()]], &mut widths);
/// assert_eq!(print("training", "active"), "training  active\n");
/// assert_eq!(print("eval", "queued"), "eval      queued\n");
/// ```
#[must_use]
pub fn align(rows: &[Vec<String>], widths: &mut Vec<usize>) -> String {
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

/// Replaces control characters, which may be escape sequences of a terminal, by `?`.
#[must_use]
pub fn printable(text: &str) -> String {
    let visible = |c: char| if c.is_control() && c != '\t' { '?' } else { c };
    text.chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let mut table = Table::new(&["ID", "STATE"]);
        table.row(["long-name".into(), String::new()]);
        table.row(["x".into(), "ACTIVE".into()]);
        let expected = "ID         STATE\nlong-name  -\nx          ACTIVE\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn a_cell_of_a_table_neither_controls_the_terminal_nor_adds_a_row() {
        let mut table = Table::new(&["NAME", "MESSAGE"]);
        table.row(["x".into(), "\u{1b}]0;evil\u{7}\nx  Running".into()]);
        assert_eq!(table.to_string(), "NAME  MESSAGE\nx     ?]0;evil??x  Running\n");
    }
}
