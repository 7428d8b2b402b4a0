//! Replay of a trace: jobs are submitted, queued, placed by the policy, and end.
//!
//! The queue has the order and the limit of the allocator's ([`Policy`]): higher priority first, then
//! submission order. Later jobs may overtake a job that does not fit at most 16 times; then it holds back all
//! jobs behind it. The allocator itself would evaluate every request again at every event, too slowly for a
//! trace of 100,000 jobs. A test replays traces through the allocator and compares the results.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use ipu_core::allocator::Policy;
use ipu_core::hardware::{Block, Inventory};
use ipu_core::placement::{PlacementPolicy, PlacementRequest, place};
use ipu_core::{IpuCount, PartitionId, ReasonCode};

use super::Score;
use super::sums::Sums;
use super::trace::{Trace, TraceJob, millis};

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
    Refused(ReasonCode),
    /// The job was still queued after the last event.
    Stranded(ReasonCode),
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
/// job is queued as [`ReasonCode::Illegal`]. A job that the hardware cannot hold is rejected; a job that is
/// still queued after the last event is [`JobOutcome::Stranded`].
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
        run.sums.advance_to(now);
        run.end_jobs(now);
        let first_new = run.next;
        run.submit_jobs(now);
        while run.schedule(now) {}
        run.record_state(first_new);
    }
    run.finish()
}

/// Number of sizes.
const ORDERS: usize = IpuCount::MAX.order() as usize + 1;

/// The answers of a policy in an inventory that has just changed.
const NO_ANSWERS: [Option<ReasonCode>; ORDERS] = [const { None }; ORDERS];

/// Queued job.
struct QueuedJob {
    /// Index in the trace.
    index: usize,
    /// Number of later jobs that started before it.
    overtaken: u32,
}

/// Replay in progress.
struct ReplayRun<'a> {
    policy: &'a dyn PlacementPolicy,
    trace: &'a Trace,
    limit: u32,
    inventory: Inventory,
    /// Queued jobs by [`position`](Self::position).
    queue: Vec<QueuedJob>,
    /// Running jobs: end time and index in the trace.
    running: BinaryHeap<Reverse<(u64, usize)>>,
    /// Index of the next job to submit.
    next: usize,
    /// For each size, whether the policy can place it in the empty inventory: only then does holding back
    /// other jobs help.
    placeable: [Result<(), ReasonCode>; ORDERS],
    /// For each size, the reason for which the policy has no block in the present inventory, if known.
    answers: [Option<ReasonCode>; ORDERS],
    outcomes: Vec<Option<JobOutcome>>,
    started: Vec<usize>,
    sums: Sums,
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
                return Err(ReasonCode::TooLarge);
            }
            place_size(policy, inventory, order).map(|_| ())
        });
        Self {
            policy,
            trace,
            limit: options.overtake_limit,
            inventory: inventory.clone(),
            queue: Vec::new(),
            running: BinaryHeap::new(),
            next: 0,
            placeable,
            answers: NO_ANSWERS,
            outcomes: vec![None; trace.jobs().len()],
            started: Vec::new(),
            sums: Sums::new(trace, inventory),
        }
    }

    /// Returns the time of the next event.
    fn next_moment(&self) -> Option<u64> {
        let arrival = self.trace.jobs().get(self.next).map(|job| millis(job.submit));
        let end = self.running.peek().map(|Reverse((end, _))| *end);
        arrival.into_iter().chain(end).min()
    }

    fn end_jobs(&mut self, now: u64) {
        while let Some(Reverse((end, job))) = self.running.peek().copied() {
            if end > now {
                return;
            }
            self.running.pop();
            let vacated = self.inventory.vacate(&partition_id(job));
            vacated.expect("a running job holds its IPUs");
            self.answers = NO_ANSWERS;
        }
    }

    fn submit_jobs(&mut self, now: u64) {
        while let Some(job) = self.trace.jobs().get(self.next) {
            if millis(job.submit) > now {
                return;
            }
            if self.placeable[order(job)] == Err(ReasonCode::TooLarge) {
                self.outcomes[self.next] = Some(JobOutcome::Refused(ReasonCode::TooLarge));
                self.sums.cause(ReasonCode::TooLarge).refused += 1;
            } else {
                let (index, overtaken) = (self.next, 0);
                let at = self.place_in_queue(index);
                self.queue.insert(at, QueuedJob { index, overtaken });
            }
            self.next += 1;
        }
    }

    /// Runs one scheduling pass over the queue. Returns whether another pass is needed: a job started after
    /// the policy had declined another, and may decide differently now.
    fn schedule(&mut self, now: u64) -> bool {
        let mut closed = [false; ORDERS];
        let (mut declined, mut again, mut at) = (false, false, 0);
        while let Some(index) = self.queue.get(at).map(|queued| queued.index) {
            let order = order(&self.trace.jobs()[index]);
            let block = if closed[order] {
                None
            } else {
                match self.block_for(order) {
                    Ok(block) => Some(block),
                    Err(cause) => {
                        declined |= !is_capacity_shortage(&cause);
                        closed[order] = true;
                        None
                    }
                }
            };
            if let Some(block) = block {
                self.queue.remove(at);
                self.start(index, block, now);
                again |= declined;
                for earlier in &mut self.queue[..at] {
                    earlier.overtaken += 1;
                }
                if self.queue[..at].iter().any(|earlier| self.holds_back(earlier)) {
                    return again;
                }
            } else if self.holds_back(&self.queue[at]) {
                return again;
            } else {
                at += 1;
            }
        }
        again
    }

    /// Returns the policy's block for a partition of this size.
    fn block_for(&mut self, order: usize) -> Result<Block, ReasonCode> {
        if let Some(cause) = &self.answers[order] {
            return Err(cause.clone());
        }
        let block = place_size(self.policy, &self.inventory, order);
        self.answers[order] = block.as_ref().err().cloned();
        block
    }

    fn start(&mut self, index: usize, block: Block, now: u64) {
        let job = &self.trace.jobs()[index];
        let end = now.saturating_add(millis(job.runtime));
        self.sums.start(job);
        let occupied = self.inventory.occupy(partition_id(index), block.clone());
        occupied.expect("the placed block is free, and no other holder is named trace-job-N");
        self.answers = NO_ANSWERS;
        self.running.push(Reverse((end, index)));
        self.started.push(index);
        self.outcomes[index] = Some(JobOutcome::Ran {
            start: Duration::from_millis(now),
            end: Duration::from_millis(end),
            block,
        });
    }

    /// Returns whether a job, which cannot start, holds back all later ones.
    fn holds_back(&self, queued: &QueuedJob) -> bool {
        queued.overtaken >= self.limit && self.placeable[order(&self.trace.jobs()[queued.index])].is_ok()
    }

    /// Returns the sort key of a job in the queue.
    fn position(&self, index: usize) -> (Reverse<i32>, usize) {
        (Reverse(self.trace.jobs()[index].priority), index)
    }

    fn place_in_queue(&self, index: usize) -> usize {
        let key = self.position(index);
        self.queue
            .partition_point(|queued| self.position(queued.index) < key)
    }

    /// Records the state until the next event, and the wait reasons of newly submitted jobs.
    fn record_state(&mut self, first_new: usize) {
        self.sums.sample(&self.inventory);
        let barrier = self.queue.iter().position(|queued| self.holds_back(queued));
        let reachable = barrier.map_or(self.queue.len(), |at| at + 1);
        let mut by_order = [0; ORDERS];
        for queued in &self.queue[..reachable] {
            by_order[order(&self.trace.jobs()[queued.index])] += 1;
        }
        let mut waiting = BTreeMap::new();
        for order in (0..ORDERS).filter(|order| by_order[*order] > 0) {
            *waiting.entry(self.wait_reason(order)).or_default() += by_order[order];
        }
        if reachable < self.queue.len() {
            let behind = (self.queue.len() - reachable) as u64;
            waiting.insert(ReasonCode::HeldBackForEarlier, behind);
        }
        self.sums.set_waiting(waiting);
        for index in first_new..self.next {
            if self.outcomes[index].is_none() {
                let cause = if self.place_in_queue(index) >= reachable {
                    ReasonCode::HeldBackForEarlier
                } else {
                    self.wait_reason(order(&self.trace.jobs()[index]))
                };
                self.sums.cause(cause).waited += 1;
            }
        }
    }

    /// Returns the reason for which jobs of a size do not start.
    fn wait_reason(&mut self, order: usize) -> ReasonCode {
        self.block_for(order).err().unwrap_or(ReasonCode::Queued)
    }

    fn finish(mut self) -> Replay {
        for queued in std::mem::take(&mut self.queue) {
            let cause = self.wait_reason(order(&self.trace.jobs()[queued.index]));
            self.sums.cause(cause.clone()).stranded += 1;
            self.outcomes[queued.index] = Some(JobOutcome::Stranded(cause));
        }
        let outcomes = self
            .outcomes
            .into_iter()
            .map(|outcome| outcome.expect("every job has an outcome at the end of a replay"));
        Replay {
            outcomes: outcomes.collect(),
            started: self.started,
            score: self.sums.score(self.policy.name(), self.trace),
        }
    }
}

fn order(job: &TraceJob) -> usize {
    job.size.order() as usize
}

/// Returns the policy's block for a partition of 2^`order` IPUs.
fn place_size(
    policy: &dyn PlacementPolicy,
    inventory: &Inventory,
    order: usize,
) -> Result<Block, ReasonCode> {
    let size = u32::try_from(order).ok().and_then(IpuCount::from_order);
    let request = PlacementRequest::of_size(size.unwrap_or(IpuCount::MAX));
    match place(inventory, &request, policy) {
        Ok(block) => Ok(block),
        Err(impossible) => Err(impossible.code()),
    }
}

/// Returns whether only released IPUs can resolve the cause, whatever the policy.
const fn is_capacity_shortage(cause: &ReasonCode) -> bool {
    matches!(
        cause,
        ReasonCode::NotEnoughFree | ReasonCode::Fragmented | ReasonCode::Cordoned | ReasonCode::TooLarge
    )
}

fn partition_id(index: usize) -> PartitionId {
    PartitionId::new(format!("trace-job-{index}")).expect("a valid partition id")
}
