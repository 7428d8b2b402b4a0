//! Jobs from a compact DSL, parsed by the parser for manifests.

use ipu_core::job::{JobSpec, Limits, RawJob};
use serde_json::{Map, Value, json};

/// Returns a job from `key=value` fields, as in the scripts of `ipu-core/testdata/plan`: `instances`, `ipus`,
/// `workers` (per instance), `shape` (`workers`, `launcher`), `ttl` (interactive), `restart`, `limit`,
/// `codes`, `backoff`, `clean`, `suspend` (`yes`, `no`), `keep` (ttlSecondsAfterFinished), `deadline`
/// (activeDeadlineSeconds), `start` (startDeadlineSeconds). Later fields replace earlier ones. `requested`,
/// the maximum number of queued instances, belongs to the installation: [`job_from_dsl`] applies it.
///
/// ```
/// let raw = ipu_testkit::raw_job_from_dsl(["workers=2", "restart=OnFailure"])?;
/// assert_eq!(raw.spec.workers_per_job_instance, Some("2".into()));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
///
/// A message about an unknown field.
pub fn raw_job_from_dsl<'a>(fields: impl IntoIterator<Item = &'a str>) -> Result<RawJob, String> {
    let mut spec = json!({"ipusPerJobInstance": 4, "jobInstances": 1, "workers": {}});
    for field in fields {
        let (key, value) = field
            .split_once('=')
            .ok_or_else(|| format!("{field:?} is not key=value"))?;
        let text = || json!(value);
        match (key, value) {
            ("instances", _) => spec["jobInstances"] = text(),
            ("ipus", _) => spec["ipusPerJobInstance"] = text(),
            ("workers", _) => spec["workersPerJobInstance"] = text(),
            ("shape", "workers") => without(&mut spec, &["launcher", "interactive"]),
            ("shape", "launcher") => spec["launcher"] = json!({"command": ["mpirun"]}),
            ("ttl", _) => spec["interactive"] = json!({"ttl": value}),
            ("restart", _) => spec["restartPolicy"]["type"] = text(),
            ("limit", _) => spec["restartPolicy"]["backOffLimit"] = text(),
            ("codes", _) => spec["restartPolicy"]["exitCodes"] = text(),
            ("backoff", _) => spec["restartPolicy"]["backOffSeconds"] = text(),
            ("clean", _) => spec["cleanPodPolicy"] = text(),
            ("suspend", _) => spec["suspend"] = json!(value == "yes"),
            ("keep", _) => spec["ttlSecondsAfterFinished"] = text(),
            ("deadline", _) => spec["activeDeadlineSeconds"] = text(),
            ("start", _) => spec["startDeadlineSeconds"] = text(),
            ("requested", number) => drop(requested(number)?),
            _ => return Err(format!("unknown field: {field}")),
        }
    }
    let raw = json!({"metadata": {"namespace": "default", "name": "train", "uid": "u-1"}, "spec": spec});
    serde_json::from_value(raw).map_err(|error| error.to_string())
}

/// Returns the parsed job of [`raw_job_from_dsl`].
///
/// # Errors
///
/// A message about an unknown field, or every violation of the job, one per line.
pub fn job_from_dsl<'a>(fields: impl IntoIterator<Item = &'a str>) -> Result<JobSpec, String> {
    let fields: Vec<&str> = fields.into_iter().collect();
    let mut limits = Limits::default();
    for number in fields.iter().filter_map(|field| field.strip_prefix("requested=")) {
        limits = limits.with_max_requested(requested(number)?);
    }
    parse(&raw_job_from_dsl(fields)?, &limits)
}

fn requested(number: &str) -> Result<u32, String> {
    let number = number.parse();
    number.map_err(|error| format!("requested={error}"))
}

pub(crate) fn parse(raw: &RawJob, limits: &Limits) -> Result<JobSpec, String> {
    match raw.parse(limits) {
        Ok(parsed) => Ok(parsed.spec),
        Err(violations) => {
            let lines: Vec<_> = violations.iter().map(ToString::to_string).collect();
            Err(lines.join("\n"))
        }
    }
}

fn without(spec: &mut Value, keys: &[&str]) {
    let empty = &mut Map::new();
    let spec = spec.as_object_mut().unwrap_or(empty);
    for key in keys {
        spec.remove(*key);
    }
}
