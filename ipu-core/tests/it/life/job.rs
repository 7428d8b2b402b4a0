//! Jobs from a few words, through the one parser that makes them.

use ipu_core::{JobSpec, Limits, RawJob};
use serde_json::{Map, Value, json};

/// The words that describe a job, `key=value` each, and what they are in a manifest. Later ones replace earlier ones.
pub(crate) fn job<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<JobSpec, String> {
    let mut spec = json!({"ipusPerJobInstance": 4, "jobInstances": 1, "workers": {}});
    for word in words {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| format!("{word:?} is not key=value"))?;
        let number = || json!(value);
        match (key, value) {
            ("instances", _) => spec["jobInstances"] = number(),
            ("ipus", _) => spec["ipusPerJobInstance"] = number(),
            ("workers", _) => spec["workersPerJobInstance"] = number(),
            ("shape", "workers") => without(&mut spec, &["launcher", "interactive"]),
            ("shape", "launcher") => spec["launcher"] = json!({"command": ["mpirun"]}),
            ("ttl", _) => spec["interactive"] = json!({"ttl": value}),
            ("restart", _) => spec["restartPolicy"]["type"] = number(),
            ("limit", _) => spec["restartPolicy"]["backOffLimit"] = number(),
            ("codes", _) => spec["restartPolicy"]["exitCodes"] = number(),
            ("backoff", _) => spec["restartPolicy"]["backOffSeconds"] = number(),
            ("clean", _) => spec["cleanPodPolicy"] = number(),
            ("suspend", _) => spec["suspend"] = json!(value == "yes"),
            ("keep", _) => spec["ttlSecondsAfterFinished"] = number(),
            ("deadline", _) => spec["activeDeadlineSeconds"] = number(),
            ("start", _) => spec["startDeadlineSeconds"] = number(),
            _ => return Err(format!("no such word: {word}")),
        }
    }
    let raw = json!({"metadata": {"namespace": "default", "name": "train", "uid": "u-1"}, "spec": spec});
    let raw: RawJob = serde_json::from_value(raw).map_err(|error| error.to_string())?;
    match raw.parse(&Limits::default()) {
        Ok(parsed) => Ok(parsed.spec),
        Err(violations) => Err(violations
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")),
    }
}

fn without(spec: &mut Value, keys: &[&str]) {
    let empty = &mut Map::new();
    let spec = spec.as_object_mut().unwrap_or(empty);
    for key in keys {
        spec.remove(*key);
    }
}
