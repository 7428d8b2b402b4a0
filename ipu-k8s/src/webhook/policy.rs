//! What an installation allows, and what that means for the number of instances.

use ipu_core::{IpuCount, Limits, Violation};
use serde_json::{Value, json};

use super::request::Request;
use super::response::ReviewResponse;
use super::validate::broken_anew;
use crate::crd::IpuJob;

/// The field of a job that a Scale changes.
pub(super) const INSTANCES: &str = "spec.jobInstances";

/// What an installation allows.
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
    /// The default [`Limits`], and as many instances as a job can have at all.
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl AdmissionRules {
    /// These limits, and as many instances as a job can have at all (65,536).
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            max_instances: IpuCount::MAX.get(),
        }
    }

    /// The same with at most `max_instances` instances of a job.
    #[must_use]
    pub const fn with_max_instances(mut self, max_instances: u32) -> Self {
        self.max_instances = max_instances;
        self
    }

    /// The limits that a job is parsed with.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The most instances of a job.
    #[must_use]
    pub const fn max_instances(&self) -> u32 {
        self.max_instances
    }

    /// The violation of asking for `instances` in `field`.
    pub(super) fn check_instances(&self, field: &str, instances: i64) -> Option<Violation> {
        let most = i64::from(self.max_instances);
        (instances > most).then(|| {
            Violation::new(
                field,
                Some(&instances.to_string()),
                format!("at most {most} instances of a job are allowed here"),
                format!("use at most {most}, or raise the limit of this installation"),
            )
        })
    }
}

/// Judges a change of the number of instances: an `autoscaling/v1` Scale has that and the job's name. It is refused for what no job
/// of this name and number could have, whatever else it asks for; the definition's rules know the rest.
pub(super) fn judge_scale(
    request: &Request,
    new: &Value,
    old: Option<&Value>,
    rules: &AdmissionRules,
) -> ReviewResponse {
    const REPLICAS: &str = "spec.replicas";
    // Absent is zero, as in every object of Kubernetes.
    let zero = Value::from(0);
    let replicas = |scale: Option<&Value>| {
        let given = scale.and_then(|scale| scale.pointer("/spec/replicas"));
        given.filter(|given| !given.is_null()).unwrap_or(&zero).clone()
    };
    let (asked, before) = (replicas(Some(new)), replicas(old));
    if !asked.is_i64() {
        let fault = Violation::new(
            REPLICAS,
            Some(&asked.to_string()),
            "must be a whole number",
            "write digits only",
        );
        return ReviewResponse::refuse(request, "Scale", &[fault]);
    }
    let name = new.pointer("/metadata/name").and_then(Value::as_str);
    let name = name.unwrap_or(&request.name);
    let least = |instances: &Value| {
        json!({
            "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND, "metadata": {"name": name},
            "spec": {
                "jobInstances": instances, "ipusPerJobInstance": 1,
                "workers": {"template": {"spec": {"containers": [{}]}}},
            },
        })
    };
    let broken = broken_anew(request, &least(&asked), &least(&before), rules);
    let told = broken
        .into_iter()
        .map(|violation| match violation.field.as_str() {
            INSTANCES => Violation {
                field: REPLICAS.to_owned(),
                ..violation
            },
            _ => Violation::new(
                REPLICAS,
                Some(&asked.to_string()),
                format!("of {} {name}: {}", violation.field, violation.rule),
                "use fewer, or make a job of a shorter name",
            ),
        });
    let told: Vec<_> = told.collect();
    if told.is_empty() {
        ReviewResponse::allow(request)
    } else {
        ReviewResponse::refuse(request, "Scale", &told)
    }
}
