//! First failure: which of several failures is reported as the cause of the cascade that followed.
//!
//! Fields: none
//! Source: this project; users of MPI operators often miss the failing rank in the status
//!
//! | compared in this order | preferred |
//! |---|---|
//! | time of the failure | the earlier, if the times differ by more than their resolution (`Observation::timestamp_resolution`) |
//! | component | any other before the launcher, whose failure usually follows that of a worker |
//! | cause | `OOMKilled` before all others: a process does not run out of memory because another failed |
//! | exit code | any other code before 143 and 137, the codes of stopped processes |
//! | exit code | one that fewer processes share before one that more share: the processes of a cascade end alike |
//! | output | a process that left output, or was lost, before one without output |
//! | time of the failure | the earlier |
//! | component | the partition, then workers by number |
//!
//! The rule considers only processes of the open attempt. Processes that the planner stopped belong to a
//! closed attempt.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::job::exit::Exit;
use crate::job::observation::ProcessPhase;
use crate::job::status::FailedComponent;
use crate::units::Timestamp;

/// A component that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    /// The component that failed.
    pub(crate) component: FailedComponent,
    /// The exit of the process; none if it was lost, and for the partition.
    pub(crate) exit: Option<Exit>,
    /// The time of the failure.
    pub(crate) at: Timestamp,
    /// The known cause; empty if there is none.
    pub(crate) cause: &'a str,
    /// The end of the output of the process.
    pub(crate) last_lines: &'a str,
}

/// Returns the first failure among `candidates`, whose times are ambiguous within `resolution`; none without
/// candidates.
pub(crate) fn decide<'a>(
    candidates: impl IntoIterator<Item = Candidate<'a>>,
    resolution: Duration,
) -> Option<Candidate<'a>> {
    let mut contenders: Vec<Candidate<'a>> = candidates.into_iter().collect();
    let earliest = contenders.iter().map(|candidate| candidate.at).min()?;
    contenders.retain(|candidate| candidate.at.since(earliest) <= resolution);
    let mut count_by_code: BTreeMap<Option<u8>, u32> = BTreeMap::new();
    for candidate in contenders.iter().filter(|candidate| !is_launcher(candidate)) {
        *count_by_code.entry(candidate.exit.map(Exit::code)).or_default() += 1;
    }
    contenders.into_iter().min_by_key(|candidate| {
        let out_of_memory = candidate.cause == ProcessPhase::OUT_OF_MEMORY;
        (
            is_launcher(candidate),
            !out_of_memory,
            is_stop_signal(candidate.exit),
            count_by_code.get(&candidate.exit.map(Exit::code)).copied(),
            has_no_output(candidate),
            candidate.at,
            candidate.component,
        )
    })
}

fn is_launcher(candidate: &Candidate<'_>) -> bool {
    candidate.component == FailedComponent::Launcher
}

/// Returns whether the process left no output. A lost process may have left output that was not collected.
fn has_no_output(candidate: &Candidate<'_>) -> bool {
    candidate.exit.is_some() && candidate.last_lines.is_empty()
}

/// Returns whether the exit is that of a stopped process: SIGTERM or SIGKILL.
fn is_stop_signal(exit: Option<Exit>) -> bool {
    exit.is_some_and(|exit| matches!(exit.code(), 137 | 143))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn components() -> impl Strategy<Value = FailedComponent> {
        prop_oneof![
            1 => Just(FailedComponent::Launcher),
            8 => (0_u32..8).prop_map(|worker| FailedComponent::Worker { worker }),
        ]
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate<'static>>> {
        let exits = prop_oneof![
            Just(None),
            Just(Some(Exit::Code(1))),
            Just(Some(Exit::Code(7))),
            Just(Some(Exit::Signal(9))),
            Just(Some(Exit::Signal(11))),
        ];
        let causes = prop_oneof![6 => Just(""), 1 => Just(ProcessPhase::OUT_OF_MEMORY)];
        let lines = prop_oneof![Just(""), Just("the end")];
        let one = (components(), exits, 0_u64..5000, causes, lines);
        let one = one.prop_map(|(component, exit, at, cause, last_lines)| Candidate {
            component,
            exit,
            at: Timestamp::from_millis(at),
            cause,
            last_lines,
        });
        vec(one, 1..12)
    }

    fn resolutions() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            (0_u64..3000).prop_map(Duration::from_millis)
        ]
    }

    proptest! {
        #[test]
        fn the_first_failure_is_never_later_than_another_by_more_than_the_resolution(all in candidates(), resolution in resolutions()) {
            let first = decide(all.clone(), resolution).expect("something failed");
            prop_assert!(all.iter().all(|other| first.at.since(other.at) <= resolution));
        }

        #[test]
        fn the_order_of_the_candidates_does_not_affect_the_first_failure(all in candidates(), resolution in resolutions()) {
            let component_and_time = |first: Option<Candidate<'_>>| first.map(|first| (first.component, first.at));
            let reversed = all.iter().rev().cloned();
            prop_assert_eq!(component_and_time(decide(reversed, resolution)), component_and_time(decide(all.clone(), resolution)));
        }

        #[test]
        fn with_exact_times_the_first_failure_is_one_of_the_earliest(all in candidates()) {
            let first = decide(all.clone(), Duration::ZERO).expect("something failed");
            prop_assert_eq!(Some(first.at), all.iter().map(|other| other.at).min());
        }

        #[test]
        fn a_worker_with_an_exit_code_unlike_the_cascade_is_the_first_failure(
            failing in 0_u32..8,
            code in 2_u8..100,
            late in 0_u64..=1000,
            early in 0_u64..=1000,
        ) {
            let all = (0..8).map(|worker| Candidate {
                component: FailedComponent::Worker { worker },
                exit: Some(Exit::Code(if worker == failing { code } else { 1 })),
                at: Timestamp::from_millis(if worker == failing { late } else { early }),
                cause: "",
                last_lines: "",
            });
            let first = decide(all, Duration::from_secs(1)).expect("something failed");
            prop_assert_eq!(first.component, FailedComponent::Worker { worker: failing });
        }
    }
}
