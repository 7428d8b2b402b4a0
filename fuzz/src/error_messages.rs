//! What holds of everything that is said to a person.

use std::error::Error;
use std::fmt::Display;

/// The most bytes that a message has besides what it repeats of the input.
const WORDS_MAX: usize = 2_000;
/// How much longer a byte gets when it is printed so that it can be read, such as `\u{1}` for the byte 1.
const ESCAPED_MAX: usize = 12;

/// Asserts that a message about an input of so many bytes says something, and not more than the input explains.
pub(crate) fn said(message: &impl Display, input: usize) {
    let text = message.to_string();
    assert!(!text.trim().is_empty(), "a message without words");
    let most = WORDS_MAX + ESCAPED_MAX * input;
    assert!(text.len() <= most, "{} bytes about {input}: {text}", text.len());
}

/// The same of an error and of everything that it came from.
pub(crate) fn said_of(error: &dyn Error, input: usize) {
    let mut link = Some(error);
    while let Some(error) = link {
        said(&error, input);
        link = error.source();
    }
}

/// The input as text; what is no UTF-8 becomes a replacement character, so that no input is lost.
pub(crate) fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
