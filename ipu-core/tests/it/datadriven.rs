//! Cases as text files, so that a person adds one without writing Rust.
//!
//! A file of `testdata/<folder>/*.txt` is a list of cases. Lines that begin with `#` and blank lines stand between cases:
//!
//! ```text
//! # What the case is about.
//! command and its options, on one line
//! input, on as many lines as it needs (none is fine)
//! ----
//! expected output, up to the next blank line
//! ```
//!
//! `UPDATE=1 cargo test -p ipu-core --test it` writes the outputs that came out into the files; read the difference
//! before you commit it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
// The unit tests of the core, which has no prelude of std, include this file too.
use std::string::String;
use std::vec::Vec;
use std::{format, panic, write, writeln};

/// What a case asks.
pub(crate) struct Case<'a> {
    /// The first line, by words.
    pub(crate) command: Vec<&'a str>,
    /// The lines before `----`.
    pub(crate) input: &'a str,
}

/// Runs `answer` on every case of every file in `testdata/<folder>`, and compares.
///
/// # Panics
///
/// An output differs, a file is not of this form, or there is no case at all.
pub(crate) fn run(folder: &str, answer: impl Fn(&Case<'_>) -> String) {
    let mut differences = String::new();
    let files = files(folder);
    assert!(!files.is_empty(), "no case in testdata/{folder}");
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let rewritten = rewrite(&path, &text, &answer, &mut differences);
        if std::env::var_os("UPDATE").is_some() && rewritten != text {
            fs::write(&path, rewritten).unwrap();
            differences.clear();
        }
    }
    assert!(
        differences.is_empty(),
        "{differences}\nUPDATE=1 accepts what came out"
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

/// `text` with the outputs that came out.
fn rewrite(
    path: &Path,
    text: &str,
    answer: impl Fn(&Case<'_>) -> String,
    differences: &mut String,
) -> String {
    let mut rewritten = String::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        writeln!(rewritten, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{}:{}", path.display(), number + 1);
        let mut input = String::new();
        loop {
            match lines.next() {
                Some((_, "----")) => break,
                Some((_, line)) => writeln!(input, "{line}").unwrap(),
                None => panic!("{place}: the case has no ----"),
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
        let output = answer(&case);
        // A blank line would end the output when it is read again.
        let output: Vec<_> = output.lines().filter(|line| !line.is_empty()).collect();
        if output != expected {
            let (expected, output) = (expected.join("\n"), output.join("\n"));
            writeln!(
                differences,
                "{place}: {line}\n{input}---- expected\n{expected}\n---- came out\n{output}\n"
            )
            .unwrap();
        }
        write!(rewritten, "{input}----\n{}\n\n", output.join("\n")).unwrap();
    }
    format!("{}\n", rewritten.trim_end())
}
