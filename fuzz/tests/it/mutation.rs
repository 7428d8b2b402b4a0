//! Mutations of corpus inputs that keep most of their structure.

use std::fs;
use std::path::{Path, PathBuf};

/// The index of an input, and its edits in order. Plain numbers, so that the engine can shrink them.
pub(crate) type Mutation = (u16, Vec<Edit>);
/// Kind, position, length and value of an edit.
pub(crate) type Edit = (u8, u16, u16, u8);

/// Maximum edits of one input: more would destroy its structure.
const MAX_EDITS: usize = 8;

/// Values that parsers often mishandle.
const TOKENS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "3",
    "4",
    "16",
    "64",
    "65",
    "255",
    "256",
    "65536",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "9223372036854775808",
    "1e99",
    "0.5",
    "true",
    "false",
    "null",
    "\"\"",
    "\"x\"",
    "[]",
    "{}",
    "[0]",
    ",",
    ":",
    "=",
    ".",
    "-",
    "/",
    "(",
    ")",
    "\\",
    "\"",
    "'",
    "\n",
    "\n---\n",
    " ",
    "~",
    "&a ",
    "*a",
    "!!str ",
    "é",
    "\u{1}",
    "\u{feff}",
    "%2e",
    "..",
];

/// Returns the inputs of a corpus, ordered by name.
pub(crate) fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let listed = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = listed
        .map(|entry| entry.expect("list the corpus").path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).expect("read an input");
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// Applies a mutation to a corpus.
pub(crate) fn mutate(corpus: &[(PathBuf, Vec<u8>)], (index, edits): &Mutation) -> Vec<u8> {
    let mut bytes = corpus[usize::from(*index) % corpus.len()].1.clone();
    for (kind, at, length, with) in edits.iter().take(MAX_EDITS) {
        let at = usize::from(*at) % (bytes.len() + 1);
        let end = (at + 1 + usize::from(*length) % 24).min(bytes.len());
        let current = token(&bytes, at);
        match kind % 10 {
            0 => drop(bytes.drain(at..end)),
            1 => drop(bytes.splice(at..at, [*with])),
            2 if at < bytes.len() => bytes[at] ^= 1 << (with % 8),
            3 if at < bytes.len() => bytes[at] = *with,
            4 => bytes.truncate(at),
            5 => {
                let copy = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, copy));
            }
            6 => drop(bytes.splice(at..at, special_token(*with))),
            7 => drop(bytes.splice(current, special_token(*with))),
            8 => {
                // Replaces a token by one of another input, or of the same input.
                let other = &corpus[usize::from(*with) % corpus.len()].1;
                let source = token(other, usize::from(*length) % (other.len() + 1));
                let replacement = other[source].to_vec();
                drop(bytes.splice(current, replacement));
            }
            9 => drop(bytes.drain(current)),
            _ => {}
        }
    }
    bytes
}

fn special_token(index: u8) -> Vec<u8> {
    TOKENS[usize::from(index) % TOKENS.len()].as_bytes().to_vec()
}

/// Returns the range of the token at `at`.
fn token(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let is_token_byte = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let start = at
        - bytes[..at]
            .iter()
            .rev()
            .take_while(|byte| is_token_byte(byte))
            .count();
    let end = at + bytes[at..].iter().take_while(|byte| is_token_byte(byte)).count();
    start..end
}

#[test]
fn a_mutation_applies_only_its_edits() {
    let corpus = [(PathBuf::new(), b"size: 16, id: p1".to_vec())];
    let mutated = |edits: &[Edit]| String::from_utf8(mutate(&corpus, &(7, edits.to_vec()))).unwrap();
    assert_eq!(mutated(&[]), "size: 16, id: p1");
    assert_eq!(mutated(&[(7, 6, 0, 8)]), "size: 65, id: p1");
    assert_eq!(mutated(&[(9, 6, 0, 0)]), "size: , id: p1");
    assert_eq!(mutated(&[(8, 6, 14, 0)]), "size: p1, id: p1");
    assert_eq!(mutated(&[(4, 4, 0, 0)]), "size");
    assert_eq!(mutated(&[(0, 4, 3, 0), (1, 0, 0, b'_')]), "_size, id: p1");
}
