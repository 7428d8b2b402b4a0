//! Decides whether and when a request is retried.

use std::time::Duration;

use super::error::{ClientError, OVERLOADED};
use super::options::RetryOptions;
use super::request::Idempotency;

/// Code of a problem: an earlier request may still have an effect.
const UNSETTLED: &str = "Unsettled";
/// Code of a problem: the request has expired by the clock of the proxy. The response corrects the clock of
/// the client.
const TOO_LATE: &str = "TooLate";

/// Decision on a retry.
enum RetryDecision {
    Never,
    Soon,
    After(Duration),
}

impl RetryOptions {
    /// Returns the pause after `error` of attempt `attempt` (from 1); none if the request is not retried.
    pub(crate) fn pause(
        &self,
        attempt: u32,
        error: &ClientError,
        idempotency: Idempotency,
    ) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        match decide(error, idempotency) {
            RetryDecision::Never => None,
            RetryDecision::Soon => Some(self.backoff(attempt)),
            RetryDecision::After(pause) => {
                (pause <= self.longest_pause).then(|| pause.max(self.backoff(attempt)))
            }
        }
    }

    /// Returns a random part of the maximum pause after this attempt.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        let doubled = self
            .first_pause
            .saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        let max = u64::try_from(doubled.min(self.longest_pause).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((self.random)() % max.saturating_add(1))
    }
}

fn decide(error: &ClientError, idempotency: Idempotency) -> RetryDecision {
    let is_safe = idempotency == Idempotency::Safe;
    match error {
        ClientError::Unreachable { .. } => RetryDecision::Soon,
        ClientError::Refused { problem, retry_after } => {
            let was_not_executed = [OVERLOADED, UNSETTLED].contains(&problem.code.as_str());
            if problem.code == TOO_LATE {
                return RetryDecision::Soon;
            }
            match retry_after {
                Some(pause) if is_safe || was_not_executed => RetryDecision::After(*pause),
                None if is_safe && problem.status == 503 => RetryDecision::Soon,
                _ => RetryDecision::Never,
            }
        }
        ClientError::ConnectionLost { .. } if is_safe => RetryDecision::Soon,
        // An error of a gateway in front of the proxy.
        ClientError::InvalidResponse {
            status: 502..=504, ..
        } if is_safe => RetryDecision::Soon,
        // After a timeout the caller decides, instead of waiting as long again.
        _ => RetryDecision::Never,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::ProblemDocument;

    fn options() -> RetryOptions {
        RetryOptions {
            random: Arc::new(|| u64::MAX / 2),
            ..RetryOptions::default()
        }
    }

    fn problem(status: u16, code: &str, after: Option<u64>) -> ClientError {
        ClientError::Refused {
            problem: Box::new(ProblemDocument::new(status, code, "because")),
            retry_after: after.map(Duration::from_secs),
        }
    }

    fn lost() -> ClientError {
        ClientError::ConnectionLost {
            url: "http://proxy".to_owned(),
            detail: "reset".to_owned(),
        }
    }

    #[test]
    fn only_idempotent_or_unexecuted_requests_are_retried() {
        let is_retried = |error: &ClientError, idempotency| options().pause(1, error, idempotency).is_some();
        let unreachable = ClientError::Unreachable {
            url: "http://proxy".to_owned(),
            detail: "refused".to_owned(),
        };
        let timeout = ClientError::Timeout {
            url: "http://proxy".to_owned(),
            waited: Duration::from_secs(30),
        };
        for (error, if_safe, if_unsafe) in [
            (unreachable, true, true),
            (lost(), true, false),
            (timeout, false, false),
            (problem(503, "LedgerUnavailable", Some(1)), true, false),
            (problem(503, OVERLOADED, Some(1)), true, true),
            (problem(409, UNSETTLED, Some(1)), true, true),
            (problem(409, TOO_LATE, None), true, true),
            (problem(409, "NotTheOwner", None), false, false),
            (problem(401, "Unauthenticated", None), false, false),
            (problem(500, "LedgerError", None), false, false),
        ] {
            assert_eq!(is_retried(&error, Idempotency::Safe), if_safe, "{error}");
            assert_eq!(is_retried(&error, Idempotency::Unsafe), if_unsafe, "{error}");
        }
    }

    #[test]
    fn retry_after_is_obeyed_unless_it_is_too_long() {
        let pause = |seconds| options().pause(1, &problem(503, OVERLOADED, Some(seconds)), Idempotency::Safe);
        assert_eq!(pause(2), Some(Duration::from_secs(2)));
        assert_eq!(pause(30), None);
    }

    #[test]
    fn pauses_grow_and_the_attempts_are_bounded() {
        let options = options();
        let pauses: Vec<_> = (1..)
            .map_while(|attempt| options.pause(attempt, &lost(), Idempotency::Safe))
            .collect();
        assert_eq!(pauses.len(), 3);
        for (pause, max) in pauses.iter().zip([100, 200, 400]) {
            assert!(*pause <= Duration::from_millis(max));
        }
    }
}
