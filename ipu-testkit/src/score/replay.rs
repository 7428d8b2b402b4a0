//! The replay: jobs come, wait in line, are placed by the policy, end.
//!
//! The line has the order and the limit of the ledger's ([`QueuePolicy`]): higher priority first, then who came first;
//! whoever does not fit is passed by later ones at most 16 times, and then holds back everybody behind it. The code is
//! not the ledger's, for two reasons: the ledger places by first fit or leaves the choice to the controller, while here
//! the policy chooses; and it works out blockers and times for each answer, which nobody reads here. A test replays
//! traces through the ledger itself and compares.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use ipu_core::{
    Block, Inventory, IpuCount, PartitionId, Placement, PlacementPolicy, PlacementRequest, QueuePolicy, place,
};

use super::Score;
use super::accumulator::Accumulator;
use super::queue::{JobQueue, ORDERS, QueueKey};
use super::trace::{Trace, TraceJob, millis};
use super::wait_reason::WaitReason;

/// What a replay goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScoreOptions {
    /// How often later jobs may go first before one that waits holds them back; that of the ledger by default
    /// ([`QueuePolicy::overtake_limit`]). With 0 it is first come first served.
    pub overtake_limit: u32,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        Self {
            overtake_limit: QueuePolicy::default().overtake_limit,
        }
    }
}

/// What became of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOutcome {
    /// It ran.
    Ran {
        /// From when, in the time of the trace.
        start: Duration,
        /// Until when.
        end: Duration,
        /// On which IPUs.
        block: Block,
    },
    /// It was turned away when it came.
    Refused(WaitReason),
    /// It waited until nothing happened any more.
    Stranded(WaitReason),
}

/// A trace as it went with one policy: what became of each job, and the score of it all.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    outcomes: Vec<JobOutcome>,
    started: Vec<usize>,
    score: Score,
}

impl Replay {
    /// What became of each job, in the order of the trace.
    #[must_use]
    pub fn outcomes(&self) -> &[JobOutcome] {
        &self.outcomes
    }

    /// The jobs that ran, as places in the trace, in the order in which they started.
    #[must_use]
    pub fn started(&self) -> &[usize] {
        &self.started
    }

    /// The score.
    #[must_use]
    pub const fn score(&self) -> &Score {
        &self.score
    }
}

/// Lets the jobs of `trace` come, wait, run and end on `inventory` with `policy` choosing where.
///
/// Whoever holds or cordons IPUs of `inventory` does so to the end. A policy that answers a block that is not legal
/// does not get it: the job waits as [`Cause::TransitionError`]. A job that the hardware cannot hold is refused; one that waits
/// when nothing happens any more is [`JobOutcome::Stranded`].
///
/// The time that it takes grows with the number of jobs and of different priorities, not with the length of the line.
///
/// # Panics
///
/// If somebody holds IPUs of `inventory` by the name `trace-job-N`.
#[must_use]
pub fn replay_trace(
    policy: &dyn PlacementPolicy,
    trace: &Trace,
    inventory: &Inventory,
    options: &ScoreOptions,
) -> Replay {
    let mut run = ReplayRun::new(policy, trace, inventory, options);
    while let Some(now) = run.next_moment() {
        run.tally.advance_to(now);
        run.end_jobs(now);
        let first_new = run.next;
        run.let_jobs_come(now);
        if !run.line.is_empty() {
            while run.walk(now) {}
        }
        run.look(first_new);
    }
    run.finish()
}

/// A replay on its way.
struct ReplayRun<'a> {
    policy: &'a dyn PlacementPolicy,
    trace: &'a Trace,
    inventory: Inventory,
    line: JobQueue,
    /// Who runs: when it ends, and its place in the trace.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// The next of the trace to come.
    next: usize,
    /// For each size whether the policy finds room for it when nobody runs: only then can it help to hold others back.
    hopeful: [Result<(), WaitReason>; ORDERS],
    /// Changes with each start and end.
    version: u64,
    /// For each size the version for which the policy had no block, and why.
    answers: [Option<(u64, WaitReason)>; ORDERS],
    outcomes: Vec<Option<JobOutcome>>,
    started: Vec<usize>,
    queues: Vec<QueueKey>,
    tally: Accumulator,
}

impl<'a> ReplayRun<'a> {
    fn new(
        policy: &'a dyn PlacementPolicy,
        trace: &'a Trace,
        inventory: &Inventory,
        options: &ScoreOptions,
    ) -> Self {
        let capacity = inventory.whole_view().capacity();
        let hopeful = std::array::from_fn(|order| {
            if capacity.is_none_or(|capacity| (capacity.order() as usize) < order) {
                return Err(WaitReason::TooLarge);
            }
            ask(policy, inventory, order).map(|_| ())
        });
        Self {
            policy,
            trace,
            inventory: inventory.clone(),
            line: JobQueue::new(trace, options.overtake_limit),
            running: BinaryHeap::new(),
            next: 0,
            hopeful,
            version: 0,
            answers: [None; ORDERS],
            outcomes: vec![None; trace.jobs().len()],
            started: Vec::new(),
            queues: Vec::new(),
            tally: Accumulator::new(trace, inventory),
        }
    }

    /// When something happens next.
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
                .expect("a job that runs holds its IPUs");
            self.version += 1;
        }
    }

    fn let_jobs_come(&mut self, now: u64) {
        while let Some(job) = self.job(self.next).filter(|job| millis(job.submit) <= now) {
            match self.hopeful[job.size.order() as usize] {
                Err(cause @ WaitReason::TooLarge) => {
                    self.outcomes[self.next] = Some(JobOutcome::Refused(cause));
                    self.tally.refuse(cause);
                }
                _ => self.line.join(self.next, job),
            }
            self.next += 1;
        }
    }

    /// Goes through the line once. Answers whether it has to be gone through again: somebody went after a policy had
    /// declined another, and may answer differently now.
    fn walk(&mut self, now: u64) -> bool {
        let mut stayed: Vec<QueueKey> = Vec::new();
        let (mut declined, mut again) = (false, false);
        for class in 0..self.line.classes() {
            let mut closed = [false; ORDERS];
            while let Some(place) = self.line.next(class, &closed) {
                match self.answer(place.order) {
                    Ok(block) => {
                        self.start(place, block, now);
                        again |= declined;
                        if stayed.iter().any(|place| self.holds_back(*place)) {
                            return again;
                        }
                    }
                    Err(cause) => {
                        declined |= !cause.is_want_of_room();
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

    /// Where the policy puts a partition of this size now, asked once for each state of the inventory.
    fn answer(&mut self, order: usize) -> Result<Block, WaitReason> {
        if let Some((version, cause)) = self.answers[order]
            && version == self.version
        {
            return Err(cause);
        }
        let answer = ask(self.policy, &self.inventory, order);
        self.answers[order] = answer.as_ref().err().map(|cause| (self.version, *cause));
        answer
    }

    /// The first of a queue starts on `block`.
    fn start(&mut self, place: QueueKey, block: Block, now: u64) {
        let Some(index) = self.line.leave(place) else {
            return;
        };
        let Some(job) = self.job(index) else {
            return;
        };
        let end = now.saturating_add(millis(job.runtime));
        self.tally.start(job);
        self.inventory
            .occupy(partition_id(index), block.clone())
            .expect("what `place` answers is free, and no one else is called trace-job-N");
        self.version += 1;
        self.running.push(Reverse((end, index)));
        self.started.push(index);
        self.outcomes[index] = Some(JobOutcome::Ran {
            start: Duration::from_millis(now),
            end: Duration::from_millis(end),
            block,
        });
    }

    /// Whether the first of a queue, who stays, lets nobody pass any more.
    fn holds_back(&self, place: QueueKey) -> bool {
        self.hopeful[place.order].is_ok() && self.line.is_at_limit(place)
    }

    /// Writes down how things are until something happens again, and why those wait who came just now.
    fn look(&mut self, first_new: usize) {
        let mut queues = std::mem::take(&mut self.queues);
        self.line.queues(&mut queues);
        let barrier = queues.iter().copied().find(|place| self.holds_back(*place));
        self.tally.look(&self.inventory, self.version);
        for place in &queues {
            let (before, behind) = self.line.split(*place, barrier);
            let cause = self.why(place.order);
            self.tally.wait(cause, before);
            self.tally.wait(WaitReason::HeldBackForEarlier, behind);
        }
        self.queues = queues;
        for index in first_new..self.next {
            if self.outcomes[index].is_none()
                && let Some(job) = self.job(index)
            {
                let standing = (Reverse(job.priority), index);
                let held_back = barrier.is_some_and(|barrier| self.line.standing(barrier) < standing);
                let cause = if held_back {
                    WaitReason::HeldBackForEarlier
                } else {
                    self.why(job.size.order() as usize)
                };
                self.tally.came_to_wait(cause);
            }
        }
    }

    /// Why the jobs of a size do not go.
    fn why(&mut self, order: usize) -> WaitReason {
        self.answer(order).err().unwrap_or(WaitReason::Other)
    }

    fn finish(mut self) -> Replay {
        let stranded: Vec<(QueueKey, usize)> = self.line.everybody().collect();
        for (place, index) in stranded {
            let cause = self.why(place.order);
            self.tally.strand(cause);
            self.outcomes[index] = Some(JobOutcome::Stranded(cause));
        }
        let outcomes = self.outcomes.into_iter().map(|outcome| {
            outcome.expect("a replay ends when every job has run, was refused or waits with nothing to come")
        });
        Replay {
            outcomes: outcomes.collect(),
            started: self.started,
            score: self.tally.score(self.policy.name(), self.trace),
        }
    }

    fn job(&self, index: usize) -> Option<&'a TraceJob> {
        self.trace.jobs().get(index)
    }
}

/// Where the policy puts a partition of 2^`order` IPUs.
fn ask(policy: &dyn PlacementPolicy, inventory: &Inventory, order: usize) -> Result<Block, WaitReason> {
    let size = u32::try_from(order).ok().and_then(IpuCount::from_order);
    let request = PlacementRequest::of_size(size.unwrap_or(IpuCount::MAX));
    match place(inventory, &request, policy) {
        Placement::Fits(block) => Ok(block),
        Placement::Impossible(why) => Err(WaitReason::of(&why)),
        _ => Err(WaitReason::Other),
    }
}

fn partition_id(index: usize) -> PartitionId {
    PartitionId::new(format!("trace-job-{index}")).expect("short, and of letters, digits and dashes")
}
