//! The error of a command.

use std::error::Error;

use ipu_core::ErrorChain;

/// The reason that a command failed, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) String);

/// Converts any error, with its sources, to a sentence.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(ErrorChain(&error).to_string())
    }
}
