//! What is asked: an `AdmissionReview` as the API server sends it.

use serde::Deserialize;
use serde_json::Value;

/// The most bytes of a review: the API server takes objects of up to 3 MiB, and a review has the old one and the new one.
pub const MAX_REVIEW_BYTES: usize = 8 << 20;

/// The most bytes of memory, roughly, that the values of a review take once they are read. An object of many small values takes a
/// hundred times the bytes of its text; one that Kubernetes stores, of at most 1.5 MiB, takes a few MiB.
const MAX_MEMORY: usize = 32 << 20;

/// The version of reviews that is spoken.
pub(super) const API_VERSION: &str = "admission.k8s.io/v1";

/// The longest uid that is sent back; the API server's have 36 characters.
const MAX_UID: usize = 256;

/// Why a text is no review that could be answered. To be answered as HTTP 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReviewError {
    /// Too large.
    #[error("the review has {bytes} bytes; at most {MAX_REVIEW_BYTES} are read")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Too many values.
    #[error(
        "the review has so many values that they would take {bytes} bytes; those of at most {MAX_MEMORY} bytes are read"
    )]
    TooMuch {
        /// What they would take.
        bytes: usize,
    },
    /// No JSON, or not of the form of a review.
    #[error("this is not an AdmissionReview: {detail}")]
    Malformed {
        /// What is wrong with it.
        detail: String,
    },
    /// Another version.
    #[error("this is {found}, and only {API_VERSION} AdmissionReview is understood")]
    Version {
        /// Which one.
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

/// The question.
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

/// What a question is about.
pub(super) enum ReviewTarget<'a> {
    /// Nothing that is judged, such as a deletion.
    Nothing,
    /// Something else than an IPUJob.
    OtherResource(String),
    /// An IPUJob that is created, or one instead of an old one.
    Job { new: &'a Value, old: Option<&'a Value> },
    /// The number of instances of an IPUJob.
    Scale { new: &'a Value, old: Option<&'a Value> },
    /// An object that is not there.
    Missing,
}

impl Request {
    pub(super) fn read(review: &[u8]) -> Result<Self, ReviewError> {
        if review.len() > MAX_REVIEW_BYTES {
            return Err(ReviewError::TooLarge { bytes: review.len() });
        }
        let bytes = memory(review);
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

    pub(super) fn asked(&self) -> ReviewTarget<'_> {
        let old = Some(&self.old_object).filter(|old| old.is_object());
        // A deletion is never ours to refuse, and nothing else connects to an IPUJob.
        let old = match self.operation.as_str() {
            "CREATE" => None,
            "UPDATE" => old,
            _ => return ReviewTarget::Nothing,
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
            _ => ReviewTarget::Nothing,
        }
    }
}

/// The memory, roughly, that the values of a JSON text take, beside the characters of its strings: an object has room for
/// eleven fields if it has one, and a list for four items. What is no JSON takes none.
fn memory(text: &[u8]) -> usize {
    const OBJECT: usize = 700;
    const LIST: usize = 150;
    const FURTHER: usize = 140;
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
            b',' => FURTHER,
            _ => 0,
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_values_take_is_told_by_their_number_and_not_by_what_texts_have() {
        for (text, bytes) in [
            ("", 0),
            ("{}", 0),
            ("[]", 0),
            (r#"{"a":1}"#, 700),
            (r#"{"a":1,"b":[2,3],"c":{}}"#, 700 + 150 + 3 * 140),
            (r#""[{,\\\"[{,""#, 0),
            (r#"["\\\\",{"a":0}]"#, 150 + 140 + 700),
        ] {
            assert_eq!(memory(text.as_bytes()), bytes, "{text}");
        }
    }
}
