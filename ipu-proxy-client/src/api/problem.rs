//! What is answered instead of what was asked for: problem details (RFC 9457) with a stable code.

use ipu_core::Reason;
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;
use super::partition::WaitingDocument;

/// Before the code, in the type of a problem.
const TYPE: &str = "urn:ipu-sdk:problem:";

/// A problem, as `application/problem+json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProblemDocument {
    /// `urn:ipu-sdk:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// One sentence about this very case.
    pub detail: String,
    /// Stable, in UpperCamelCase: what programs go by.
    pub code: String,
    /// What of the request breaks a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// What to do instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Whose the partition is, if it is another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerDocument>,
    /// Why it does not fit, if it was not to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDocument>,
    /// What the controller says of a partition that is in error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

impl ProblemDocument {
    /// A problem of this HTTP status; type and title follow from the code.
    #[must_use]
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE}{code}"),
            title: words_of(code),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            ..Self::default()
        }
    }

    /// Why it does not fit, if that is the problem.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        self.waiting.as_ref().map(|waiting| &waiting.reason)
    }
}

/// `NotTheOwner` as `Not the owner`.
fn words_of(code: &str) -> String {
    let mut words = String::new();
    for c in code.chars() {
        if c.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
            words.push(c.to_ascii_lowercase());
        } else {
            words.push(c);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_the_code_in_words() {
        let problem = ProblemDocument::new(409, "NotTheOwner", "it is another's");
        assert_eq!(problem.title, "Not the owner");
        assert_eq!(problem.kind, "urn:ipu-sdk:problem:NotTheOwner");
    }
}
