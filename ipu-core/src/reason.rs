//! Machine-readable reasons: a code, numbers, and one sentence for users. The same value appears in the
//! status, events, logs, the command line and metric labels.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

/// A reason for a decision or a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reason {
    /// A stable code in UpperCamelCase, such as `NotEnoughFree`; safe as a metric label.
    pub code: String,
    /// The numbers of the sentence, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
    /// One sentence, without a full stop.
    pub message: String,
}

impl Reason {
    /// Creates a reason without numbers.
    #[must_use]
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            numbers: BTreeMap::new(),
            message: message.into(),
        }
    }

    /// Returns the reason with the number `name` added.
    #[must_use]
    pub fn with(mut self, name: &str, number: impl Into<u64>) -> Self {
        self.numbers.insert(name.into(), number.into());
        self
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}
