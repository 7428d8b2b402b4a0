//! The request: an `AdmissionReview` as the API server sends it.

use serde::Deserialize;
use serde_json::Value;

/// Maximum size of a review in bytes: the API server accepts objects of up to 3 MiB, and a review contains
/// the old and the new one.
pub const MAX_REVIEW_BYTES: usize = 8 << 20;

/// Approximate maximum memory of the parsed values of a review in bytes. An object of many small values takes
/// a hundred times the size of its text; one that Kubernetes stores, of at most 1.5 MiB, takes a few MiB.
const MAX_MEMORY: usize = 32 << 20;

/// Supported version of reviews.
pub(super) const API_VERSION: &str = "admission.k8s.io/v1";

/// Maximum length of a uid that is returned; those of the API server have 36 characters.
const MAX_UID: usize = 256;

/// Reason why a text is not a review that can be answered. Answer with HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// The review is too large.
    #[error("the review has {bytes} bytes; at most {MAX_REVIEW_BYTES} are read")]
    TooLarge {
        /// Size in bytes.
        bytes: usize,
    },
    /// The review has too many values.
    #[error(
        "the review has so many values that they would take {bytes} bytes; those of at most {MAX_MEMORY} bytes are read"
    )]
    TooMuch {
        /// Memory that they would take.
        bytes: usize,
    },
    /// The text is not JSON, or not a review.
    #[error("this is not an AdmissionReview: {detail}")]
    Malformed {
        /// Error of the parser.
        detail: String,
    },
    /// The review has another version.
    #[error("this is {found}; only {API_VERSION} AdmissionReview is supported")]
    Version {
        /// Version of the review.
        found: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Request,
}

/// Request of a review.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) uid: String,
    #[serde(default)]
    resource: Resource,
    #[serde(default)]
    sub_resource: Option<String>,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) namespace: Option<String>,
    #[serde(default)]
    operation: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    group: String,
    resource: String,
}

/// Subject of a request.
pub(super) enum ReviewTarget<'a> {
    /// Nothing to validate, such as a deletion.
    NotReviewed,
    /// Another resource than an IPUJob.
    OtherResource(String),
    /// An IPUJob that is created or updated.
    Job { new: &'a Value, old: Option<&'a Value> },
    /// The number of instances of an IPUJob.
    Scale { new: &'a Value, old: Option<&'a Value> },
    /// The request has no object.
    Missing,
}

impl Request {
    pub(super) fn read(review: &[u8]) -> Result<Self, ReviewError> {
        if review.len() > MAX_REVIEW_BYTES {
            return Err(ReviewError::TooLarge { bytes: review.len() });
        }
        let bytes = estimate_memory(review);
        if bytes > MAX_MEMORY {
            return Err(ReviewError::TooMuch { bytes });
        }
        let malformed = |detail: String| ReviewError::Malformed { detail };
        let review: Review = serde_json::from_slice(review).map_err(|error| malformed(error.to_string()))?;
        if review.api_version != API_VERSION || review.kind != "AdmissionReview" {
            let found = format!("{} {}", review.api_version, review.kind);
            return Err(ReviewError::Version {
                found: found.chars().take(MAX_UID).collect(),
            });
        }
        let uid = review.request.uid.len();
        if uid == 0 || uid > MAX_UID {
            return Err(malformed(format!("its request has a uid of {uid} bytes")));
        }
        Ok(review.request)
    }

    pub(super) fn target(&self) -> ReviewTarget<'_> {
        let old = Some(&self.old_object).filter(|old| old.is_object());
        // A deletion is never refused, and CONNECT does not apply to IPUJobs.
        let old = match self.operation.as_str() {
            "CREATE" => None,
            "UPDATE" => old,
            _ => return ReviewTarget::NotReviewed,
        };
        let Resource { group, resource } = &self.resource;
        if group != "graphcore.ai" || resource != "ipujobs" {
            return ReviewTarget::OtherResource(format!("{resource}.{group}"));
        }
        let new = &self.object;
        match self.sub_resource.as_deref().unwrap_or_default() {
            "" | "scale" if !new.is_object() => ReviewTarget::Missing,
            "" => ReviewTarget::Job { new, old },
            "scale" => ReviewTarget::Scale { new, old },
            _ => ReviewTarget::NotReviewed,
        }
    }
}

/// Returns the approximate memory of the values of a JSON text, without the characters of its strings. An
/// object allocates space for eleven fields, and a list for four items. Invalid JSON counts as zero.
fn estimate_memory(text: &[u8]) -> usize {
    const OBJECT: usize = 700;
    const LIST: usize = 150;
    const ITEM: usize = 140;
    let mut bytes = 0;
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        if quoted {
            quoted = escaped || *byte != b'"';
            escaped = !escaped && *byte == b'\\';
            continue;
        }
        bytes += match byte {
            b'"' => {
                quoted = true;
                0
            }
            b'{' if text.get(at + 1) != Some(&b'}') => OBJECT,
            b'[' if text.get(at + 1) != Some(&b']') => LIST,
            b',' => ITEM,
            _ => 0,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_estimate_counts_values_and_not_the_content_of_strings() {
        for (text, bytes) in [
            ("", 0),
            ("{}", 0),
            ("[]", 0),
            (r#"{"a":1}"#, 700),
            (r#"{"a":1,"b":[2,3],"c":{}}"#, 700 + 150 + 3 * 140),
            (r#""[{,\\\"[{,""#, 0),
            (r#"["\\\\",{"a":0}]"#, 150 + 140 + 700),
        ] {
            assert_eq!(estimate_memory(text.as_bytes()), bytes, "{text}");
        }
    }
}
