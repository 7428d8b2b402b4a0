//! The error for an error in a configuration file.

use core::error::Error;
use core::fmt;

use ipu_core::job::Violation;

/// An error in a configuration file, with its position.
///
/// Displays as `file:line:column: field = value: rule; fix`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfError {
    /// The file name that the caller passed.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// The field with its value, the rule and the fix.
    pub violation: Box<Violation>,
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            column,
            violation,
        } = self;
        write!(f, "{file}:{line}:{column}: {violation}")
    }
}

impl Error for ConfError {}

/// Creates the error for an absent `field` of a file, at its beginning.
pub(super) fn absent(file: &str, field: &str, rule: &str, fix: &str) -> ConfError {
    at_beginning(file, Violation::new(field, None, rule, fix))
}

/// Creates an error for a file as a whole, at its beginning.
pub(crate) fn at_beginning(file: &str, violation: Violation) -> ConfError {
    ConfError {
        file: file.to_owned(),
        line: 1,
        column: 1,
        violation: Box::new(violation),
    }
}
