//! Jobs from a few words, through the one parser that makes them.

use ipu_core::{JobSpec, Limits, RawJob};
use serde_json::{Map, Value, json};

/// A job from `key=value` words, as the stories of `ipu-core/testdata/plan` write it: `instances`, `ipus`, `workers` (of an
/// instance), `shape` (`workers`, `launcher`), `ttl` (interactive), `restart`, `limit`, `codes`, `backoff`, `clean`,
/// `suspend` (`yes`, `no`), `keep` (ttlSecondsAfterFinished), `deadline` (activeDeadlineSeconds), `start`
/// (startDeadlineSeconds). Later words replace earlier ones. `requested` (how many instances may be in the queue at once) is
/// the installation's: [`job_from_words`] heeds it.
///
/// ```
/// let raw = ipu_testkit::raw_job_from_words(["workers=2", "restart=OnFailure"])?;
/// assert_eq!(raw.spec.workers_per_job_instance, Some("2".into()));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
///
/// A word that is not one of these, in a sentence.
pub fn raw_job_from_dsl<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<RawJob, String> {
    let mut spec = json!({"ipusPerJobInstance": 4, "jobInstances": 1, "workers": {}});
    for word in words {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not key=value"))?;
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
            _ => return Err(format!("no such word: {word}")),
        }
    }
    let raw = json!({"metadata": {"namespace": "default", "name": "train", "uid": "u-1"}, "spec": spec});
    serde_json::from_value(raw).map_err(|error| error.to_string())
}

/// The job of [`raw_job_from_words`], parsed.
///
/// # Errors
///
/// A word that is not one, or every violation of the job, a line each.
pub fn job_from_dsl<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<JobSpec, String> {
    let words: Vec<&str> = words.into_iter().collect();
    let mut limits = Limits::default();
    for number in words.iter().filter_map(|word| word.strip_prefix("requested=")) {
        limits = limits.with_max_requested(requested(number)?);
    }
    parse(&raw_job_from_dsl(words)?, &limits)
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
