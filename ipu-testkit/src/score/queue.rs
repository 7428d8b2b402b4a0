//! The waiting line of a replay: the order of the ledger's line, kept so that a look at it does not take longer when it
//! is long.
//!
//! Jobs of one size and priority are equal for a policy, so only the first of them is ever asked about: the line is a
//! queue for each size and priority. How often a job was passed follows from how many behind it have gone.

use std::cmp::Reverse;
use std::collections::VecDeque;

use ipu_core::IpuCount;

use super::trace::{Trace, TraceJob};

/// How many sizes there are.
pub(super) const ORDERS: usize = IpuCount::MAX.order() as usize + 1;

/// A queue: the place of its priority, from the highest, and the order of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueKey {
    pub(super) class: usize,
    pub(super) order: usize,
}

/// One who waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    /// The place in the trace.
    job: usize,
    /// The place among those of its priority.
    rank: usize,
    /// How many of lower priority had gone when it came.
    gone_below: u64,
}

/// Those of one priority.
struct PriorityClass {
    priority: i32,
    queues: [VecDeque<Waiter>; ORDERS],
    arrived: usize,
    /// Who of this priority has gone, by rank.
    gone: Counts,
    /// How many of lower priority have gone.
    gone_below: u64,
}

/// See the head of the file.
pub(super) struct JobQueue {
    classes: Vec<PriorityClass>,
    /// How often one may be passed.
    limit: u32,
    waiting: usize,
}

impl JobQueue {
    /// An empty line for the jobs of `trace`.
    pub(super) fn new(trace: &Trace, limit: u32) -> Self {
        let mut priorities: Vec<i32> = trace.jobs().iter().map(|job| job.priority).collect();
        priorities.sort_unstable_by(|a, b| b.cmp(a));
        let classes = priorities.chunk_by(|a, b| a == b).map(|equal| PriorityClass {
            priority: equal.first().copied().unwrap_or(0),
            queues: std::array::from_fn(|_| VecDeque::new()),
            arrived: 0,
            gone: Counts::of(equal.len()),
            gone_below: 0,
        });
        Self {
            classes: classes.collect(),
            limit,
            waiting: 0,
        }
    }

    /// `job` comes, the `index`-th of the trace.
    pub(super) fn join(&mut self, index: usize, job: &TraceJob) {
        let class = self
            .classes
            .partition_point(|class| class.priority > job.priority);
        let class = &mut self.classes[class];
        class.queues[job.size.order() as usize].push_back(Waiter {
            job: index,
            rank: class.arrived,
            gone_below: class.gone_below,
        });
        class.arrived += 1;
        self.waiting += 1;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// How many priorities there are.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// The queue whose first came first among those of a priority that are not closed.
    pub(super) fn next(&self, class: usize, closed: &[bool; ORDERS]) -> Option<QueueKey> {
        let queues = self.classes[class].queues.iter().zip(closed).enumerate();
        queues
            .filter(|(_, (_, closed))| !**closed)
            .filter_map(|(order, (queue, _))| Some((queue.front()?.rank, order)))
            .min()
            .map(|(_, order)| QueueKey { class, order })
    }

    /// The first of a queue goes. Answers which job of the trace it is.
    pub(super) fn leave(&mut self, place: QueueKey) -> Option<usize> {
        let class = &mut self.classes[place.class];
        let gone = class.queues[place.order].pop_front()?;
        class.gone.add(gone.rank);
        for above in &mut self.classes[..place.class] {
            above.gone_below += 1;
        }
        self.waiting -= 1;
        Some(gone.job)
    }

    /// Whether the first of a queue was passed as often as is allowed.
    pub(super) fn is_at_limit(&self, place: QueueKey) -> bool {
        let class = &self.classes[place.class];
        class.queues[place.order].front().is_some_and(|first| {
            let passed = class.gone.after(first.rank) + (class.gone_below - first.gone_below);
            passed >= u64::from(self.limit)
        })
    }

    /// Where the first of a queue stands in the line: comparable with that of any job of the trace.
    pub(super) fn standing(&self, place: QueueKey) -> (Reverse<i32>, usize) {
        let class = &self.classes[place.class];
        let first = class.queues[place.order].front();
        (
            Reverse(class.priority),
            first.map_or(usize::MAX, |first| first.job),
        )
    }

    /// The queues that are not empty, in the order of their first.
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

    /// How many of a queue come before the first of `barrier` or are it, and how many after it.
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

    /// Everybody who waits: queue, and place in the trace.
    pub(super) fn everybody(&self) -> impl Iterator<Item = (QueueKey, usize)> {
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

/// How many of a range are marked, in logarithmic time (a Fenwick tree).
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

    /// Marks the `index`-th.
    fn add(&mut self, index: usize) {
        let mut at = index + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum += 1;
            at += at & at.wrapping_neg();
        }
        self.total += 1;
    }

    /// How many after the `index`-th are marked.
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
    fn marks_after_a_place_are_counted_as_one_by_one() {
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
