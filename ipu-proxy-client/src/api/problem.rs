//! Error responses: problem details (RFC 9457) with a stable code.

use ipu_core::Reason;
use serde::{Deserialize, Serialize};

use super::owner::OwnerDocument;
use super::partition::WaitingDocument;

/// Prefix of the code in the type of a problem.
const TYPE_PREFIX: &str = "urn:ipu-sdk:problem:";

/// A problem of the media type `application/problem+json`.
///
/// ```
/// use ipu_proxy_client::ProblemDocument;
///
/// // Response to a request for three IPUs.
/// let problem: ProblemDocument = serde_json::from_str(
///     r#"{"type":"urn:ipu-sdk:problem:InvalidValue","title":"Invalid value","status":422,
///         "detail":"size = \"3\": 3 is not a power of two from 1 to 65536; the next one up is 4",
///         "code":"InvalidValue","field":"size","value":"3",
///         "rule":"3 is not a power of two from 1 to 65536; the next one up is 4","fix":"use 4"}"#,
/// )?;
/// assert_eq!((problem.status, problem.code.as_str()), (422, "InvalidValue"));
/// assert_eq!((problem.field.as_deref(), problem.fix.as_deref()), (Some("size"), Some("use 4")));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProblemDocument {
    /// Type: `urn:ipu-sdk:problem:` and the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// Title, derived from the code.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// Detail of this occurrence, one sentence.
    pub detail: String,
    /// Stable code for programs, in UpperCamelCase.
    pub code: String,
    /// Field of the request that violates a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Value of the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Rule that the value violates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Fix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// Owner of the partition, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerDocument>,
    /// Reason that the request does not fit, if it must not queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<WaitingDocument>,
    /// Errors that the controller reports for the partition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

impl ProblemDocument {
    /// Creates a problem. Type and title follow from the code.
    #[must_use]
    pub fn new(status: u16, code: &str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("{TYPE_PREFIX}{code}"),
            title: title_of(code),
            status,
            detail: detail.into(),
            code: code.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the reason that the request does not fit, if that is the problem.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        self.waiting.as_ref().map(|waiting| &waiting.reason)
    }
}

/// Returns the code as text: `NotTheOwner` becomes `Not the owner`.
fn title_of(code: &str) -> String {
    let mut title = String::new();
    for c in code.chars() {
        if c.is_ascii_uppercase() && !title.is_empty() {
            title.push(' ');
            title.push(c.to_ascii_lowercase());
        } else {
            title.push(c);
        }
    }
    title
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_derived_from_the_code() {
        let problem = ProblemDocument::new(409, "NotTheOwner", "another owner has it");
        assert_eq!(problem.title, "Not the owner");
        assert_eq!(problem.kind, "urn:ipu-sdk:problem:NotTheOwner");
    }
}
