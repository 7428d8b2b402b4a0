//! Rules and their results.

use serde::Serialize;

use super::facts::Facts;
use crate::output::printable;

/// Result of one rule: its findings, or the reason why it was not checked.
pub(super) type Checked = Result<Vec<Finding>, String>;

/// A rule about a snapshot of facts, with its text for the reference page.
pub(super) struct Rule {
    /// Stable code of its findings.
    pub(super) code: &'static str,
    /// Condition of a finding, as one sentence.
    pub(super) condition: &'static str,
    /// Effect of the fault.
    pub(super) effect: &'static str,
    /// Remedy.
    pub(super) remedy: &'static str,
    pub(super) check: fn(&Facts) -> Checked,
}

/// A fault of one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Kind and name, with the namespace if it has one.
    pub(super) object: String,
    /// Actual state.
    pub(super) actual: String,
    /// Expected state.
    pub(super) expected: String,
    /// Command that fixes it, or the first command of the remedy.
    pub(super) command: String,
}

impl Finding {
    pub(super) fn new(
        object: impl Into<String>,
        actual: impl Into<String>,
        expected: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Self {
            object: printable(&object.into()),
            actual: printable(&actual.into()),
            expected: printable(&expected.into()),
            command: printable(&command.into()),
        }
    }
}
