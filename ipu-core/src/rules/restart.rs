//! Restart: whether an ended attempt of an instance is followed by another.
//!
//! Fields: `restartPolicy.type`, `restartPolicy.backOffLimit`, `restartPolicy.exitCodes`, `cleanPodPolicy`
//! Source: seed 000 §6.7.2 and §6.7.3
//!
//! | policy | success | failure, retryable code | failure, other code | lost, or partition in error |
//! |---|---|---|---|---|
//! | Never (and any policy with `cleanPodPolicy: All`) | done | give up | give up | give up |
//! | OnFailure | done | restart | restart | restart |
//! | ExitCode | done | restart | give up | restart |
//! | Always | restart, not counted | restart | restart | restart |
//!
//! A restart after failure is counted, over all instances of the job; once `backOffLimit` are used, a failure gives up.
//! Death by signal n is judged as code 128+n. A process that was lost without an exit code says nothing about the
//! program: under ExitCode it is worth another try.

use crate::exit_status::ExitCodeSet;
use crate::job::RestartPolicy;

/// How an attempt of an instance ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Everything ended with code 0.
    Success,
    /// Something failed with this code; none if it was lost, or if the partition failed.
    Failure(Option<u8>),
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartDecision {
    /// The instance is done.
    Done,
    /// Another attempt that does not count against the limit.
    RestartAfterSuccess,
    /// Another attempt that counts against the limit.
    RestartAfterFailure,
    /// The instance has failed for good.
    GiveUp(GiveUp),
}

/// Why there is no other attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// The policy never restarts.
    Policy,
    /// The exit code is not listed as retryable.
    Permanent,
    /// All restarts are used.
    LimitReached,
}

/// Judges the `end` of an attempt in a job that has used `used` restarts after failure.
pub(crate) fn decide(policy: &RestartPolicy, end: End, used: u32) -> RestartDecision {
    match (policy, end) {
        (RestartPolicy::Always { .. }, End::Success) => RestartDecision::RestartAfterSuccess,
        (
            RestartPolicy::Never | RestartPolicy::OnFailure { .. } | RestartPolicy::ExitCode { .. },
            End::Success,
        ) => RestartDecision::Done,
        (RestartPolicy::Never, End::Failure(_)) => RestartDecision::GiveUp(GiveUp::Policy),
        (
            RestartPolicy::Always { back_off_limit } | RestartPolicy::OnFailure { back_off_limit },
            End::Failure(_),
        ) => counted(used, *back_off_limit),
        (
            RestartPolicy::ExitCode {
                retryable,
                back_off_limit,
            },
            End::Failure(code),
        ) if is_retryable(retryable, code) => counted(used, *back_off_limit),
        (RestartPolicy::ExitCode { .. }, End::Failure(_)) => RestartDecision::GiveUp(GiveUp::Permanent),
    }
}

fn is_retryable(retryable: &ExitCodeSet, code: Option<u8>) -> bool {
    code.is_none_or(|code| retryable.contains(code))
}

const fn counted(used: u32, limit: u32) -> RestartDecision {
    if used < limit {
        RestartDecision::RestartAfterFailure
    } else {
        RestartDecision::GiveUp(GiveUp::LimitReached)
    }
}
