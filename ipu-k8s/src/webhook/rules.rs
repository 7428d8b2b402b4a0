//! What an installation allows, and what that means for the number of instances.

use ipu_core::{IpuCount, Limits, Violation};
use serde_json::Value;

use super::answer::Answer;
use super::request::Request;

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

    /// The violation of asking for `instances` in `field`, unless the stored object, which has `old`, asked for as many.
    pub(super) fn check_instances(&self, field: &str, instances: i64, old: Option<i64>) -> Option<Violation> {
        let most = i64::from(self.max_instances);
        let tolerated = old.is_some_and(|old| old > most && instances <= old);
        (instances > most && !tolerated).then(|| {
            Violation::new(
                field,
                Some(&instances.to_string()),
                format!("at most {most} instances of a job are allowed here"),
                format!("use at most {most}, or raise the limit of this installation"),
            )
        })
    }
}

/// Judges a change of the number of instances: an `autoscaling/v1` Scale has nothing else.
pub(super) fn judge_scale(
    request: &Request,
    new: &Value,
    old: Option<&Value>,
    rules: &AdmissionRules,
) -> Answer {
    // Absent is zero, as in every object of Kubernetes.
    let replicas = |scale: &Value| scale.pointer("/spec/replicas").map_or(Some(0), Value::as_i64);
    let Some(asked) = replicas(new) else {
        let fault = Violation::new(
            "spec.replicas",
            Some("…"),
            "must be a whole number",
            "write digits only",
        );
        return Answer::refuse(request, "Scale", &[fault]);
    };
    match rules.check_instances("spec.replicas", asked, old.and_then(replicas)) {
        Some(violation) => Answer::refuse(request, "Scale", &[violation]),
        None => Answer::allow(request),
    }
}
