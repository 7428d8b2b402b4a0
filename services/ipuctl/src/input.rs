//! Reads input files, and standard input for `-`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::exit_code::{Code, Failure};

/// Returns the name of an input for messages.
pub(crate) fn input_name(file: &Path) -> String {
    if is_standard_input(file) {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    }
}

/// Returns the text of an input, at most `limit` bytes of it.
pub(crate) fn read_input(file: &Path, limit: u64) -> Result<String, Failure> {
    let failure =
        |code, error: io::Error| Failure::because(code, format!("read {}", input_name(file)), error);
    let mut text = String::new();
    let read = if is_standard_input(file) {
        io::stdin().take(limit).read_to_string(&mut text)
    } else {
        let opened = File::open(file).map_err(|error| failure(Code::NotFound, error))?;
        opened.take(limit).read_to_string(&mut text)
    };
    read.map_err(|error| failure(Code::Data, error))?;
    Ok(text)
}

fn is_standard_input(file: &Path) -> bool {
    file == Path::new("-")
}
