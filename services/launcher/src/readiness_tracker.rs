//! Readiness of all workers of a job, updated by watch events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::pod_readiness::PodReadiness;

/// Last observed state of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkerState {
    /// Not created yet.
    Absent,
    Present(PodReadiness),
    /// Deleted at this time.
    Deleted(Instant),
}

/// Last observed states of all workers.
#[derive(Debug)]
pub(crate) struct Workers {
    all: BTreeMap<String, WorkerState>,
    grace: Duration,
    /// Workers whose initial list has started and has not contained them so far.
    unlisted: BTreeSet<String>,
}

/// Outcome of the wait so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WaitStatus {
    Ready,
    /// Not all workers are ready; check again at this time even without an event.
    Wait(Option<Instant>),
    /// A worker can never become ready; carries its name and the reason.
    NeverReady(String),
}

impl Workers {
    /// Tracks the workers `names`; a deleted worker must be created again within `grace`.
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

    /// Starts the initial list of a worker.
    pub(crate) fn start_list(&mut self, name: &str) {
        self.unlisted.insert(name.to_owned());
    }

    /// Finishes the initial list of a worker: a worker missing from it does not exist. Returns a progress
    /// line if the state changed.
    pub(crate) fn finish_list(&mut self, name: &str, now: Instant) -> Option<String> {
        if !self.unlisted.remove(name) {
            return None;
        }
        if self.all.get(name) == Some(&WorkerState::Absent) {
            return Some(format!("{name} does not exist yet"));
        }
        self.mark_deleted(name, now)
    }

    /// Updates a worker. Returns a progress line if the state changed.
    pub(crate) fn update(&mut self, name: &str, worker: PodReadiness) -> Option<String> {
        self.unlisted.remove(name);
        let state = self.all.get_mut(name)?;
        let now = WorkerState::Present(worker);
        if *state == now {
            return None;
        }
        *state = now;
        let WorkerState::Present(worker) = &self.all[name] else {
            return None;
        };
        Some(match worker {
            PodReadiness::Ready => format!("{name} is ready ({} of {})", self.ready_count(), self.all.len()),
            PodReadiness::Waiting(reason) => format!("waiting for {name}: {reason}"),
            PodReadiness::Failed(reason) => format!("{name} {reason}"),
        })
    }

    /// Marks a worker as deleted. Returns a progress line if the state changed.
    pub(crate) fn mark_deleted(&mut self, name: &str, now: Instant) -> Option<String> {
        let state = self.all.get_mut(name)?;
        if !matches!(state, WorkerState::Present(_)) {
            return None;
        }
        *state = WorkerState::Deleted(now);
        Some(format!(
            "waiting for {name}: was deleted, and must be created again"
        ))
    }

    /// Returns one sentence for each worker that is not ready.
    pub(crate) fn unready(&self) -> Vec<String> {
        let all = self.all.iter();
        all.filter_map(|(name, state)| match state {
            WorkerState::Present(PodReadiness::Ready) => None,
            WorkerState::Present(PodReadiness::Waiting(reason) | PodReadiness::Failed(reason)) => {
                Some(format!("{name} {reason}"))
            }
            WorkerState::Absent => Some(format!("{name} does not exist yet")),
            WorkerState::Deleted(_) => Some(format!("{name} was deleted")),
        })
        .collect()
    }

    pub(crate) fn status(&self, now: Instant) -> WaitStatus {
        let mut retry_at: Option<Instant> = None;
        for (name, state) in &self.all {
            match state {
                WorkerState::Present(PodReadiness::Failed(reason)) => {
                    return WaitStatus::NeverReady(format!("{name} {reason}"));
                }
                WorkerState::Deleted(since) => {
                    let until = *since + self.grace;
                    if now >= until {
                        let reason = format!(
                            "{name} was deleted and not created again within {} s",
                            self.grace.as_secs()
                        );
                        return WaitStatus::NeverReady(reason);
                    }
                    retry_at = Some(retry_at.map_or(until, |other| other.min(until)));
                }
                WorkerState::Absent | WorkerState::Present(_) => {}
            }
        }
        if self.ready_count() == self.all.len() {
            return WaitStatus::Ready;
        }
        WaitStatus::Wait(retry_at)
    }

    fn ready_count(&self) -> usize {
        let all = self.all.values();
        all.filter(|state| **state == WorkerState::Present(PodReadiness::Ready))
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING_POD_GRACE: Duration = Duration::from_secs(30);

    fn two_workers() -> Workers {
        Workers::new(&["a".to_owned(), "b".to_owned()], MISSING_POD_GRACE)
    }

    #[test]
    fn the_wait_ends_once_all_workers_are_ready_at_the_same_time() {
        let (mut workers, now) = (two_workers(), Instant::now());
        assert_eq!(workers.status(now), WaitStatus::Wait(None));
        assert_eq!(
            workers.update("a", PodReadiness::Ready).unwrap(),
            "a is ready (1 of 2)"
        );
        assert_eq!(
            workers.update("a", PodReadiness::Ready),
            None,
            "the state is unchanged"
        );
        assert_eq!(
            workers.update("other", PodReadiness::Ready),
            None,
            "not of this job"
        );
        assert!(
            workers
                .update("a", PodReadiness::Waiting("is paused".into()))
                .is_some()
        );
        workers.update("b", PodReadiness::Ready);
        assert_eq!(workers.status(now), WaitStatus::Wait(None));
        assert_eq!(workers.unready(), ["a is paused"]);
        workers.update("a", PodReadiness::Ready);
        assert_eq!(workers.status(now), WaitStatus::Ready);
    }

    #[test]
    fn a_deleted_worker_must_be_created_again_within_the_grace_period() {
        let (mut workers, now) = (two_workers(), Instant::now());
        assert_eq!(workers.mark_deleted("a", now), None, "the worker did not exist");
        workers.update("a", PodReadiness::Ready);
        assert!(workers.mark_deleted("a", now).is_some());
        assert_eq!(
            workers.status(now),
            WaitStatus::Wait(Some(now + MISSING_POD_GRACE))
        );
        assert_eq!(
            workers.status(now + MISSING_POD_GRACE),
            WaitStatus::NeverReady("a was deleted and not created again within 30 s".to_owned())
        );
        workers.update("a", PodReadiness::Ready);
        assert_eq!(workers.status(now + MISSING_POD_GRACE), WaitStatus::Wait(None));
    }

    #[test]
    fn a_worker_missing_from_its_complete_list_is_marked_deleted() {
        let (mut workers, now) = (two_workers(), Instant::now());
        for name in ["a", "b"] {
            workers.update(name, PodReadiness::Ready);
        }
        for name in ["a", "b"] {
            workers.start_list(name);
        }
        workers.update("b", PodReadiness::Ready);
        assert_eq!(workers.finish_list("b", now), None);
        assert!(workers.finish_list("a", now).is_some());
        assert_eq!(
            workers.status(now),
            WaitStatus::Wait(Some(now + MISSING_POD_GRACE))
        );
        assert_eq!(workers.unready(), ["a was deleted"]);
    }
}
