//! Rules and their results.

use serde::Serialize;

use super::facts::Facts;
use crate::output::printable;

/// Result of one rule: its findings, or the reason why it was not checked.
pub(super) type CheckResult = Result<Vec<Finding>, String>;

/// A kind of fault: a row of the table, with its texts for the reference page.
#[derive(Debug, Serialize)]
pub(super) struct Rule {
    /// Stable code of its findings.
    pub(super) code: &'static str,
    /// Condition of a finding.
    pub(super) condition: &'static str,
    /// Effect of the fault.
    pub(super) effect: &'static str,
    /// The way to fix it. A command does or begins it.
    pub(super) remedy: &'static str,
    #[serde(skip)]
    pub(super) check: fn(&Facts) -> CheckResult,
}

/// A fault of one object.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// Kind and name, with the namespace if it has one.
    pub(super) object: String,
    /// Actual state.
    pub(super) actual: String,
    #[serde(flatten)]
    pub(super) fix: Fix,
}

/// Effect of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum CommandKind {
    /// Fixes the fault as printed.
    Fix,
    /// Fixes it once the words in capital letters are replaced.
    Template,
    /// Reads only.
    Inspect,
}

/// The way to fix a fault.
#[derive(Clone, Debug, Default, Serialize)]
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
    fn new(kind: CommandKind, command: impl AsRef<str>) -> Self {
        Self {
            command: Some(printable(command.as_ref())),
            command_kind: Some(kind),
            note: None,
        }
    }

    /// Returns a command that fixes the fault.
    pub(super) fn run(command: impl AsRef<str>) -> Self {
        Self::new(CommandKind::Fix, command)
    }

    /// Returns a command with words to replace.
    pub(super) fn template(command: impl AsRef<str>) -> Self {
        Self::new(CommandKind::Template, command)
    }

    /// Returns a command that reads only.
    pub(super) fn inspect(command: impl AsRef<str>) -> Self {
        Self::new(CommandKind::Inspect, command)
    }

    /// Returns a fix without a command.
    pub(super) fn advice(note: impl AsRef<str>) -> Self {
        Self::default().with_note(note)
    }

    /// Adds a note.
    pub(super) fn with_note(self, note: impl AsRef<str>) -> Self {
        Self {
            note: Some(printable(note.as_ref())),
            ..self
        }
    }
}

impl Finding {
    pub(super) fn new(object: impl AsRef<str>, actual: impl AsRef<str>, fix: Fix) -> Self {
        Self {
            object: printable(object.as_ref()),
            actual: printable(actual.as_ref()),
            fix,
        }
    }
}
