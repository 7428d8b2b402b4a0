//! What the API server is answered when it asks whether an IPUJob is admitted: pure functions over an `AdmissionReview`.
//!
//! [`mutate`] stores the documented defaults and the finalizer, [`validate`] names everything that is wrong, in one answer.
//! Both take the review as it was sent and parse the object as every other part of the project does, so that a field of a
//! wrong kind is a violation like any other. What they never do:
//!
//! - refuse a deletion, or any change of an object that is being deleted, such as the removal of its finalizers;
//! - refuse an update that leaves the spec as it is, or one for what the stored object breaks already and the update does not
//!   make worse;
//! - change what somebody wrote: fields that are translated or ignored are warned about.
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
//!       "spec": {"jobInstances": 1, "ipusPerJobInstance": "3", "workers": {"template": {"spec": {"containers": [{}]}}}}
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

/// The finalizer of an IPUJob: it goes when the ledger has taken over the release of its partitions.
pub const FINALIZER: &str = IpuJob::FINALIZER;

/// The value of `spec.managedBy` that stands for this project's operator, as its absence does.
pub const MANAGED_BY: &str = IpuJob::OPERATOR;

/// Answers a review by what is to be stored beside what was written: cleanPodPolicy None, restartPolicy Never with three
/// restarts, one replica of the workers, and on creation [`FINALIZER`] unless somebody else manages the job.
///
/// It refuses no object; that is up to [`validate`], which is asked afterwards.
///
/// # Errors
///
/// [`ReviewError`] if `review` is no `AdmissionReview` that could be answered.
pub fn mutate(review: &[u8]) -> Result<ReviewResponse, ReviewError> {
    let request = Request::read(review)?;
    Ok(match request.asked() {
        ReviewTarget::Job { new, old } if !is_being_deleted(new) => {
            ReviewResponse::allow(&request).with_patch(&defaults::patch(new, old))
        }
        _ => ReviewResponse::allow(&request),
    })
}

/// Answers a review by everything that is wrong with the job, or, if nothing is, by what is odd about it.
///
/// # Errors
///
/// [`ReviewError`] if `review` is no `AdmissionReview` that could be answered.
pub fn validate(review: &[u8], rules: &AdmissionRules) -> Result<ReviewResponse, ReviewError> {
    let request = Request::read(review)?;
    Ok(match request.asked() {
        ReviewTarget::Nothing => ReviewResponse::allow(&request),
        ReviewTarget::OtherResource(resource) => {
            ReviewResponse::allow(&request).with_warnings([format!("no rule of IPUJobs is about {resource}")])
        }
        ReviewTarget::Missing => ReviewResponse::bad_request(&request, "the review has no object to look at"),
        ReviewTarget::Job { new, .. } | ReviewTarget::Scale { new, .. } if is_being_deleted(new) => {
            ReviewResponse::allow(&request)
        }
        ReviewTarget::Job { new, old } => validate::judge(&request, new, old, rules),
        ReviewTarget::Scale { new, old } => policy::judge_scale(&request, new, old, rules),
    })
}

/// The spec of an object; null is none.
fn spec_of(object: &Value) -> Option<&Value> {
    object.get("spec").filter(|spec| !spec.is_null())
}

fn is_being_deleted(object: &Value) -> bool {
    object
        .pointer("/metadata/deletionTimestamp")
        .is_some_and(|time| !time.is_null())
}
