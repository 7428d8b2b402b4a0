//! The error of a command.

use std::error::Error;

/// The reason that a command failed, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) String);

/// Converts any error, with its sources, to a sentence.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(chain(&error))
    }
}

/// Returns an error and its sources on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let part = error.to_string();
        // Some errors repeat their source.
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = error.source();
    }
    text
}
