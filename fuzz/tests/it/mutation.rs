//! Mutations of the inputs of a corpus that keep most of their structure.

use std::fs;
use std::path::{Path, PathBuf};

/// How an input is changed: which one, and the changes in order. Plain numbers, so that the engine can shrink them.
pub(crate) type Mutation = (u16, Vec<Edit>);
/// Which change, where, and with what.
pub(crate) type Edit = (u8, u16, u16, u8);

/// The most changes of one input: more leave nothing of its structure.
const EDITS_MAX: usize = 8;

/// Values that parsers get wrong.
const WORDS: &[&str] = &[
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

/// The inputs of a corpus, in order of their names.
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

/// The input that a mutation makes of a corpus.
pub(crate) fn mutate(corpus: &[(PathBuf, Vec<u8>)], (which, edits): &Mutation) -> Vec<u8> {
    let mut bytes = corpus[usize::from(*which) % corpus.len()].1.clone();
    for (kind, at, length, with) in edits.iter().take(EDITS_MAX) {
        let at = usize::from(*at) % (bytes.len() + 1);
        let end = (at + 1 + usize::from(*length) % 24).min(bytes.len());
        let whole = token(&bytes, at);
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
            6 => drop(bytes.splice(at..at, word(*with))),
            7 => drop(bytes.splice(whole, word(*with))),
            8 => {
                // A token of another input, or of this one, in the place of this one's.
                let other = &corpus[usize::from(*with) % corpus.len()].1;
                let there = token(other, usize::from(*length) % (other.len() + 1));
                let words = other[there].to_vec();
                drop(bytes.splice(whole, words));
            }
            9 => drop(bytes.drain(whole)),
            _ => {}
        }
    }
    bytes
}

fn word(which: u8) -> Vec<u8> {
    WORDS[usize::from(which) % WORDS.len()].as_bytes().to_vec()
}

/// The word or number that `at` stands in.
fn token(bytes: &[u8], at: usize) -> std::ops::Range<usize> {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    let start = at - bytes[..at].iter().rev().take_while(|byte| inside(byte)).count();
    let end = at + bytes[at..].iter().take_while(|byte| inside(byte)).count();
    start..end
}

#[test]
fn a_mutation_changes_what_it_says_and_keeps_the_rest() {
    let corpus = [(PathBuf::new(), b"size: 16, id: p1".to_vec())];
    let mutated = |edits: &[Edit]| String::from_utf8(mutate(&corpus, &(7, edits.to_vec()))).unwrap();
    assert_eq!(mutated(&[]), "size: 16, id: p1");
    assert_eq!(mutated(&[(7, 6, 0, 8)]), "size: 65, id: p1");
    assert_eq!(mutated(&[(9, 6, 0, 0)]), "size: , id: p1");
    assert_eq!(mutated(&[(8, 6, 14, 0)]), "size: p1, id: p1");
    assert_eq!(mutated(&[(4, 4, 0, 0)]), "size");
    assert_eq!(mutated(&[(0, 4, 3, 0), (1, 0, 0, b'_')]), "_size, id: p1");
}
