//! Figures that the tests measure. `.ci/run` shows them at its end.

use std::io::Write;

/// Appends a line to the file of `IPU_GATE_FIGURES`. Without that variable, prints the line.
#[expect(clippy::print_stdout, reason = "a person reads the figures")]
pub(crate) fn record(line: &str) {
    let Some(path) = std::env::var_os("IPU_GATE_FIGURES") else {
        println!("{line}");
        return;
    };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.unwrap(), "{line}").unwrap();
}
