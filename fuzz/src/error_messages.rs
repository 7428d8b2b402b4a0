//! Invariants of every message shown to a user.

use std::error::Error;
use std::fmt::Display;

/// Maximum bytes of a message besides the repeated input.
const MAX_MESSAGE_BYTES: usize = 2_000;
/// Maximum expansion of a printed input byte, such as `\u{1}` for the byte 1.
const MAX_ESCAPED_BYTES: usize = 12;

/// Asserts that a message about an input of `input` bytes is neither empty nor longer than the input
/// explains.
pub(crate) fn check_message(message: &impl Display, input: usize) {
    let text = message.to_string();
    assert!(!text.trim().is_empty(), "an empty message");
    let limit = MAX_MESSAGE_BYTES + MAX_ESCAPED_BYTES * input;
    assert!(
        text.len() <= limit,
        "{} bytes for an input of {input}: {text}",
        text.len()
    );
}

/// Checks an error and all its sources.
pub(crate) fn check_error(error: &dyn Error, input: usize) {
    let mut current = Some(error);
    while let Some(error) = current {
        check_message(&error, input);
        current = error.source();
    }
}

/// Returns the input as text. Invalid UTF-8 becomes replacement characters, so that no input is discarded.
pub(crate) fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
