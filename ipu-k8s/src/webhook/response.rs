//! The response: an `AdmissionReview` with a verdict, of bounded size.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipu_core::Violation;
use serde_json::{Value, json};

use super::request::{API_VERSION, Request};

/// Maximum number of warnings, and maximum length of each in bytes: the API server truncates longer ones at
/// 256 bytes, and drops everything beyond 4096 bytes.
const MAX_WARNINGS: usize = 15;
const MAX_WARNING_BYTES: usize = 250;

/// Maximum length of a sentence about a violation in bytes: field names and values are arbitrary input.
const MAX_SENTENCE_BYTES: usize = 1000;

/// Maximum number of reported violations: more than fields of a job can be wrong, fewer than arbitrary input
/// can have.
const MAX_VIOLATIONS: usize = 100;

/// Response to a review.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewResponse {
    uid: String,
    /// Name of the object; empty if it has none yet.
    name: String,
    verdict: ReviewVerdict,
    warnings: Vec<String>,
    /// JSON Patch; empty if nothing is changed.
    patch: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum ReviewVerdict {
    Allowed,
    Refused {
        code: u16,
        reason: &'static str,
        message: String,
        causes: Vec<Value>,
    },
}

impl ReviewResponse {
    pub(super) fn allow(request: &Request) -> Self {
        Self {
            uid: request.uid.clone(),
            name: request.name.clone(),
            verdict: ReviewVerdict::Allowed,
            warnings: Vec::new(),
            patch: Vec::new(),
        }
    }

    /// Refuses the request with these violations, at least one.
    pub(super) fn refuse(request: &Request, kind: &str, violations: &[Violation]) -> Self {
        let reported = &violations[..violations.len().min(MAX_VIOLATIONS)];
        let mut message = match violations.len() {
            1 => format!("the {kind} breaks a rule:"),
            all => format!("the {kind} breaks {all} rules:"),
        };
        let mut causes = Vec::new();
        for violation in reported {
            let sentence = truncate(&violation.to_string(), MAX_SENTENCE_BYTES);
            message.push_str("\n- ");
            message.push_str(&sentence);
            causes.push(cause(violation));
        }
        if let Some(more @ 1..) = violations.len().checked_sub(reported.len()) {
            message.push_str(&format!("\n- and {more} more"));
        }
        Self {
            verdict: ReviewVerdict::Refused {
                code: 422,
                reason: "Invalid",
                message,
                causes,
            },
            ..Self::allow(request)
        }
    }

    /// Refuses a malformed request.
    pub(super) fn bad_request(request: &Request, message: &str) -> Self {
        Self {
            verdict: ReviewVerdict::Refused {
                code: 400,
                reason: "BadRequest",
                message: message.to_owned(),
                causes: Vec::new(),
            },
            ..Self::allow(request)
        }
    }

    /// Adds these warnings, as far as the API server passes them on.
    pub(super) fn with_warnings(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        let mut warnings = warnings.into_iter();
        self.warnings.extend(
            warnings
                .by_ref()
                .take(MAX_WARNINGS)
                .map(|text| truncate(&text, MAX_WARNING_BYTES)),
        );
        let more = warnings.count();
        if more > 0 {
            self.warnings.push(format!("and {more} more warnings"));
        }
        self
    }

    /// Sets the changes (JSON Patch).
    pub(super) fn with_patch(mut self, patch: &[Value]) -> Self {
        self.patch = patch.to_vec();
        self
    }

    /// Returns whether the request is admitted.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        matches!(self.verdict, ReviewVerdict::Allowed)
    }

    /// Returns the reason of a refusal; empty if the request is admitted.
    #[must_use]
    pub fn message(&self) -> &str {
        match &self.verdict {
            ReviewVerdict::Allowed => "",
            ReviewVerdict::Refused { message, .. } => message,
        }
    }

    /// Returns the warnings for the client: at most 16 texts of at most 250 bytes.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the changes as operations of JSON Patch (RFC 6902); empty if there are none.
    #[must_use]
    pub fn patch(&self) -> &[Value] {
        &self.patch
    }

    /// Returns the `AdmissionReview` to send.
    #[must_use]
    pub fn to_review(&self) -> Value {
        let mut response = json!({"uid": self.uid, "allowed": self.allowed()});
        if let ReviewVerdict::Refused {
            code,
            reason,
            message,
            causes,
        } = &self.verdict
        {
            response["status"] = json!({
                "metadata": {},
                "status": "Failure",
                "code": code,
                "reason": reason,
                "message": message,
                "details": {"name": self.name, "group": "graphcore.ai", "kind": "IPUJob", "causes": causes},
            });
        }
        if !self.warnings.is_empty() {
            response["warnings"] = json!(self.warnings);
        }
        if !self.patch.is_empty() {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(STANDARD.encode(Value::from(self.patch.clone()).to_string()));
        }
        json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
    }
}

/// Returns a violation in the form of the API server's own: kubectl prints the field and this text.
fn cause(violation: &Violation) -> Value {
    let Violation { value, rule, fix, .. } = violation;
    let (reason, message) = match value {
        Some(value) => (
            "FieldValueInvalid",
            format!("Invalid value: {value}: {rule}; {fix}"),
        ),
        None => ("FieldValueRequired", format!("Required value: {rule}; {fix}")),
    };
    json!({"reason": reason, "field": truncate(&violation.field, MAX_WARNING_BYTES), "message": truncate(&message, MAX_SENTENCE_BYTES)})
}

/// Returns `text` on one line, truncated to `max_bytes`.
fn truncate(text: &str, max_bytes: usize) -> String {
    let printable = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    // Replacement characters are never shorter.
    let prefix: String = text.chars().take(max_bytes + 1).map(printable).collect();
    if prefix.len() <= max_bytes {
        return prefix;
    }
    let limit = max_bytes - '…'.len_utf8();
    let end = (0..=limit).rev().find(|&end| prefix.is_char_boundary(end));
    format!("{}…", &prefix[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_truncated_at_character_boundaries_below_the_limit_of_the_api_server() {
        let text = "ä".repeat(300);
        let cut = truncate(&text, MAX_WARNING_BYTES);
        assert!(cut.len() <= MAX_WARNING_BYTES && cut.ends_with("ä…"), "{cut}");
        assert_eq!(truncate("a\nb", MAX_WARNING_BYTES), "a\u{fffd}b");
    }
}
