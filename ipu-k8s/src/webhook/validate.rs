//! Validation of IPUJobs: new content has to follow the rules.

use ipu_core::{ParsedJob, Violation, Warning};
use serde_json::{Map, Value, json};

use super::policy::{AdmissionRules, INSTANCES};
use super::request::Request;
use super::response::ReviewResponse;
use super::spec_of;
use super::warnings::ignored_fields;
use crate::crd::{IpuJob, Manifest};

/// Placeholder for the characters that the API server appends to `generateName`, of which it takes the first
/// 58 characters.
const GENERATED_SUFFIX: &str = "xxxxx";
const MAX_PREFIX_CHARS: usize = 58;

/// Fields that are compared with the stored job in a special way.
const NAME: &str = "metadata.name";
const CODES: &str = "spec.restartPolicy.exitCodes";

/// Validates a job that is created (`old` is `None`) or updated.
pub(super) fn validate_job(
    request: &Request,
    new: &Value,
    old: Option<&Value>,
    rules: &AdmissionRules,
) -> ReviewResponse {
    // A change of labels or finalizers is independent of the spec.
    if old.is_some_and(|old| spec_of(old) == spec_of(new)) {
        return ReviewResponse::allow(request);
    }
    let found = JobViolations::find(request, new, rules);
    let before = old.map(|old| JobViolations::find(request, old, rules));
    let (refused, tolerated) = found.partition(before.as_ref());
    let warnings = found.warnings.iter().map(Warning::to_string);
    let ignored_fields = ignored_fields(new).into_iter().map(|warning| warning.to_string());
    let tolerated = tolerated
        .into_iter()
        .map(|violation| Warning::from(violation).to_string());
    if refused.is_empty() {
        ReviewResponse::allow(request).with_warnings(warnings.chain(ignored_fields).chain(tolerated))
    } else {
        ReviewResponse::refuse(request, IpuJob::KIND, &refused)
    }
}

/// Returns the violations of `new` that `old` does not have.
pub(super) fn new_violations(
    request: &Request,
    new: &Value,
    old: &Value,
    rules: &AdmissionRules,
) -> Vec<Violation> {
    let before = JobViolations::find(request, old, rules);
    JobViolations::find(request, new, rules)
        .partition(Some(&before))
        .0
}

/// Violations and warnings of a job.
struct JobViolations {
    /// Violations that prevent the job from running.
    broken: Vec<Violation>,
    /// Violations of the installation's limits only.
    forbidden: Vec<Violation>,
    /// Warnings, if there is no violation.
    warnings: Vec<Warning>,
    /// Number of instances and of workers in each, if the job could run.
    processes: Option<(u32, u32)>,
}

impl JobViolations {
    fn find(request: &Request, object: &Value, rules: &AdmissionRules) -> Self {
        let manifest = manifest(request, object);
        let (all, warnings) = match manifest.parse(rules.limits()) {
            Ok(parsed) => (Vec::new(), parsed.warnings),
            Err(violations) => (violations, Vec::new()),
        };
        let (broken, processes) = match manifest.parse(&rules.limits().for_stored()) {
            Ok(ParsedJob { spec, .. }) => (Vec::new(), Some((spec.instances(), spec.workers_per_instance()))),
            Err(violations) => (violations, None),
        };
        let mut forbidden = all;
        forbidden.retain(|violation| !broken.contains(violation));
        let instances = manifest.job.spec.job_instances.as_ref();
        let instances = instances.and_then(ipu_core::IntOrString::as_int);
        let is_about_instances = |violation: &Violation| violation.field == INSTANCES;
        let is_reported = broken.iter().any(is_about_instances) || forbidden.iter().any(is_about_instances);
        if let Some(instances) = instances.filter(|_| !is_reported) {
            forbidden.extend(rules.check_instances(INSTANCES, instances));
        }
        Self {
            broken,
            forbidden,
            warnings,
            processes,
        }
    }

    /// Returns the refused violations, and those tolerated because the job had them `before`.
    fn partition(&self, before: Option<&Self>) -> (Vec<Violation>, Vec<Violation>) {
        let all = self.broken.iter().map(|violation| (violation, false));
        let all = all.chain(self.forbidden.iter().map(|violation| (violation, true)));
        let (tolerated, refused): (Vec<_>, Vec<_>) = all.partition(|(violation, limit)| {
            before.is_some_and(|before| {
                before.has_violation(violation) || *limit && before.exceeds_as_far(violation, self)
            })
        });
        let cloned = |(violation, _): (&Violation, bool)| violation.clone();
        (
            refused.into_iter().map(cloned).collect(),
            tolerated.into_iter().map(cloned).collect(),
        )
    }

    /// Returns whether this job has the same violation.
    fn has_violation(&self, violation: &Violation) -> bool {
        self.broken.contains(violation) || self.forbidden.contains(violation)
    }

    /// Returns whether this job exceeds the limit of `violation`, a violation of `new`, at least as far as
    /// `new` does.
    fn exceeds_as_far(&self, violation: &Violation, new: &Self) -> bool {
        let limit = limit(violation);
        let mut violations = self
            .forbidden
            .iter()
            .filter(|own| limit == self::limit(own) && !new.forbidden.contains(own));
        violations.any(|own| match (limit, number(own), number(violation)) {
            // Too long a name: `new` has no more processes to name than before.
            (NAME, ..) => match (self.processes, new.processes) {
                (Some((instances, workers)), Some((new, each))) => {
                    let all = |instances: u32, each: u32| u64::from(instances) * u64::from(each);
                    new <= instances && all(new, each) <= all(instances, workers)
                }
                _ => true,
            },
            (CODES, ..) => false,
            // A value that is not positive is below a limit.
            (_, Some(own), Some(new)) if own <= 0 || new <= 0 => new <= 0 && own <= new,
            (_, Some(own), Some(new)) => new <= own,
            // A missing required field produces different texts: compare the rule only.
            _ => own.rule == violation.rule,
        })
    }
}

/// Returns the limit of a violation: both forms of a size share one.
fn limit(violation: &Violation) -> &str {
    match violation.field.as_str() {
        "spec.modelReplicas" => "spec.ipusPerJobInstance",
        field => field,
    }
}

/// Returns the number in a violation. It is quoted if it was written as a string, and a product in the alpha
/// form.
fn number(violation: &Violation) -> Option<i64> {
    let factors = violation.value.as_deref()?.split(" × ");
    factors
        .map(|factor| factor.trim_matches('"').parse::<i64>().ok())
        .product()
}

/// Returns the object, completed as the API server does before it stores it. The other metadata are the API
/// server's.
fn manifest(request: &Request, object: &Value) -> Manifest {
    let mut wanted = Map::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if name != "metadata" && name != "status" {
            let templated = (name == "spec").then(|| with_outlined_template(value)).flatten();
            wanted.insert(name.clone(), templated.unwrap_or_else(|| value.clone()));
        }
    }
    let mut metadata = Map::new();
    for name in ["name", "generateName", "namespace", "uid"] {
        let value = object.get("metadata").and_then(|metadata| metadata.get(name));
        if let Some(value) = value.filter(|value| **value != "") {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
    wanted.insert("metadata".to_owned(), Value::Object(metadata));
    let mut manifest = Manifest::from_value(Value::Object(wanted));
    let metadata = &mut manifest.job.metadata;
    metadata
        .uid
        .get_or_insert_with(|| "00000000-0000-0000-0000-000000000000".to_owned());
    if metadata.namespace.is_none() {
        metadata.namespace.clone_from(&request.namespace);
    }
    if let (None, Some(prefix)) = (&metadata.name, &metadata.generate_name) {
        let prefix: String = prefix.chars().take(MAX_PREFIX_CHARS).collect();
        metadata.name = Some(format!("{prefix}{GENERATED_SUFFIX}"));
    }
    manifest
}

/// Returns a copy of `spec` with only the relevant part of its template, the largest part by far: the
/// presence of containers, and its ServiceAccount. Returns `None` without a template.
fn with_outlined_template(spec: &Value) -> Option<Value> {
    let outline = |template: &Map<String, Value>| {
        let spec = template.get("spec")?.as_object()?;
        let mut outline = Map::new();
        match spec.get("containers") {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) if items.is_empty() => {
                outline.insert("containers".to_owned(), json!([]))
            }
            Some(_) => outline.insert("containers".to_owned(), json!([{}])),
        };
        for field in ["serviceAccountName", "serviceAccount"] {
            if let Some(name) = spec.get(field) {
                outline.insert(field.to_owned(), name.clone());
            }
        }
        Some(json!({"spec": outline}))
    };
    let template = spec.pointer("/workers/template")?.as_object()?;
    let copied = |object: &Map<String, Value>, field: &str, replacement: Value| {
        let others = object.iter().filter(|(name, _)| *name != field);
        let mut copy: Map<_, _> = others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        copy.insert(field.to_owned(), replacement);
        Value::Object(copy)
    };
    let outline = outline(template).unwrap_or_else(|| json!({}));
    let workers = copied(spec.get("workers")?.as_object()?, "template", outline);
    Some(copied(spec.as_object()?, "workers", workers))
}
