//! Test cases in text files; a new case needs no Rust code.
//!
//! A file of `testdata/<folder>/*.txt` is a list of cases. Lines that begin with `#` and blank lines stand
//! between cases:
//!
//! ```text
//! # Description of the case.
//! command and its options, on one line
//! input, on as many lines as it needs (none is fine)
//! ----
//! expected output, up to the next blank line
//! ```
//!
//! `UPDATE=1 cargo test -p ipu-core --test it` writes the actual outputs into the files. Review the
//! difference before you commit it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
// The unit tests of the core, which has no std prelude, include this file too.
use std::string::String;
use std::vec::Vec;
use std::{format, panic, write, writeln};

/// One test case.
pub(crate) struct Case<'a> {
    /// The words of the first line.
    pub(crate) command: Vec<&'a str>,
    /// The lines before `----`.
    pub(crate) input: &'a str,
}

/// Runs `evaluate` on every case of every file in `testdata/<folder>`, and compares the outputs.
///
/// # Panics
///
/// Panics if an output differs, a file is malformed, or there is no case.
pub(crate) fn run(folder: &str, evaluate: impl Fn(&Case<'_>) -> String) {
    let mut differences = String::new();
    let files = files(folder);
    assert!(!files.is_empty(), "testdata/{folder} has no case");
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let rewritten = rewrite(&path, &text, &evaluate, &mut differences);
        if std::env::var_os("UPDATE").is_some() && rewritten != text {
            fs::write(&path, rewritten).unwrap();
            differences.clear();
        }
    }
    assert!(
        differences.is_empty(),
        "{differences}\nset UPDATE=1 to accept the actual outputs"
    );
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

/// Returns `text` with the actual outputs; appends mismatches to `differences`.
fn rewrite(
    path: &Path,
    text: &str,
    evaluate: impl Fn(&Case<'_>) -> String,
    differences: &mut String,
) -> String {
    let mut rewritten = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        writeln!(rewritten, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let location = format!("{}:{}", path.display(), number + 1);
        let mut input = String::new();
        loop {
            match lines.next() {
                Some((_, "----")) => break,
                Some((_, line)) => writeln!(input, "{line}").unwrap(),
                None => panic!("{location}: the case has no ----"),
            }
        }
        let expected: Vec<_> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| !line.is_empty())
            .collect();
        let case = Case {
            command: line.split_whitespace().collect(),
            input: &input,
        };
        let output = evaluate(&case);
        // A blank line would end the output in the file.
        let output: Vec<_> = output.lines().filter(|line| !line.is_empty()).collect();
        if output != expected {
            let (expected, output) = (expected.join("\n"), output.join("\n"));
            writeln!(
                differences,
                "{location}: {line}\n{input}---- expected\n{expected}\n---- actual\n{output}\n"
            )
            .unwrap();
        }
        write!(rewritten, "{input}----\n{}\n\n", output.join("\n")).unwrap();
    }
    format!("{}\n", rewritten.trim_end())
}
