//! Queue of a replay: the order of the allocator's queue, with a cost per decision that does not depend on
//! its length.
//!
//! Jobs of one size and priority are equal for a policy, so only the first of them is considered: the queue
//! has one list for each size and priority. The number of times a job was overtaken follows from the number
//! of later jobs that started.

use std::cmp::Reverse;
use std::collections::VecDeque;

use ipu_core::IpuCount;

use super::trace::{Trace, TraceJob};

/// Number of sizes.
pub(super) const ORDERS: usize = IpuCount::MAX.order() as usize + 1;

/// List in the queue: rank of its priority, from the highest, and order of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueKey {
    pub(super) class: usize,
    pub(super) order: usize,
}

/// Queued job.
#[derive(Clone, Copy, Debug)]
struct QueuedJob {
    /// Index in the trace.
    job: usize,
    /// Rank among the jobs of its priority.
    rank: usize,
    /// Number of started jobs of lower priority at its submission.
    started_below: u64,
}

/// Jobs of one priority.
struct PriorityClass {
    priority: i32,
    queues: [VecDeque<QueuedJob>; ORDERS],
    arrived: usize,
    /// Started jobs of this priority, by rank.
    started: Counts,
    /// Number of started jobs of lower priority.
    started_below: u64,
}

/// Job queue (see the module documentation).
pub(super) struct JobQueue {
    classes: Vec<PriorityClass>,
    /// Overtake limit.
    limit: u32,
    waiting: usize,
}

impl JobQueue {
    /// Creates an empty queue for the jobs of `trace`.
    pub(super) fn new(trace: &Trace, limit: u32) -> Self {
        let mut priorities: Vec<i32> = trace.jobs().iter().map(|job| job.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        let classes = priorities.chunk_by(|a, b| a == b).map(|equal| PriorityClass {
            priority: equal.first().copied().unwrap_or(0),
            queues: std::array::from_fn(|_| VecDeque::new()),
            arrived: 0,
            started: Counts::of(equal.len()),
            started_below: 0,
        });
        Self {
            classes: classes.collect(),
            limit,
            waiting: 0,
        }
    }

    /// Adds `job`, the `index`-th of the trace.
    pub(super) fn join(&mut self, index: usize, job: &TraceJob) {
        let class = self
            .classes
            .partition_point(|class| class.priority > job.priority);
        let class = &mut self.classes[class];
        class.queues[job.size.order() as usize].push_back(QueuedJob {
            job: index,
            rank: class.arrived,
            started_below: class.started_below,
        });
        class.arrived += 1;
        self.waiting += 1;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the number of priorities.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Returns the list with the earliest first job among those of a priority that are not closed.
    pub(super) fn next(&self, class: usize, closed: &[bool; ORDERS]) -> Option<QueueKey> {
        let queues = self.classes[class].queues.iter().zip(closed).enumerate();
        queues
            .filter(|(_, (_, closed))| !**closed)
            .filter_map(|(order, (queue, _))| Some((queue.front()?.rank, order)))
            .min()
            .map(|(_, order)| QueueKey { class, order })
    }

    /// Removes the first job of a list and returns its index in the trace.
    pub(super) fn leave(&mut self, place: QueueKey) -> Option<usize> {
        let class = &mut self.classes[place.class];
        let started = class.queues[place.order].pop_front()?;
        class.started.add(started.rank);
        for above in &mut self.classes[..place.class] {
            above.started_below += 1;
        }
        self.waiting -= 1;
        Some(started.job)
    }

    /// Returns whether the first job of a list was overtaken as often as allowed.
    pub(super) fn is_at_limit(&self, place: QueueKey) -> bool {
        let class = &self.classes[place.class];
        class.queues[place.order].front().is_some_and(|first| {
            let passed = class.started.after(first.rank) + (class.started_below - first.started_below);
            passed >= u64::from(self.limit)
        })
    }

    /// Returns the queue position of the first job of a list, comparable with that of any job of the trace.
    pub(super) fn position(&self, place: QueueKey) -> (Reverse<i32>, usize) {
        let class = &self.classes[place.class];
        let first = class.queues[place.order].front();
        (
            Reverse(class.priority),
            first.map_or(usize::MAX, |first| first.job),
        )
    }

    /// Collects the lists that are not empty, ordered by their first jobs.
    pub(super) fn queues(&self, into: &mut Vec<QueueKey>) {
        into.clear();
        for class in 0..self.classes.len() {
            let begin = into.len();
            let queues = &self.classes[class].queues;
            let filled = (0..ORDERS).filter(|order| !queues[*order].is_empty());
            into.extend(filled.map(|order| QueueKey { class, order }));
            into[begin..].sort_by_key(|place| queues[place.order].front().map(|first| first.rank));
        }
    }

    /// Returns the number of jobs of a list up to the first job of `barrier`, and after it.
    pub(super) fn split(&self, place: QueueKey, barrier: Option<QueueKey>) -> (u64, u64) {
        let queue = &self.classes[place.class].queues[place.order];
        let before = match barrier {
            None => queue.len(),
            Some(barrier) if place.class != barrier.class => {
                if place.class < barrier.class {
                    queue.len()
                } else {
                    0
                }
            }
            Some(barrier) => {
                let first = self.classes[barrier.class].queues[barrier.order].front();
                let rank = first.map_or(0, |first| first.rank);
                queue.partition_point(|waiter| waiter.rank <= rank)
            }
        };
        (before as u64, (queue.len() - before) as u64)
    }

    /// Returns all queued jobs: list and index in the trace.
    pub(super) fn queued_jobs(&self) -> impl Iterator<Item = (QueueKey, usize)> {
        let classes = self.classes.iter().enumerate();
        classes.flat_map(|(class, all)| {
            let queues = all.queues.iter().enumerate();
            queues.flat_map(move |(order, queue)| {
                queue
                    .iter()
                    .map(move |waiter| (QueueKey { class, order }, waiter.job))
            })
        })
    }
}

/// Counts marked elements of a range in logarithmic time (a Fenwick tree).
struct Counts {
    sums: Vec<u64>,
    total: u64,
}

impl Counts {
    fn of(len: usize) -> Self {
        Self {
            sums: vec![0; len + 1],
            total: 0,
        }
    }

    /// Marks the `index`-th element.
    fn add(&mut self, index: usize) {
        let mut at = index + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum += 1;
            at += at & at.wrapping_neg();
        }
        self.total += 1;
    }

    /// Returns the number of marked elements after the `index`-th.
    fn after(&self, index: usize) -> u64 {
        let mut at = index + 1;
        let mut before = 0;
        while at > 0 {
            before += self.sums[at];
            at &= at - 1;
        }
        self.total - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_after_an_index_are_counted_correctly() {
        let mut counts = Counts::of(21);
        let mut marked = [false; 21];
        for step in 0..21 {
            let index = step * 8 % 21;
            counts.add(index);
            marked[index] = true;
            for place in 0..21 {
                let one_by_one = marked[place + 1..].iter().filter(|mark| **mark).count();
                assert_eq!(counts.after(place), one_by_one as u64);
            }
        }
    }
}
