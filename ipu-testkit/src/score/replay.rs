//! Replay of a trace: jobs are submitted, queued, placed by the policy, and end.
//!
//! The queue has the order and the limit of the allocator's ([`Policy`]): higher priority first, then
//! submission order. Later jobs may overtake a job that does not fit at most 16 times; then it holds back all
//! jobs behind it. The code is separate from the allocator because one of its decisions looks at every queued
//! request, which is too slow for a trace of 100,000 jobs. A test replays traces through the allocator and
//! compares the results.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use ipu_core::{
    Block, Inventory, IpuCount, PartitionId, Placement, PlacementPolicy, PlacementRequest, Policy, place,
};

use super::Score;
use super::accumulator::Accumulator;
use super::queue::{JobQueue, ORDERS, QueueKey};
use super::trace::{Trace, TraceJob, millis};
use super::wait_reason::WaitReason;

/// Options of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// Number of later jobs that may overtake a queued job before it holds them back; by default that of the
    /// allocator ([`Policy::overtake_limit`]). 0 means first come, first served.
    pub overtake_limit: u32,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        Self {
            overtake_limit: Policy::default().overtake_limit,
        }
    }
}

/// Outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// The job ran.
    Ran {
        /// Start, in the time of the trace.
        start: Duration,
        /// End, in the time of the trace.
        end: Duration,
        /// IPUs of the job.
        block: Block,
    },
    /// The job was rejected at submission.
    Refused(WaitReason),
    /// The job was still queued after the last event.
    Stranded(WaitReason),
}

/// Replayed trace: the outcome of each job, and the score.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    outcomes: Vec<JobOutcome>,
    started: Vec<usize>,
    score: Score,
}

impl Replay {
    /// Returns the outcome of each job, in the order of the trace.
    #[must_use]
    pub fn outcomes(&self) -> &[JobOutcome] {
        &self.outcomes
    }

    /// Returns the jobs that ran, as indexes into the trace, in start order.
    #[must_use]
    pub fn started(&self) -> &[usize] {
        &self.started
    }

    /// Returns the score.
    #[must_use]
    pub const fn score(&self) -> &Score {
        &self.score
    }
}

/// Replays the jobs of `trace` on `inventory` with placements by `policy`.
///
/// Existing holders and cordons of `inventory` stay until the end. A block that is not legal is not used: the
/// job is queued as [`WaitReason::Illegal`]. A job that the hardware cannot hold is rejected; one that is
/// still queued after the last event is [`JobOutcome::Stranded`].
///
/// The run time grows with the number of jobs and of different priorities, not with the length of the queue.
///
/// # Panics
///
/// If a holder in `inventory` is named `trace-job-N`.
#[must_use]
pub fn replay_trace(
    policy: &dyn PlacementPolicy,
    trace: &Trace,
    inventory: &Inventory,
    options: &ScoreOptions,
) -> Replay {
    let mut run = ReplayRun::new(policy, trace, inventory, options);
    while let Some(now) = run.next_moment() {
        run.accumulator.advance_to(now);
        run.end_jobs(now);
        let first_new = run.next;
        run.submit_jobs(now);
        if !run.queue.is_empty() {
            while run.schedule(now) {}
        }
        run.record_state(first_new);
    }
    run.finish()
}

/// Replay in progress.
struct ReplayRun<'a> {
    policy: &'a dyn PlacementPolicy,
    trace: &'a Trace,
    inventory: Inventory,
    queue: JobQueue,
    /// Running jobs: end time and index in the trace.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// Index of the next job to submit.
    next: usize,
    /// For each size, whether the policy can place it in the empty inventory: only then does holding back
    /// other jobs help.
    placeable: [Result<(), WaitReason>; ORDERS],
    /// Number of starts and ends.
    version: u64,
    /// For each size, the version at which the policy had no block, and the reason.
    answers: [Option<(u64, WaitReason)>; ORDERS],
    outcomes: Vec<Option<JobOutcome>>,
    started: Vec<usize>,
    queues: Vec<QueueKey>,
    accumulator: Accumulator,
}

impl<'a> ReplayRun<'a> {
    fn new(
        policy: &'a dyn PlacementPolicy,
        trace: &'a Trace,
        inventory: &Inventory,
        options: &ScoreOptions,
    ) -> Self {
        let capacity = inventory.whole_view().capacity();
        let placeable = std::array::from_fn(|order| {
            if capacity.is_none_or(|capacity| (capacity.order() as usize) < order) {
                return Err(WaitReason::TooLarge);
            }
            place_size(policy, inventory, order).map(|_| ())
        });
        Self {
            policy,
            trace,
            inventory: inventory.clone(),
            queue: JobQueue::new(trace, options.overtake_limit),
            running: BinaryHeap::new(),
            next: 0,
            placeable,
            version: 0,
            answers: [None; ORDERS],
            outcomes: vec![None; trace.jobs().len()],
            started: Vec::new(),
            queues: Vec::new(),
            accumulator: Accumulator::new(trace, inventory),
        }
    }

    /// Returns the time of the next event.
    fn next_moment(&self) -> Option<u64> {
        let arrival = self.trace.jobs().get(self.next).map(|job| millis(job.submit));
        let end = self.running.peek().map(|Reverse((end, _))| *end);
        arrival.into_iter().chain(end).min()
    }

    fn end_jobs(&mut self, now: u64) {
        while let Some(Reverse((_, job))) = self
            .running
            .peek()
            .copied()
            .filter(|Reverse((end, _))| *end <= now)
        {
            self.running.pop();
            self.inventory
                .vacate(&partition_id(job))
                .expect("a running job holds its IPUs");
            self.version += 1;
        }
    }

    fn submit_jobs(&mut self, now: u64) {
        while let Some(job) = self.job(self.next).filter(|job| millis(job.submit) <= now) {
            match self.placeable[job.size.order() as usize] {
                Err(cause @ WaitReason::TooLarge) => {
                    self.outcomes[self.next] = Some(JobOutcome::Refused(cause));
                    self.accumulator.record_rejected(cause);
                }
                _ => self.queue.join(self.next, job),
            }
            self.next += 1;
        }
    }

    /// Runs one scheduling pass over the queue. Returns whether another pass is needed: a job started after
    /// the policy had declined another, and may decide differently now.
    fn schedule(&mut self, now: u64) -> bool {
        let mut stayed: Vec<QueueKey> = Vec::new();
        let (mut declined, mut again) = (false, false);
        for class in 0..self.queue.classes() {
            let mut closed = [false; ORDERS];
            while let Some(place) = self.queue.next(class, &closed) {
                match self.block_for(place.order) {
                    Ok(block) => {
                        self.start(place, block, now);
                        again |= declined;
                        if stayed.iter().any(|place| self.holds_back(*place)) {
                            return again;
                        }
                    }
                    Err(cause) => {
                        declined |= !cause.is_capacity_shortage();
                        closed[place.order] = true;
                        stayed.push(place);
                        if self.holds_back(place) {
                            return again;
                        }
                    }
                }
            }
        }
        again
    }

    /// Returns the policy's block for a partition of this size, computed once per inventory state.
    fn block_for(&mut self, order: usize) -> Result<Block, WaitReason> {
        if let Some((version, cause)) = self.answers[order]
            && version == self.version
        {
            return Err(cause);
        }
        let block_for = place_size(self.policy, &self.inventory, order);
        self.answers[order] = block_for.as_ref().err().map(|cause| (self.version, *cause));
        block_for
    }

    /// Starts the first job of a list on `block`.
    fn start(&mut self, place: QueueKey, block: Block, now: u64) {
        let Some(index) = self.queue.leave(place) else {
            return;
        };
        let Some(job) = self.job(index) else {
            return;
        };
        let end = now.saturating_add(millis(job.runtime));
        self.accumulator.start(job);
        self.inventory
            .occupy(partition_id(index), block.clone())
            .expect("the placed block is free, and no other holder is named trace-job-N");
        self.version += 1;
        self.running.push(Reverse((end, index)));
        self.started.push(index);
        self.outcomes[index] = Some(JobOutcome::Ran {
            start: Duration::from_millis(now),
            end: Duration::from_millis(end),
            block,
        });
    }

    /// Returns whether the first job of a list, which cannot start, holds back all later ones.
    fn holds_back(&self, place: QueueKey) -> bool {
        self.placeable[place.order].is_ok() && self.queue.is_at_limit(place)
    }

    /// Records the state until the next event, and the wait reasons of newly submitted jobs.
    fn record_state(&mut self, first_new: usize) {
        let mut queues = std::mem::take(&mut self.queues);
        self.queue.queues(&mut queues);
        let barrier = queues.iter().copied().find(|place| self.holds_back(*place));
        self.accumulator.sample(&self.inventory, self.version);
        for place in &queues {
            let (before, behind) = self.queue.split(*place, barrier);
            let cause = self.wait_reason(place.order);
            self.accumulator.wait(cause, before);
            self.accumulator.wait(WaitReason::HeldBackForEarlier, behind);
        }
        self.queues = queues;
        for index in first_new..self.next {
            if self.outcomes[index].is_none()
                && let Some(job) = self.job(index)
            {
                let position = (Reverse(job.priority), index);
                let held_back = barrier.is_some_and(|barrier| self.queue.position(barrier) < position);
                let cause = if held_back {
                    WaitReason::HeldBackForEarlier
                } else {
                    self.wait_reason(job.size.order() as usize)
                };
                self.accumulator.record_queued(cause);
            }
        }
    }

    /// Returns the reason for which jobs of a size do not start.
    fn wait_reason(&mut self, order: usize) -> WaitReason {
        self.block_for(order).err().unwrap_or(WaitReason::Other)
    }

    fn finish(mut self) -> Replay {
        let stranded: Vec<(QueueKey, usize)> = self.queue.queued_jobs().collect();
        for (place, index) in stranded {
            let cause = self.wait_reason(place.order);
            self.accumulator.record_stranded(cause);
            self.outcomes[index] = Some(JobOutcome::Stranded(cause));
        }
        let outcomes = self
            .outcomes
            .into_iter()
            .map(|outcome| outcome.expect("every job has an outcome at the end of a replay"));
        Replay {
            outcomes: outcomes.collect(),
            started: self.started,
            score: self.accumulator.score(self.policy.name(), self.trace),
        }
    }

    fn job(&self, index: usize) -> Option<&'a TraceJob> {
        self.trace.jobs().get(index)
    }
}

/// Returns the policy's block for a partition of 2^`order` IPUs.
fn place_size(
    policy: &dyn PlacementPolicy,
    inventory: &Inventory,
    order: usize,
) -> Result<Block, WaitReason> {
    let size = u32::try_from(order).ok().and_then(IpuCount::from_order);
    let request = PlacementRequest::of_size(size.unwrap_or(IpuCount::MAX));
    match place(inventory, &request, policy) {
        Placement::Fits(block) => Ok(block),
        Placement::Impossible(impossible) => Err(WaitReason::of(&impossible)),
    }
}

fn partition_id(index: usize) -> PartitionId {
    PartitionId::new(format!("trace-job-{index}")).expect("a valid partition id")
}
