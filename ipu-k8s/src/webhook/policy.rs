//! The admission rules of an installation, and their application to the number of instances.

use ipu_core::{IpuCount, Limits, Violation};
use serde_json::{Value, json};

use super::request::Request;
use super::response::ReviewResponse;
use super::validate::new_violations;
use crate::crd::IpuJob;

/// Field of a job that a Scale changes.
pub(super) const INSTANCES: &str = "spec.jobInstances";

/// Admission rules of an installation.
///
/// ```
/// use ipu_core::{IpuCount, Limits};
/// use ipu_k8s::webhook::AdmissionRules;
///
/// let limits = Limits::default().with_max_ipus("16".parse::<IpuCount>()?);
/// let rules = AdmissionRules::new(limits).with_max_instances(8);
/// assert_eq!(rules.max_instances(), 8);
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionRules {
    limits: Limits,
    max_instances: u32,
}

impl Default for AdmissionRules {
    /// Returns rules with the default [`Limits`] and the maximum number of instances of a job.
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl AdmissionRules {
    /// Creates rules with these limits and the maximum number of instances of a job (65,536).
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            max_instances: IpuCount::MAX.get(),
        }
    }

    /// Sets the maximum number of instances of a job.
    #[must_use]
    pub const fn with_max_instances(mut self, max_instances: u32) -> Self {
        self.max_instances = max_instances;
        self
    }

    /// Returns the limits that a job is parsed with.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the maximum number of instances of a job.
    #[must_use]
    pub const fn max_instances(&self) -> u32 {
        self.max_instances
    }

    /// Returns the violation if `instances` in `field` exceeds the limit.
    pub(super) fn check_instances(&self, field: &str, instances: i64) -> Option<Violation> {
        let limit = i64::from(self.max_instances);
        (instances > limit).then(|| {
            Violation::new(
                field,
                Some(&instances.to_string()),
                format!("at most {limit} instances of a job are allowed here"),
                format!("use at most {limit}, or raise the limit of this installation"),
            )
        })
    }
}

/// Validates a change of the number of instances: an `autoscaling/v1` Scale has only that and the job's name.
/// It is refused if no job of this name and number is valid, whatever else its spec contains. The rules of
/// the CRD cover the rest.
pub(super) fn validate_scale(
    request: &Request,
    new: &Value,
    old: Option<&Value>,
    rules: &AdmissionRules,
) -> ReviewResponse {
    const REPLICAS: &str = "spec.replicas";
    // An absent value is zero, as in every Kubernetes object.
    let zero = Value::from(0);
    let replicas = |scale: Option<&Value>| {
        let value = scale.and_then(|scale| scale.pointer("/spec/replicas"));
        value.filter(|value| !value.is_null()).unwrap_or(&zero).clone()
    };
    let (requested, before) = (replicas(Some(new)), replicas(old));
    if !requested.is_i64() {
        let violation = Violation::new(
            REPLICAS,
            Some(&requested.to_string()),
            "must be a whole number",
            "write digits only",
        );
        return ReviewResponse::refuse(request, "Scale", &[violation]);
    }
    let name = new.pointer("/metadata/name").and_then(Value::as_str);
    let name = name.unwrap_or(&request.name);
    let minimal_job = |instances: &Value| {
        json!({
            "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND, "metadata": {"name": name},
            "spec": {
                "jobInstances": instances, "ipusPerJobInstance": 1,
                "workers": {"template": {"spec": {"containers": [{}]}}},
            },
        })
    };
    let violations = new_violations(request, &minimal_job(&requested), &minimal_job(&before), rules);
    let violations = violations
        .into_iter()
        .map(|violation| match violation.field.as_str() {
            INSTANCES => Violation {
                field: REPLICAS.to_owned(),
                ..violation
            },
            _ => Violation::new(
                REPLICAS,
                Some(&requested.to_string()),
                format!("of {} {name}: {}", violation.field, violation.rule),
                "use fewer, or create a job with a shorter name",
            ),
        });
    let violations: Vec<_> = violations.collect();
    if violations.is_empty() {
        ReviewResponse::allow(request)
    } else {
        ReviewResponse::refuse(request, "Scale", &violations)
    }
}
