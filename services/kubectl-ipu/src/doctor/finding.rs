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
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    /// Kind and name, with the namespace if it has one.
    pub(super) object: String,
    /// Actual state.
    pub(super) actual: String,
    /// Expected state.
    pub(super) expected: String,
    #[serde(flatten)]
    pub(super) fix: Fix,
}

/// Effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum CommandKind {
    /// Mends the fault as printed.
    Fix,
    /// Mends it once the words in capital letters are replaced.
    Template,
    /// Reads only.
    Inspect,
}

/// The way to mend a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Fix {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) command_kind: Option<CommandKind>,
    /// Condition of the command, or the replacement of a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

impl Fix {
    fn new(kind: CommandKind, command: impl Into<String>) -> Self {
        Self {
            command: Some(printable(&command.into())),
            command_kind: Some(kind),
            note: None,
        }
    }

    /// Returns a command that mends the fault.
    pub(super) fn run(command: impl Into<String>) -> Self {
        Self::new(CommandKind::Fix, command)
    }

    /// Returns a command with words to replace.
    pub(super) fn template(command: impl Into<String>) -> Self {
        Self::new(CommandKind::Template, command)
    }

    /// Returns a command that reads only.
    pub(super) fn inspect(command: impl Into<String>) -> Self {
        Self::new(CommandKind::Inspect, command)
    }

    /// Returns a fix without a command.
    pub(super) fn advice(note: impl Into<String>) -> Self {
        Self {
            command: None,
            command_kind: None,
            note: Some(printable(&note.into())),
        }
    }

    /// Adds a note.
    pub(super) fn with_note(self, note: impl Into<String>) -> Self {
        Self {
            note: Some(printable(&note.into())),
            ..self
        }
    }

    /// Adds a note if there is none.
    pub(super) fn or_note(self, note: &str) -> Self {
        if self.note.is_some() {
            self
        } else {
            self.with_note(note)
        }
    }
}

impl Finding {
    pub(super) fn new(
        object: impl Into<String>,
        actual: impl Into<String>,
        expected: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self {
            object: printable(&object.into()),
            actual: printable(&actual.into()),
            expected: printable(&expected.into()),
            fix,
        }
    }
}
