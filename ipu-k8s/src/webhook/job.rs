//! Whether an IPUJob is admitted: what is new about it has to follow the rules.

use ipu_core::{Limits, Violation, Warning};
use serde_json::{Map, Value};

use super::answer::Answer;
use super::ignored::ignored;
use super::request::Request;
use super::rules::AdmissionRules;
use super::spec_of;
use crate::crd::{IpuJob, Manifest};

/// What stands for the characters that the API server adds to `generateName`, of which it takes the first 58 characters.
const GENERATED: &str = "xxxxx";
const MAX_PREFIX: usize = 58;

/// Judges a job that is created (`old` is none) or updated.
pub(super) fn judge(request: &Request, new: &Value, old: Option<&Value>, rules: &AdmissionRules) -> Answer {
    // Whoever changes labels or finalizers does not answer for the spec.
    if old.is_some_and(|old| spec_of(old) == spec_of(new)) {
        return Answer::allow(request);
    }
    let found = Found::of(request, new, rules);
    let before = old.map(|old| Found::of(request, old, rules));
    let mut refused = Vec::new();
    let odd = found.warnings.iter().map(Warning::to_string);
    let ignored = ignored(new).into_iter().map(|warning| warning.to_string());
    let mut warnings: Vec<String> = odd.chain(ignored).collect();
    let mut tolerate = |violation: Violation, tolerated: bool| {
        if tolerated {
            warnings.push(Warning::from(violation).to_string());
        } else {
            refused.push(violation);
        }
    };
    for violation in found.broken {
        let tolerated = before
            .as_ref()
            .is_some_and(|before| before.has_broken(&violation));
        tolerate(violation, tolerated);
    }
    for violation in found.forbidden {
        let tolerated = before
            .as_ref()
            .is_some_and(|before| before.has_exceeded(&violation));
        tolerate(violation, tolerated);
    }
    if refused.is_empty() {
        Answer::allow(request).with_warnings(warnings)
    } else {
        Answer::refuse(request, IpuJob::KIND, &refused)
    }
}

/// What is wrong with a job.
struct Found {
    /// What cannot run.
    broken: Vec<Violation>,
    /// What could run and is not allowed here.
    forbidden: Vec<Violation>,
    /// What is odd, if nothing is wrong.
    warnings: Vec<Warning>,
}

impl Found {
    fn of(request: &Request, object: &Value, rules: &AdmissionRules) -> Self {
        let manifest = manifest(request, object);
        let parse = |limits: Limits| match manifest.parse(&limits) {
            Ok(parsed) => (Vec::new(), parsed.warnings),
            Err(violations) => (violations, Vec::new()),
        };
        let (all, warnings) = parse(*rules.limits());
        let (broken, _) = parse(rules.limits().for_stored());
        let mut forbidden = all;
        forbidden.retain(|violation| !broken.contains(violation));
        let instances = manifest.job.spec.job_instances.as_ref();
        let instances = instances.and_then(ipu_core::IntOrString::as_int);
        let field = "spec.jobInstances";
        let told = |violation: &Violation| violation.field == field;
        let told = broken.iter().any(told) || forbidden.iter().any(told);
        if let Some(instances) = instances.filter(|_| !told) {
            forbidden.extend(rules.check_instances(field, instances, None));
        }
        Self {
            broken,
            forbidden,
            warnings,
        }
    }

    /// Whether this very thing is wrong with this job too.
    fn has_broken(&self, violation: &Violation) -> bool {
        self.broken.contains(violation) || self.forbidden.contains(violation)
    }

    /// Whether this job exceeds the same limit, and at least as far.
    fn has_exceeded(&self, violation: &Violation) -> bool {
        // A number that was written in quotes is shown in quotes.
        let number = |violation: &Violation| {
            let text = violation.value.as_deref()?;
            text.trim_matches('"').parse::<i64>().ok()
        };
        self.forbidden.iter().any(|own| {
            own.field == violation.field
                && match (number(own), number(violation)) {
                    (Some(own), Some(new)) => new <= own,
                    _ => true,
                }
        })
    }
}

/// The object, completed as the API server does before it stores it. What else its metadata has is the API server's.
fn manifest(request: &Request, object: &Value) -> Manifest {
    let mut wanted = Map::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        if name != "metadata" && name != "status" {
            wanted.insert(name.clone(), value.clone());
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
