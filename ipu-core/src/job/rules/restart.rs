//! Restart: whether an ended attempt of an instance is followed by another.
//!
//! Fields: `restartPolicy.type`, `restartPolicy.backOffLimit`, `restartPolicy.exitCodes`, `cleanPodPolicy`
//! Source: Graphcore's V-IPU user guide, "Automatic restarts" and
//! "Clean up Kubernetes resources and IPU partitions"
//!
//! | policy | success | failure, retryable code | failure, other code | lost, or partition in error |
//! |---|---|---|---|---|
//! | Never (and any policy with `cleanPodPolicy: All`) | done | give up | give up | give up |
//! | OnFailure | done | restart | restart | restart |
//! | ExitCode | done | restart | give up | restart |
//! | Always | restart, not counted | restart | restart | restart |
//!
//! Restarts after failure count over all instances of the job. Once `backOffLimit` restarts are used, the
//! next failure is permanent. Termination by signal n counts as code 128+n. A process that was lost without
//! an exit code gives no information about the program, so ExitCode retries it.

use crate::job::RestartPolicy;
use crate::job::exit::ExitCodeSet;

/// The end of an attempt of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    /// All processes that do the work ended with code 0.
    Success,
    /// A process failed with this code; none if it was lost or if the partition failed.
    Failure(Option<u8>),
}

/// The decision after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    /// The instance is done.
    Done,
    /// Another attempt that does not count against the limit.
    RestartAfterSuccess,
    /// Another attempt that counts against the limit.
    RestartAfterFailure,
    /// The instance has failed permanently.
    GiveUp(GiveUp),
}

/// Why no other attempt follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The policy never restarts.
    Policy,
    /// The exit code is not listed as retryable.
    Permanent,
    /// All restarts are used.
    LimitReached,
}

/// Decides what follows the `end` of an attempt in a job that has used `used` restarts after failure.
pub(crate) fn decide(policy: &RestartPolicy, end: AttemptEnd, used: u32) -> RestartDecision {
    match (policy, end) {
        (RestartPolicy::Always { .. }, AttemptEnd::Success) => RestartDecision::RestartAfterSuccess,
        (
            RestartPolicy::Never | RestartPolicy::OnFailure { .. } | RestartPolicy::ExitCode { .. },
            AttemptEnd::Success,
        ) => RestartDecision::Done,
        (RestartPolicy::Never, AttemptEnd::Failure(_)) => RestartDecision::GiveUp(GiveUp::Policy),
        (
            RestartPolicy::Always { back_off_limit } | RestartPolicy::OnFailure { back_off_limit },
            AttemptEnd::Failure(_),
        ) => decide_within_limit(used, *back_off_limit),
        (
            RestartPolicy::ExitCode {
                retryable,
                back_off_limit,
            },
            AttemptEnd::Failure(code),
        ) if is_retryable(retryable, code) => decide_within_limit(used, *back_off_limit),
        (RestartPolicy::ExitCode { .. }, AttemptEnd::Failure(_)) => {
            RestartDecision::GiveUp(GiveUp::Permanent)
        }
    }
}

fn is_retryable(retryable: &ExitCodeSet, code: Option<u8>) -> bool {
    code.is_none_or(|code| retryable.contains(code))
}

const fn decide_within_limit(used: u32, limit: u32) -> RestartDecision {
    if used < limit {
        RestartDecision::RestartAfterFailure
    } else {
        RestartDecision::GiveUp(GiveUp::LimitReached)
    }
}
