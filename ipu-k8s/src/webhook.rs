//! The admission webhooks for IPUJobs: pure functions from an `AdmissionReview` to its response.
//!
//! [`mutate`] adds the finalizer; [`validate`] reports all violations in one response: those of the rules
//! that the CRD cannot state, and of the limits of the installation. They never:
//!
//! - refuse a deletion, or any change of an object that is being deleted, such as the removal of its
//!   finalizers;
//! - refuse an update that leaves the spec unchanged, or one for a field that the stored object has with the
//!   same violation and value;
//! - change what the user wrote: translated and ignored fields get a warning.
//!
//! ```
//! use ipu_k8s::webhook::{AdmissionRules, validate};
//!
//! let review = r#"{
//!   "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
//!   "request": {
//!     "uid": "705ab4f5", "operation": "CREATE", "namespace": "default", "userInfo": {},
//!     "kind": {"group": "graphcore.ai", "version": "v1alpha1", "kind": "IPUJob"},
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
//! let response = validate(review.as_bytes(), &AdmissionRules::default())?;
//! assert!(!response.allowed);
//! assert!(response.result.message.contains("must be a power of two from 1 to 64; use 2 or 4"));
//! # Ok::<(), ipu_k8s::webhook::ReviewError>(())
//! ```

mod warnings;

use ipu_core::IpuCount;
use ipu_core::job::{IntOrString, Limits, Violation, Warning};
use kube::ResourceExt as _;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use kube::core::response::{StatusCause, StatusDetails};
use kube::core::{DynamicObject, Status, TypeMeta};
use serde_json::json;

use self::warnings::delayed_change;
use crate::crd::{IpuJob, Manifest};

/// Maximum size of a review in bytes: the API server accepts objects of up to 3 MiB, and a review contains
/// the old and the new one.
pub const MAX_REVIEW_BYTES: usize = 8 << 20;

/// Maximum number of values of a review. An object of many small values takes a hundred times the size of its
/// text in memory; this many take about 30 MiB.
const MAX_VALUES: usize = 100_000;

/// Maximum number of warnings: the API server drops everything beyond 4096 bytes.
const MAX_WARNINGS: usize = 16;

/// Placeholder for the characters that the API server appends to `generateName`, of which it takes the first
/// 58 characters.
const GENERATED_SUFFIX: &str = "xxxxx";
const MAX_PREFIX_CHARS: usize = 58;

/// Admission rules of an installation.
///
/// ```
/// use ipu_core::IpuCount;
/// use ipu_core::job::Limits;
/// use ipu_k8s::webhook::AdmissionRules;
///
/// let limits = Limits::default().with_max_ipus("16".parse::<IpuCount>()?);
/// let rules = AdmissionRules { limits, max_instances: 8 };
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionRules {
    /// The limits that a job is parsed with.
    pub limits: Limits,
    /// Maximum number of instances of a job.
    pub max_instances: u32,
}

impl Default for AdmissionRules {
    /// Returns rules with the default [`Limits`] and at most 65,536 instances of a job.
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            max_instances: IpuCount::MAX.get(),
        }
    }
}

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
    #[error("the review has about {values} values; at most {MAX_VALUES} are read")]
    TooMuch {
        /// Number of values.
        values: usize,
    },
    /// The text is not JSON, or not a review.
    #[error("this is not an AdmissionReview of admission.k8s.io/v1: {detail}")]
    Malformed {
        /// Error of the parser.
        detail: String,
    },
}

type Request = AdmissionRequest<DynamicObject>;

/// Responds to a review of a new job with the finalizer to be stored, unless another controller manages the
/// job. A later removal of the finalizer is not undone: the operator adds one to every job before it requests
/// a partition for it.
///
/// No object is refused; the API server calls [`validate`] afterwards.
///
/// # Errors
///
/// [`ReviewError`] if `review` is not an `AdmissionReview` that can be answered.
pub fn mutate(review: &[u8]) -> Result<AdmissionResponse, ReviewError> {
    let request = read(review)?;
    let response = AdmissionResponse::from(&request);
    let new_job = request.object.as_ref().filter(|_| {
        request.operation == Operation::Create
            && is_ipujob(&request)
            && request.sub_resource.as_deref().unwrap_or_default().is_empty()
    });
    let Some(job) = new_job else {
        return Ok(response);
    };
    let is_ours = IpuJob::other_manager_in(job.data["spec"]["managedBy"].as_str()).is_none();
    let operation = match job.finalizers() {
        finalizers if !is_ours || finalizers.iter().any(|one| one == IpuJob::FINALIZER) => {
            return Ok(response);
        }
        [] => json!({"op": "add", "path": "/metadata/finalizers", "value": [IpuJob::FINALIZER]}),
        _ => json!({"op": "add", "path": "/metadata/finalizers/-", "value": IpuJob::FINALIZER}),
    };
    let malformed = |detail: String| ReviewError::Malformed { detail };
    let patch = serde_json::from_value(json!([operation])).map_err(|error| malformed(error.to_string()))?;
    response
        .with_patch(patch)
        .map_err(|error| malformed(error.to_string()))
}

/// Responds to a review with all violations of the job, or with its warnings if there are none.
///
/// # Errors
///
/// [`ReviewError`] if `review` is not an `AdmissionReview` that can be answered.
pub fn validate(review: &[u8], rules: &AdmissionRules) -> Result<AdmissionResponse, ReviewError> {
    let request = read(review)?;
    let response = AdmissionResponse::from(&request);
    let is_reviewed =
        matches!(request.operation, Operation::Create | Operation::Update) && is_ipujob(&request);
    let (Some(new), true) = (&request.object, is_reviewed) else {
        return Ok(response);
    };
    let old = request
        .old_object
        .as_ref()
        .filter(|_| request.operation == Operation::Update);
    // A change of labels or finalizers is independent of the spec.
    let is_same = old.is_some_and(|old| old.data["spec"] == new.data["spec"]);
    if is_same || new.metadata.deletion_timestamp.is_some() {
        return Ok(response);
    }
    Ok(match request.sub_resource.as_deref() {
        None | Some("") => validate_job(&request, new, old, rules),
        Some("scale") => validate_scale(&request, new, old, rules),
        Some(_) => response,
    })
}

fn read(review: &[u8]) -> Result<Request, ReviewError> {
    if review.len() > MAX_REVIEW_BYTES {
        return Err(ReviewError::TooLarge { bytes: review.len() });
    }
    // Those within strings count too, of which a real job has few.
    let values = review
        .iter()
        .filter(|byte| matches!(byte, b',' | b'{' | b'['))
        .count();
    if values > MAX_VALUES {
        return Err(ReviewError::TooMuch { values });
    }
    let malformed = |detail: String| ReviewError::Malformed { detail };
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(review).map_err(|error| malformed(error.to_string()))?;
    if review.types
        != (TypeMeta {
            api_version: "admission.k8s.io/v1".into(),
            kind: "AdmissionReview".into(),
        })
    {
        return Err(malformed(format!(
            "{} {}",
            review.types.api_version, review.types.kind
        )));
    }
    review
        .try_into()
        .map_err(|_| malformed("it has no request".into()))
}

fn is_ipujob(request: &Request) -> bool {
    request.resource.group == "graphcore.ai" && request.resource.resource == "ipujobs"
}

fn validate_job(
    request: &Request,
    new: &DynamicObject,
    old: Option<&DynamicObject>,
    rules: &AdmissionRules,
) -> AdmissionResponse {
    let (violations, mut warnings) = judge(request, new, rules);
    let known = old.map(|old| judge(request, old, rules).0).unwrap_or_default();
    let is_known = |violation: &Violation| {
        let mut known = known.iter();
        known.any(|known| known.field == violation.field && known.value == violation.value)
    };
    let (tolerated, refused): (Vec<_>, Vec<_>) = violations.into_iter().partition(is_known);
    if !refused.is_empty() {
        return refuse(request, IpuJob::KIND, &refused);
    }
    warnings.extend(old.and_then(|old| delayed_change(&old.data, &new.data)));
    warnings.extend(tolerated);
    let mut response = AdmissionResponse::from(request);
    let shown = warnings
        .iter()
        .take(MAX_WARNINGS)
        .map(Warning::to_string)
        .collect();
    response.warnings = (!warnings.is_empty()).then_some(shown);
    response
}

/// Validates a change of the number of instances: an `autoscaling/v1` Scale has only that and the job's name.
/// The rules of the CRD cover the rest.
fn validate_scale(
    request: &Request,
    new: &DynamicObject,
    old: Option<&DynamicObject>,
    rules: &AdmissionRules,
) -> AdmissionResponse {
    let replicas = |scale: &DynamicObject| scale.data["spec"]["replicas"].as_i64().unwrap_or_default();
    let is_larger = old.is_none_or(|old| replicas(old) < replicas(new));
    match too_many("spec.replicas", replicas(new), rules).filter(|_| is_larger) {
        Some(violation) => refuse(request, "Scale", &[violation]),
        None => AdmissionResponse::from(request),
    }
}

/// Returns the violations and the warnings of a job, completed as the API server does before it stores the
/// job.
fn judge(
    request: &Request,
    object: &DynamicObject,
    rules: &AdmissionRules,
) -> (Vec<Violation>, Vec<Warning>) {
    let types = object.types.clone().unwrap_or_default();
    let mut manifest = Manifest::from_value(
        1,
        json!({"apiVersion": types.api_version, "kind": types.kind, "spec": object.data["spec"]}),
    );
    let metadata = &mut manifest.job.metadata;
    metadata.uid = Some("00000000-0000-0000-0000-000000000000".to_owned());
    metadata.namespace = request.namespace.clone();
    metadata.name = object.metadata.name.clone().filter(|name| !name.is_empty());
    if let (None, Some(prefix)) = (&metadata.name, &object.metadata.generate_name) {
        let prefix: String = prefix.chars().take(MAX_PREFIX_CHARS).collect();
        metadata.name = Some(format!("{prefix}{GENERATED_SUFFIX}"));
    }
    let (mut violations, warnings) = match manifest.parse(&rules.limits) {
        Ok(parsed) => (Vec::new(), parsed.warnings),
        Err(violations) => (violations.into_iter().collect(), Vec::new()),
    };
    let instances = manifest
        .job
        .spec
        .job_instances
        .as_ref()
        .and_then(IntOrString::as_int);
    violations.extend(manifest.job.missing_images());
    violations.extend(instances.and_then(|instances| too_many("spec.jobInstances", instances, rules)));
    (violations, warnings)
}

/// Returns the violation if `instances` in `field` exceeds the limit of the installation.
fn too_many(field: &str, instances: i64, rules: &AdmissionRules) -> Option<Violation> {
    let limit = rules.max_instances;
    (instances > i64::from(limit)).then(|| {
        Violation::new(
            field,
            Some(&instances.to_string()),
            format!("at most {limit} instances of a job are allowed here"),
            format!("use at most {limit}, or raise the limit of this installation"),
        )
    })
}

/// Refuses a request with these violations, at least one, in the form of the API server's own errors: kubectl
/// prints each cause.
fn refuse(request: &Request, kind: &str, violations: &[Violation]) -> AdmissionResponse {
    let count = match violations.len() {
        1 => "a rule".to_owned(),
        all => format!("{all} rules"),
    };
    let listed: String = violations
        .iter()
        .map(|violation| format!("\n- {violation}"))
        .collect();
    let cause = |Violation {
                     field,
                     value,
                     rule,
                     fix,
                 }: &Violation| StatusCause {
        reason: if value.is_some() {
            "FieldValueInvalid"
        } else {
            "FieldValueRequired"
        }
        .to_owned(),
        message: match value {
            Some(value) => format!("Invalid value: {value}: {rule}; {fix}"),
            None => format!("Required value: {rule}; {fix}"),
        },
        field: field.clone(),
    };
    let details = StatusDetails {
        name: request.name.clone(),
        group: "graphcore.ai".to_owned(),
        kind: IpuJob::KIND.to_owned(),
        causes: violations.iter().map(cause).collect(),
        uid: String::new(),
        retry_after_seconds: 0,
    };
    let mut response = AdmissionResponse::from(request);
    response.allowed = false;
    response.result = Status::failure(&format!("the {kind} breaks {count}:{listed}"), "Invalid")
        .with_code(422)
        .with_details(details);
    response
}
