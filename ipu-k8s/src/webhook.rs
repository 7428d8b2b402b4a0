//! The admission webhooks for IPUJobs: pure functions from an `AdmissionReview` to its response.
//!
//! [`mutate`] adds the documented defaults and the finalizer; [`validate`] reports all violations in one
//! response. Both take the review as it was sent and parse the object like every other part of the project,
//! so that a field of a wrong kind is a violation like any other. They never:
//!
//! - refuse a deletion, or any change of an object that is being deleted, such as the removal of its
//!   finalizers;
//! - refuse an update that leaves the spec unchanged, or one for a violation that the stored object has
//!   already and that the update does not make worse;
//! - change what the user wrote: translated and ignored fields get a warning.
//!
//! ```
//! use ipu_k8s::webhook::{AdmissionRules, validate};
//!
//! let review = r#"{
//!   "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
//!   "request": {
//!     "uid": "705ab4f5", "operation": "CREATE", "namespace": "default",
//!     "resource": {"group": "graphcore.ai", "version": "v1alpha1", "resource": "ipujobs"},
//!     "object": {
//!       "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "mnist"},
//!       "spec": {
//!         "jobInstances": 1, "ipusPerJobInstance": "3",
//!         "workers": {"template": {"spec": {"containers": [{}]}}}
//!       }
//!     }
//!   }
//! }"#;
//! let answer = validate(review.as_bytes(), &AdmissionRules::default())?;
//! assert!(!answer.allowed());
//! assert!(answer.message().contains("must be a power of two from 1 to 64; use 2 or 4"));
//! # Ok::<(), ipu_k8s::webhook::ReviewError>(())
//! ```

use crate::crd::IpuJob;

mod defaults;
mod policy;
mod request;
mod response;
mod validate;
mod warnings;

use serde_json::Value;

pub use self::policy::AdmissionRules;
pub use self::request::{MAX_REVIEW_BYTES, ReviewError};
use self::request::{Request, ReviewTarget};
pub use self::response::ReviewResponse;

/// Finalizer of an IPUJob. It is removed once the ledger has taken over the release of its partitions.
pub const FINALIZER: &str = IpuJob::FINALIZER;

/// Value of `spec.managedBy` for this project's operator, equivalent to its absence.
pub const MANAGED_BY: &str = IpuJob::OPERATOR;

/// Responds to a review with the defaults to be stored: cleanPodPolicy None, restartPolicy Never with three
/// restarts, one replica of the workers, and on creation [`FINALIZER`] unless another controller manages the
/// job.
///
/// It refuses no object; the API server calls [`validate`] afterwards.
///
/// # Errors
///
/// [`ReviewError`] if `review` is not an `AdmissionReview` that can be answered.
pub fn mutate(review: &[u8]) -> Result<ReviewResponse, ReviewError> {
    let request = Request::read(review)?;
    Ok(match request.target() {
        ReviewTarget::Job { new, old } if !is_being_deleted(new) => {
            ReviewResponse::allow(&request).with_patch(&defaults::patch(new, old))
        }
        _ => ReviewResponse::allow(&request),
    })
}

/// Responds to a review with all violations of the job, or with its warnings if there are none.
///
/// # Errors
///
/// [`ReviewError`] if `review` is not an `AdmissionReview` that can be answered.
pub fn validate(review: &[u8], rules: &AdmissionRules) -> Result<ReviewResponse, ReviewError> {
    let request = Request::read(review)?;
    Ok(match request.target() {
        ReviewTarget::NotReviewed => ReviewResponse::allow(&request),
        ReviewTarget::OtherResource(resource) => ReviewResponse::allow(&request)
            .with_warnings([format!("this webhook does not validate {resource}")]),
        ReviewTarget::Missing => ReviewResponse::bad_request(&request, "the review contains no object"),
        ReviewTarget::Job { new, .. } | ReviewTarget::Scale { new, .. } if is_being_deleted(new) => {
            ReviewResponse::allow(&request)
        }
        ReviewTarget::Job { new, old } => validate::validate_job(&request, new, old, rules),
        ReviewTarget::Scale { new, old } => policy::validate_scale(&request, new, old, rules),
    })
}

/// Returns the spec of an object; `None` if it is null.
fn spec_of(object: &Value) -> Option<&Value> {
    object.get("spec").filter(|spec| !spec.is_null())
}

fn is_being_deleted(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null())
}
