//! What is answered: an `AdmissionReview` with a verdict, bounded in every part.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipu_core::Violation;
use serde_json::{Value, json};

use super::request::{API_VERSION, Request};

/// The most warnings of an answer, and the most characters of each: the API server cuts longer ones off at 256 bytes, and drops
/// what goes beyond 4096 bytes altogether.
const MAX_WARNINGS: usize = 15;
const MAX_WARNING: usize = 250;

/// The most bytes of a sentence about a violation: names of fields, and what is wrong in a value, are whatever somebody sent.
const MAX_SENTENCE: usize = 1000;

/// The most violations that are told: more than fields of the job can be wrong, fewer than somebody can invent.
const MAX_VIOLATIONS: usize = 100;

/// The answer to a review.
#[derive(Clone, Debug, PartialEq)]
pub struct ReviewResponse {
    uid: String,
    /// The name of the object; empty if it has none yet.
    name: String,
    verdict: ReviewVerdict,
    warnings: Vec<String>,
    /// Empty if nothing is changed.
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

    /// Refuses for these violations, all of which are told; at least one.
    pub(super) fn refuse(request: &Request, what: &str, violations: &[Violation]) -> Self {
        let told = &violations[..violations.len().min(MAX_VIOLATIONS)];
        let mut message = match violations.len() {
            1 => format!("the {what} breaks a rule:"),
            all => format!("the {what} breaks {all} rules:"),
        };
        let mut causes = Vec::new();
        for violation in told {
            let sentence = shortened(&violation.to_string(), MAX_SENTENCE);
            message.push_str("\n- ");
            message.push_str(&sentence);
            causes.push(cause(violation));
        }
        if let Some(more @ 1..) = violations.len().checked_sub(told.len()) {
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

    /// Refuses a request that makes no sense.
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

    /// The same with these warnings, as many and as much of them as the API server passes on.
    pub(super) fn with_warnings(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        let mut warnings = warnings.into_iter();
        self.warnings.extend(
            warnings
                .by_ref()
                .take(MAX_WARNINGS)
                .map(|text| shortened(&text, MAX_WARNING)),
        );
        let more = warnings.count();
        if more > 0 {
            self.warnings.push(format!("and {more} more warnings"));
        }
        self
    }

    /// The same with these changes (JSON Patch).
    pub(super) fn with_patch(mut self, patch: &[Value]) -> Self {
        self.patch = patch.to_vec();
        self
    }

    /// Whether the request is let through.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        matches!(self.verdict, ReviewVerdict::Allowed)
    }

    /// Why it is refused; empty if it is not.
    #[must_use]
    pub fn message(&self) -> &str {
        match &self.verdict {
            ReviewVerdict::Allowed => "",
            ReviewVerdict::Refused { message, .. } => message,
        }
    }

    /// What whoever asked is warned about: at most 16 texts of at most 250 characters.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What is changed, as operations of JSON Patch (RFC 6902); empty if nothing is.
    #[must_use]
    pub fn patch(&self) -> &[Value] {
        &self.patch
    }

    /// The `AdmissionReview` to send.
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

/// A violation as the API server tells its own: kubectl prints the field and this behind it.
fn cause(violation: &Violation) -> Value {
    let Violation { value, rule, fix, .. } = violation;
    let (reason, message) = match value {
        Some(value) => (
            "FieldValueInvalid",
            format!("Invalid value: {value}: {rule}; {fix}"),
        ),
        None => ("FieldValueRequired", format!("Required value: {rule}; {fix}")),
    };
    json!({"reason": reason, "field": shortened(&violation.field, MAX_WARNING), "message": shortened(&message, MAX_SENTENCE)})
}

/// `text` on one line, and no longer than `most` bytes.
fn shortened(text: &str, most: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    // No character becomes shorter.
    let begin: String = text.chars().take(most + 1).map(plain).collect();
    if begin.len() <= most {
        return begin;
    }
    let room = most - '…'.len_utf8();
    let end = (0..=room).rev().find(|&end| begin.is_char_boundary(end));
    format!("{}…", &begin[..end.unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_cut_off_between_characters_where_the_api_server_would() {
        let text = "ä".repeat(300);
        let cut = shortened(&text, MAX_WARNING);
        assert!(cut.len() <= MAX_WARNING && cut.ends_with("ä…"), "{cut}");
        assert_eq!(shortened("a\nb", MAX_WARNING), "a\u{fffd}b");
    }
}
