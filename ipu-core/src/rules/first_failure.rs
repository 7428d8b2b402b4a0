//! First failure: which of several failures is judged and reported, rather than the cascade that followed it.
//!
//! Fields: none
//! Source: ours; that a status does not name the failing rank is a common complaint about MPI operators
//!
//! | compared in this order | first is |
//! |---|---|
//! | time of the failure | the earlier, if the times are further apart than they are blurred (`Observation::timestamp_resolution`) |
//! | who | anything else before the launcher, whose failure mostly follows a worker's |
//! | cause | `OOMKilled` before all others: nobody is out of memory because somebody else failed |
//! | exit code | any other code before 143 and 137, which are what being stopped leaves |
//! | exit code | one that fewer share before one that more share: those that follow end alike |
//! | output | who left some, or was lost, before who left none |
//! | time of the failure | the earlier |
//! | who | the partition, then workers by number |
//!
//! Only processes of the attempt that still runs are asked: what we stopped ourselves belongs to a closed attempt.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use crate::exit_status::Exit;
use crate::observation::ProcessPhase;
use crate::plan::FailedComponent;
use crate::units::Timestamp;

/// Something that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate<'a> {
    /// What.
    pub(crate) culprit: FailedComponent,
    /// How; none if it was lost, or is the partition.
    pub(crate) exit: Option<Exit>,
    /// When.
    pub(crate) at: Timestamp,
    /// What is known of the cause.
    pub(crate) cause: &'a str,
    /// The end of its output.
    pub(crate) last_lines: &'a str,
}

/// The first of `candidates`, whose times may be wrong by up to `blur` to one another; none if nothing failed.
pub(crate) fn decide<'a>(
    candidates: impl IntoIterator<Item = Candidate<'a>>,
    blur: Duration,
) -> Option<Candidate<'a>> {
    let all: Vec<Candidate<'a>> = candidates.into_iter().collect();
    let earliest = all.iter().map(|candidate| candidate.at).min()?;
    let mut together = all;
    together.retain(|candidate| candidate.at.since(earliest) <= blur);
    let mut alike: BTreeMap<Option<u8>, u32> = BTreeMap::new();
    for candidate in together.iter().filter(|candidate| !follows(candidate)) {
        *alike.entry(candidate.exit.map(Exit::code)).or_default() += 1;
    }
    together.into_iter().min_by_key(|candidate| {
        let out_of_memory = candidate.cause == ProcessPhase::OUT_OF_MEMORY;
        (
            follows(candidate),
            !out_of_memory,
            looks_stopped(candidate.exit),
            alike.get(&candidate.exit.map(Exit::code)).copied(),
            left_nothing(candidate),
            candidate.at,
            candidate.culprit,
        )
    })
}

fn follows(candidate: &Candidate<'_>) -> bool {
    candidate.culprit == FailedComponent::Launcher
}

/// Whoever was lost may have left output that nobody has.
fn left_nothing(candidate: &Candidate<'_>) -> bool {
    candidate.exit.is_some() && candidate.last_lines.is_empty()
}

/// SIGTERM and SIGKILL: what is left of a process that was told to end.
fn looks_stopped(exit: Option<Exit>) -> bool {
    exit.is_some_and(|exit| matches!(exit.code(), 137 | 143))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn culprits() -> impl Strategy<Value = FailedComponent> {
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
        let one = (culprits(), exits, 0_u64..5000, causes, lines);
        let one = one.prop_map(|(culprit, exit, at, cause, last_lines)| Candidate {
            culprit,
            exit,
            at: Timestamp::from_millis(at),
            cause,
            last_lines,
        });
        vec(one, 1..12)
    }

    fn blurs() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            (0_u64..3000).prop_map(Duration::from_millis)
        ]
    }

    proptest! {
        #[test]
        fn nobody_is_blamed_who_certainly_failed_after_another(all in candidates(), blur in blurs()) {
            let first = decide(all.clone(), blur).expect("something failed");
            prop_assert!(all.iter().all(|other| first.at.since(other.at) <= blur));
        }

        #[test]
        fn the_order_in_which_failures_are_told_changes_nothing(all in candidates(), blur in blurs()) {
            let told = |first: Option<Candidate<'_>>| first.map(|first| (first.culprit, first.at));
            let backwards = all.iter().rev().cloned();
            prop_assert_eq!(told(decide(backwards, blur)), told(decide(all.clone(), blur)));
        }

        #[test]
        fn without_blur_nobody_is_blamed_but_one_of_the_earliest(all in candidates()) {
            let first = decide(all.clone(), Duration::ZERO).expect("something failed");
            prop_assert_eq!(Some(first.at), all.iter().map(|other| other.at).min());
        }

        #[test]
        fn who_ends_unlike_a_cascade_is_blamed_for_it(
            victim in 0_u32..8,
            code in 2_u8..100,
            late in 0_u64..=1000,
            early in 0_u64..=1000,
        ) {
            let all = (0..8).map(|worker| Candidate {
                culprit: FailedComponent::Worker { worker },
                exit: Some(Exit::Code(if worker == victim { code } else { 1 })),
                at: Timestamp::from_millis(if worker == victim { late } else { early }),
                cause: "",
                last_lines: "",
            });
            let first = decide(all, Duration::from_secs(1)).expect("something failed");
            prop_assert_eq!(first.culprit, FailedComponent::Worker { worker: victim });
        }
    }
}
