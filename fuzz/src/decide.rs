//! Input of `ipuctl decide`: a job and an observation as JSON.

use ipu_core::job::{Limits, Observation, Plan, RawJob, check_plan, plan};
use serde::{Deserialize, Serialize};

use crate::error_messages::check_message;

#[derive(Deserialize)]
struct Request {
    job: RawJob,
    observation: Observation,
}

/// `{"job": …, "observation": …}`.
///
/// # Panics
///
/// If a plan violates an invariant, depends on more than its arguments, or does not round-trip through
/// JSON.
pub fn decide(bytes: &[u8]) {
    let Ok(Request { job, observation }) = serde_json::from_slice(bytes) else {
        return;
    };
    assert_round_trip(&job);
    assert_round_trip(&observation);
    match job.parse(&Limits::default()) {
        Ok(parsed) => {
            let decided = plan(&parsed.spec, &observation);
            let violated = check_plan(&parsed.spec, &observation, &decided);
            assert!(violated.is_empty(), "{violated:?} of {decided:?}");
            assert_eq!(plan(&parsed.spec, &observation), decided);
            assert_round_trip::<Plan>(&decided);
            for reason in &decided.reasons {
                check_message(reason, bytes.len());
            }
        }
        Err(violations) => {
            assert!(!violations.is_empty(), "refused without a violation");
            violations
                .iter()
                .for_each(|violation| check_message(violation, bytes.len()));
        }
    }
}

/// Asserts that a value round-trips through JSON.
pub(crate) fn assert_round_trip<T>(value: &T)
where
    T: Serialize + for<'de> Deserialize<'de> + PartialEq + std::fmt::Debug,
{
    let text = serde_json::to_string(value).expect("serializes as JSON");
    let parsed: T = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(&parsed, value);
}
