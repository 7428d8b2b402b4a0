//! What `ipuctl decide` reads: a job and an observation as JSON.

use ipu_core::{Limits, Observation, Plan, RawJob, check_plan, plan};
use serde::{Deserialize, Serialize};

use crate::error_messages::said;

#[derive(Deserialize)]
struct Request {
    job: RawJob,
    observation: Observation,
}

/// `{"job": …, "observation": …}`.
///
/// # Panics
///
/// If a plan breaks an invariant, depends on more than its arguments, or is no JSON that reads as itself.
pub fn decide(bytes: &[u8]) {
    let Ok(Request { job, observation }) = serde_json::from_slice(bytes) else {
        return;
    };
    prints_as_itself(&job);
    prints_as_itself(&observation);
    match job.parse(&Limits::default()) {
        Ok(parsed) => {
            let decided = plan(&parsed.spec, &observation);
            let broken = check_plan(&parsed.spec, &observation, &decided);
            assert!(broken.is_empty(), "{broken:?} of {decided:?}");
            assert_eq!(plan(&parsed.spec, &observation), decided);
            prints_as_itself::<Plan>(&decided);
            for reason in &decided.reasons {
                said(reason, bytes.len());
            }
        }
        Err(violations) => {
            assert!(!violations.is_empty(), "refused without a word");
            violations
                .iter()
                .for_each(|violation| said(violation, bytes.len()));
        }
    }
}

/// Asserts that the JSON of a value reads as the value.
pub(crate) fn prints_as_itself<T>(value: &T)
where
    T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let text = serde_json::to_string(value).expect("it has a JSON form");
    let again: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(&again, value);
}
