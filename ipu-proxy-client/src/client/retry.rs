//! What is sent again, and when.

use std::time::Duration;

use super::error::ClientError;
use super::options::RetryOptions;
use super::request::Idempotency;

/// The proxy did not begin with the request.
pub(crate) const OVERLOADED: &str = "Overloaded";
/// The proxy refused it because an earlier one may still have an effect.
const UNSETTLED: &str = "Unsettled";
/// The proxy refused it because it had expired by the clock of the proxy. The answer corrects the clock of the client.
const TOO_LATE: &str = "TooLate";

/// What an error says of a second time.
enum RetryDecision {
    Never,
    Soon,
    After(Duration),
}

impl RetryOptions {
    /// How long to pause after `error` of the attempt number `attempt` (from 1), if there is to be another.
    pub(crate) fn pause(&self, attempt: u32, error: &ClientError, repeat: Idempotency) -> Option<Duration> {
        if attempt >= self.attempts {
            return None;
        }
        match again(error, repeat) {
            RetryDecision::Never => None,
            RetryDecision::Soon => Some(self.backoff(attempt)),
            RetryDecision::After(wish) => {
                (wish <= self.longest_pause).then(|| wish.max(self.backoff(attempt)))
            }
        }
    }

    /// A random part of the longest pause after this attempt.
    pub(crate) fn backoff(&self, attempt: u32) -> Duration {
        let doubled = self
            .first_pause
            .saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        let longest = u64::try_from(doubled.min(self.longest_pause).as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos((self.random)() % longest.saturating_add(1))
    }
}

fn again(error: &ClientError, repeat: Idempotency) -> RetryDecision {
    let safe = repeat == Idempotency::Safe;
    match error {
        ClientError::Unreachable { .. } => RetryDecision::Soon,
        ClientError::Refused { problem, retry_after } => {
            let not_done = [OVERLOADED, UNSETTLED].contains(&problem.code.as_str());
            if problem.code == TOO_LATE {
                return RetryDecision::Soon;
            }
            match retry_after {
                Some(wish) if safe || not_done => RetryDecision::After(*wish),
                None if safe && problem.status == 503 => RetryDecision::Soon,
                _ => RetryDecision::Never,
            }
        }
        ClientError::ConnectionLost { .. } if safe => RetryDecision::Soon,
        // What stands between us and the proxy.
        ClientError::InvalidResponse {
            status: 502..=504, ..
        } if safe => RetryDecision::Soon,
        // Whoever waited that long is better told than kept for as long again.
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

    fn refused(status: u16, code: &str, after: Option<u64>) -> ClientError {
        ClientError::Refused {
            problem: Box::new(ProblemDocument::new(status, code, "because")),
            retry_after: after.map(Duration::from_secs),
        }
    }

    fn broken() -> ClientError {
        ClientError::ConnectionLost {
            url: "http://proxy".to_owned(),
            detail: "reset".to_owned(),
        }
    }

    #[test]
    fn only_what_is_safe_or_was_not_done_is_sent_again() {
        let again = |error: &ClientError, repeat| options().pause(1, error, repeat).is_some();
        let unreachable = ClientError::Unreachable {
            url: "http://proxy".to_owned(),
            detail: "refused".to_owned(),
        };
        let timeout = ClientError::Timeout {
            url: "http://proxy".to_owned(),
            waited: Duration::from_secs(30),
        };
        for (error, safe, otherwise) in [
            (unreachable, true, true),
            (broken(), true, false),
            (timeout, false, false),
            (refused(503, "LedgerUnavailable", Some(1)), true, false),
            (refused(503, OVERLOADED, Some(1)), true, true),
            (refused(409, UNSETTLED, Some(1)), true, true),
            (refused(409, TOO_LATE, None), true, true),
            (refused(409, "NotTheOwner", None), false, false),
            (refused(401, "Unauthenticated", None), false, false),
            (refused(500, "LedgerError", None), false, false),
        ] {
            assert_eq!(again(&error, Idempotency::Safe), safe, "{error}");
            assert_eq!(again(&error, Idempotency::Unsafe), otherwise, "{error}");
        }
    }

    #[test]
    fn the_proxy_s_wish_is_kept_unless_it_is_too_long() {
        let pause = |seconds| options().pause(1, &refused(503, OVERLOADED, Some(seconds)), Idempotency::Safe);
        assert_eq!(pause(2), Some(Duration::from_secs(2)));
        assert_eq!(pause(30), None);
    }

    #[test]
    fn pauses_grow_and_end() {
        let options = options();
        let pauses: Vec<_> = (1..)
            .map_while(|attempt| options.pause(attempt, &broken(), Idempotency::Safe))
            .collect();
        assert_eq!(pauses.len(), 3);
        for (pause, longest) in pauses.iter().zip([100, 200, 400]) {
            assert!(*pause <= Duration::from_millis(longest));
        }
    }
}
