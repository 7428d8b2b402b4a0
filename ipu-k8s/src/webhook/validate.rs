//! Whether an IPUJob is admitted: what is new about it has to follow the rules.

use ipu_core::{ParsedJob, Violation, Warning};
use serde_json::{Map, Value, json};

use super::policy::{AdmissionRules, INSTANCES};
use super::request::Request;
use super::response::ReviewResponse;
use super::spec_of;
use super::warnings::ignored;
use crate::crd::{IpuJob, Manifest};

/// What stands for the characters that the API server adds to `generateName`, of which it takes the first 58 characters.
const GENERATED: &str = "xxxxx";
const MAX_PREFIX: usize = 58;

/// What is compared with the stored job in a way of its own.
const NAME: &str = "metadata.name";
const CODES: &str = "spec.restartPolicy.exitCodes";

/// Judges a job that is created (`old` is none) or updated.
pub(super) fn judge(
    request: &Request,
    new: &Value,
    old: Option<&Value>,
    rules: &AdmissionRules,
) -> ReviewResponse {
    // Whoever changes labels or finalizers does not answer for the spec.
    if old.is_some_and(|old| spec_of(old) == spec_of(new)) {
        return ReviewResponse::allow(request);
    }
    let found = JobViolations::of(request, new, rules);
    let before = old.map(|old| JobViolations::of(request, old, rules));
    let (refused, tolerated) = found.judged(before.as_ref());
    let odd = found.warnings.iter().map(Warning::to_string);
    let ignored = ignored(new).into_iter().map(|warning| warning.to_string());
    let tolerated = tolerated.into_iter().map(|told| Warning::from(told).to_string());
    if refused.is_empty() {
        ReviewResponse::allow(request).with_warnings(odd.chain(ignored).chain(tolerated))
    } else {
        ReviewResponse::refuse(request, IpuJob::KIND, &refused)
    }
}

/// What is new about `new` instead of `old` and breaks a rule.
pub(super) fn broken_anew(
    request: &Request,
    new: &Value,
    old: &Value,
    rules: &AdmissionRules,
) -> Vec<Violation> {
    let before = JobViolations::of(request, old, rules);
    JobViolations::of(request, new, rules).judged(Some(&before)).0
}

/// What is wrong with a job.
struct JobViolations {
    /// What cannot run.
    broken: Vec<Violation>,
    /// What could run and is not allowed here.
    forbidden: Vec<Violation>,
    /// What is odd, if nothing is wrong.
    warnings: Vec<Warning>,
    /// How many instances it has and workers in each, if it could run.
    processes: Option<(u32, u32)>,
}

impl JobViolations {
    fn of(request: &Request, object: &Value, rules: &AdmissionRules) -> Self {
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
        let told = |violation: &Violation| violation.field == INSTANCES;
        let told = broken.iter().any(told) || forbidden.iter().any(told);
        if let Some(instances) = instances.filter(|_| !told) {
            forbidden.extend(rules.check_instances(INSTANCES, instances));
        }
        Self {
            broken,
            forbidden,
            warnings,
            processes,
        }
    }

    /// What is refused of it, and what is tolerated because of the job that was there `before`.
    fn judged(&self, before: Option<&Self>) -> (Vec<Violation>, Vec<Violation>) {
        let all = self.broken.iter().map(|violation| (violation, false));
        let all = all.chain(self.forbidden.iter().map(|violation| (violation, true)));
        let (tolerated, refused): (Vec<_>, Vec<_>) = all.partition(|(violation, limit)| {
            before.is_some_and(|before| {
                before.has_broken(violation) || *limit && before.has_exceeded(violation, self)
            })
        });
        let told = |(violation, _): (&Violation, bool)| violation.clone();
        (
            refused.into_iter().map(told).collect(),
            tolerated.into_iter().map(told).collect(),
        )
    }

    /// Whether this very thing is wrong with this job too.
    fn has_broken(&self, violation: &Violation) -> bool {
        self.broken.contains(violation) || self.forbidden.contains(violation)
    }

    /// Whether this job exceeds the limit of `violation`, and at least as far as `new` does, whose violation it is.
    fn has_exceeded(&self, violation: &Violation, new: &Self) -> bool {
        let limit = limit(violation);
        let mut same = self
            .forbidden
            .iter()
            .filter(|own| limit == self::limit(own) && !new.forbidden.contains(own));
        same.any(|own| match (limit, number(own), number(violation)) {
            // Too long: it has no more processes to name than before.
            (NAME, ..) => match (self.processes, new.processes) {
                (Some((instances, workers)), Some((new, each))) => {
                    let all = |instances: u32, each: u32| u64::from(instances) * u64::from(each);
                    new <= instances && all(new, each) <= all(instances, workers)
                }
                _ => true,
            },
            (CODES, ..) => false,
            // What is not above zero is below a limit.
            (_, Some(own), Some(new)) if own <= 0 || new <= 0 => new <= 0 && own <= new,
            (_, Some(own), Some(new)) => new <= own,
            // Nothing where something has to be can be said in several ways.
            _ => own.rule == violation.rule,
        })
    }
}

/// Which limit it is: both forms of a size are held to one.
fn limit(violation: &Violation) -> &str {
    match violation.field.as_str() {
        "spec.modelReplicas" => "spec.ipusPerJobInstance",
        field => field,
    }
}

/// The number that breaks a rule. It is shown in quotes if it was written so, and as a product in the alpha form.
fn number(violation: &Violation) -> Option<i64> {
    let factors = violation.value.as_deref()?.split(" × ");
    factors
        .map(|factor| factor.trim_matches('"').parse::<i64>().ok())
        .product()
}

/// The object, completed as the API server does before it stores it. What else its metadata has is the API server's.
fn manifest(request: &Request, object: &Value) -> Manifest {
    let mut wanted = Map::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if name != "metadata" && name != "status" {
            let templated = (name == "spec").then(|| without_template(value)).flatten();
            wanted.insert(name.clone(), templated.unwrap_or_else(|| value.clone()));
        }
    }
    let mut metadata = Map::new();
    for name in ["name", "generateName", "namespace", "uid"] {
        let given = object.get("metadata").and_then(|metadata| metadata.get(name));
        if let Some(value) = given.filter(|value| **value != "") {
            metadata.insert(name.to_owned(), value.clone());
        }
    }
    wanted.insert("metadata".to_owned(), Value::Object(metadata));
    let mut manifest = Manifest::of(Value::Object(wanted));
    let metadata = &mut manifest.job.metadata;
    metadata
        .uid
        .get_or_insert_with(|| "00000000-0000-0000-0000-000000000000".to_owned());
    if metadata.namespace.is_none() {
        metadata.namespace.clone_from(&request.namespace);
    }
    if let (None, Some(prefix)) = (&metadata.name, &metadata.generate_name) {
        let prefix: String = prefix.chars().take(MAX_PREFIX).collect();
        metadata.name = Some(format!("{prefix}{GENERATED}"));
    }
    manifest
}

/// A copy of `spec` that has of its template, the largest part by far, only what a job is judged by: whether there are containers, and
/// its ServiceAccount. None without a template.
fn without_template(spec: &Value) -> Option<Value> {
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
    let copied = |object: &Map<String, Value>, but: &str, instead: Value| {
        let others = object.iter().filter(|(name, _)| *name != but);
        let mut copy: Map<_, _> = others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        copy.insert(but.to_owned(), instead);
        Value::Object(copy)
    };
    let outline = outline(template).unwrap_or_else(|| json!({}));
    let workers = copied(spec.get("workers")?.as_object()?, "template", outline);
    Some(copied(spec.as_object()?, "workers", workers))
}
