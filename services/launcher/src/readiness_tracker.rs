//! All workers of a job, as the watch tells of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::pod_readiness::PodReadiness;

/// What is known of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkerState {
    /// Nothing: it was not made yet.
    Absent,
    There(PodReadiness),
    /// It was there until then.
    Gone(Instant),
}

/// What is known of all of them.
#[derive(Debug)]
pub(crate) struct Workers {
    all: BTreeMap<String, WorkerState>,
    grace: Duration,
    /// Those whose list has begun, and that were not in it so far.
    unlisted: BTreeSet<String>,
}

/// What that means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    Ready,
    /// It is to be looked at again then, if nothing happens before.
    Wait(Option<Instant>),
    /// This worker can never be ready.
    Never(String),
}

impl Workers {
    /// Those of these names; one that was deleted has so long to be made again.
    pub(crate) fn new(names: &[String], grace: Duration) -> Self {
        Self {
            all: names
                .iter()
                .map(|name| (name.clone(), WorkerState::Absent))
                .collect(),
            grace,
            unlisted: BTreeSet::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// The list of this one begins.
    pub(crate) fn list_begins(&mut self, name: &str) {
        self.unlisted.insert(name.to_owned());
    }

    /// The list of this one is complete: if it was not in it, it does not exist. Returns what there is to say, if that is new.
    pub(crate) fn list_ends(&mut self, name: &str, now: Instant) -> Option<String> {
        if !self.unlisted.remove(name) {
            return None;
        }
        if self.all.get(name) == Some(&WorkerState::Absent) {
            return Some(format!("{name} does not exist yet"));
        }
        self.deleted(name, now)
    }

    /// One was seen. Answers what there is to say, if that is new.
    pub(crate) fn seen(&mut self, name: &str, worker: PodReadiness) -> Option<String> {
        self.unlisted.remove(name);
        let known = self.all.get_mut(name)?;
        let now = WorkerState::There(worker);
        if *known == now {
            return None;
        }
        *known = now;
        let WorkerState::There(worker) = &self.all[name] else {
            return None;
        };
        Some(match worker {
            PodReadiness::Ready => format!("{name} is ready ({} of {})", self.ready(), self.all.len()),
            PodReadiness::Waiting(why) => format!("waiting for {name}: {why}"),
            PodReadiness::Failed(why) => format!("{name} {why}"),
        })
    }

    /// One is no more. Answers what there is to say, if that is new.
    pub(crate) fn deleted(&mut self, name: &str, now: Instant) -> Option<String> {
        let known = self.all.get_mut(name)?;
        if !matches!(known, WorkerState::There(_)) {
            return None;
        }
        *known = WorkerState::Gone(now);
        Some(format!(
            "waiting for {name}: was deleted, and is to be made again"
        ))
    }

    /// One sentence about each that is not ready.
    pub(crate) fn unready(&self) -> Vec<String> {
        let all = self.all.iter();
        all.filter_map(|(name, known)| match known {
            WorkerState::There(PodReadiness::Ready) => None,
            WorkerState::There(PodReadiness::Waiting(why) | PodReadiness::Failed(why)) => {
                Some(format!("{name} {why}"))
            }
            WorkerState::Absent => Some(format!("{name} does not exist yet")),
            WorkerState::Gone(_) => Some(format!("{name} was deleted")),
        })
        .collect()
    }

    pub(crate) fn verdict(&self, now: Instant) -> WaitStatus {
        let mut again: Option<Instant> = None;
        for (name, known) in &self.all {
            match known {
                WorkerState::There(PodReadiness::Failed(why)) => {
                    return WaitStatus::Never(format!("{name} {why}"));
                }
                WorkerState::Gone(since) => {
                    let until = *since + self.grace;
                    if now >= until {
                        let why = format!(
                            "{name} was deleted and not made again in {} s",
                            self.grace.as_secs()
                        );
                        return WaitStatus::Never(why);
                    }
                    again = Some(again.map_or(until, |other| other.min(until)));
                }
                WorkerState::Absent | WorkerState::There(_) => {}
            }
        }
        if self.ready() == self.all.len() {
            return WaitStatus::Ready;
        }
        WaitStatus::Wait(again)
    }

    fn ready(&self) -> usize {
        let all = self.all.values();
        all.filter(|known| **known == WorkerState::There(PodReadiness::Ready))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING_POD_GRACE: Duration = Duration::from_secs(30);

    fn two() -> Workers {
        Workers::new(&["a".to_owned(), "b".to_owned()], MISSING_POD_GRACE)
    }

    #[test]
    fn all_have_to_be_ready_at_once() {
        let (mut workers, now) = (two(), Instant::now());
        assert_eq!(workers.verdict(now), WaitStatus::Wait(None));
        assert_eq!(
            workers.seen("a", PodReadiness::Ready).unwrap(),
            "a is ready (1 of 2)"
        );
        assert_eq!(workers.seen("a", PodReadiness::Ready), None, "nothing new");
        assert_eq!(
            workers.seen("other", PodReadiness::Ready),
            None,
            "not of this job"
        );
        assert!(workers.seen("a", PodReadiness::Waiting("rests".into())).is_some());
        workers.seen("b", PodReadiness::Ready);
        assert_eq!(workers.verdict(now), WaitStatus::Wait(None));
        assert_eq!(workers.unready(), ["a rests"]);
        workers.seen("a", PodReadiness::Ready);
        assert_eq!(workers.verdict(now), WaitStatus::Ready);
    }

    #[test]
    fn a_worker_that_was_deleted_has_a_while_to_be_made_again() {
        let (mut workers, now) = (two(), Instant::now());
        assert_eq!(workers.deleted("a", now), None, "it never was");
        workers.seen("a", PodReadiness::Ready);
        assert!(workers.deleted("a", now).is_some());
        assert_eq!(
            workers.verdict(now),
            WaitStatus::Wait(Some(now + MISSING_POD_GRACE))
        );
        assert!(matches!(
            workers.verdict(now + MISSING_POD_GRACE),
            WaitStatus::Never(_)
        ));
        workers.seen("a", PodReadiness::Ready);
        assert_eq!(workers.verdict(now + MISSING_POD_GRACE), WaitStatus::Wait(None));
    }

    #[test]
    fn a_worker_that_its_complete_list_lacks_was_deleted_while_nobody_watched() {
        let (mut workers, now) = (two(), Instant::now());
        for name in ["a", "b"] {
            workers.seen(name, PodReadiness::Ready);
        }
        for name in ["a", "b"] {
            workers.list_begins(name);
        }
        workers.seen("b", PodReadiness::Ready);
        assert_eq!(workers.list_ends("b", now), None);
        assert!(workers.list_ends("a", now).is_some());
        assert_eq!(
            workers.verdict(now),
            WaitStatus::Wait(Some(now + MISSING_POD_GRACE))
        );
        assert_eq!(workers.unready(), ["a was deleted"]);
    }
}
