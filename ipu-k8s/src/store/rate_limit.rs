//! Rate limit of ledger writes, so that etcd keeps up.
//!
//! etcd keeps every version of the object until the API server has it compacted, which happens every five
//! minutes; up to ten minutes of writes are kept. Beyond its quota (2 GiB by default) it refuses every write
//! of the whole cluster until an administrator repairs it. A large ledger written without a limit would reach
//! the quota. So writes are counted in bytes: a burst is allowed, and after that only a fixed rate. Requests
//! that wait share the next write.
//!
//! Writes of other processes count too. Each write contains its writer and a number, so that a process that
//! reads the ledger knows how many writes of each other process it has missed.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Sustained rate in bytes per second: with [`BURST`], 1.4 GiB in ten minutes.
const RATE: f64 = 2.0 * 1024.0 * 1024.0;

/// Maximum number of bytes written at once after a pause.
const BURST: f64 = 256.0 * 1024.0 * 1024.0;

/// Maximum number of other processes that are tracked: more than there are proxies and operators in any
/// installation.
const MAX_WRITERS: usize = 64;

/// Leaky bucket of recently written bytes.
#[derive(Debug)]
pub(super) struct WriteBudget(Mutex<BudgetLevel>);

#[derive(Debug)]
struct BudgetLevel {
    /// Bytes that have not drained yet.
    bytes: f64,
    at: Instant,
    /// Number of the last observed write of each other process, the most recent process at the back.
    others: VecDeque<(String, u64)>,
}

impl WriteBudget {
    pub(super) fn new() -> Self {
        Self(Mutex::new(BudgetLevel {
            bytes: 0.0,
            at: Instant::now(),
            others: VecDeque::new(),
        }))
    }

    /// Counts a write of so many bytes.
    pub(super) fn count(&self, bytes: usize) {
        self.level().add(1, bytes);
    }

    /// Counts the writes of another process `writer` up to its write `number` that were not counted before,
    /// each of so many bytes. For a new writer, counts one write.
    pub(super) fn count_other(&self, writer: &str, number: u64, bytes: usize) {
        let mut level = self.level();
        let position = level.others.iter().position(|(other, _)| other == writer);
        let last = position
            .and_then(|position| level.others.remove(position))
            .map(|(_, last)| last);
        let writes = last.map_or(1, |last| number.saturating_sub(last));
        level.add(u32::try_from(writes).unwrap_or(u32::MAX), bytes);
        if level.others.len() == MAX_WRITERS {
            level.others.pop_front();
        }
        let number = last.map_or(number, |last| last.max(number));
        level.others.push_back((writer.to_owned(), number));
    }

    /// Returns the delay before the next write.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs_f64((self.level().bytes - BURST).max(0.0) / RATE)
    }

    /// Returns the current level.
    fn level(&self) -> MutexGuard<'_, BudgetLevel> {
        // No code panics while it holds the lock, so a poisoned lock contains consistent data.
        let mut level = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        level.bytes = (level.bytes - (now - level.at).as_secs_f64() * RATE).max(0.0);
        level.at = now;
        level
    }
}

impl BudgetLevel {
    /// Adds so many writes of so many bytes each.
    fn add(&mut self, writes: u32, bytes: usize) {
        // An object is far smaller than the exact range of a float.
        self.bytes += f64::from(writes) * u32::try_from(bytes).map_or(BURST, f64::from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Default quota of etcd.
    const QUOTA: usize = 2 << 30;

    /// Largest object of etcd.
    const LARGEST: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn ten_minutes_of_continuous_writes_stay_below_the_quota_of_etcd() {
        for size in [20_000, LARGEST] {
            let budget = WriteBudget::new();
            let started = Instant::now();
            let mut written = 0;
            while started.elapsed() < Duration::from_secs(600) {
                tokio::time::sleep(budget.wait()).await;
                budget.count(size);
                written += size;
                // The duration of a write.
                tokio::time::advance(Duration::from_millis(2)).await;
            }
            assert!(written < QUOTA * 3 / 4, "{written}");
            assert!(written > QUOTA / 2, "{written}: the limit is too strict");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn several_processes_together_stay_below_the_quota_of_etcd() {
        for processes in [2, 5] {
            let budgets: Vec<WriteBudget> = (0..processes).map(|_| WriteBudget::new()).collect();
            let started = Instant::now();
            let mut written = 0;
            let mut numbers = vec![0; processes];
            // The process with the shortest delay writes next, and the others read its write.
            while started.elapsed() < Duration::from_secs(600) {
                let delay = |index: &usize| (budgets[*index].wait(), numbers[*index]);
                let writer = (0..processes).min_by_key(delay).unwrap();
                tokio::time::sleep(budgets[writer].wait()).await;
                for _ in 0..2 {
                    budgets[writer].count(LARGEST);
                    numbers[writer] += 1;
                    written += LARGEST;
                    tokio::time::advance(Duration::from_millis(2)).await;
                }
                for other in (0..processes).filter(|other| *other != writer) {
                    budgets[other].count_other(&writer.to_string(), numbers[writer], LARGEST);
                }
            }
            assert!(written < QUOTA * 3 / 4, "{written} of {processes}");
            assert!(written > QUOTA / 2, "{written}: the limit is too strict");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_of_another_process_counts_once() {
        let budget = WriteBudget::new();
        for number in [10, 10, 9, 12] {
            budget.count_other("other", number, LARGEST);
        }
        // One of a new writer, and two more.
        let bytes = budget.level().bytes;
        assert!((bytes - 3.0 * 1_048_576.0).abs() < 1.0, "{bytes}");
        for writer in 0..MAX_WRITERS * 2 {
            budget.count_other(&writer.to_string(), 1, 0);
        }
        assert_eq!(budget.level().others.len(), MAX_WRITERS);
    }

    #[tokio::test(start_paused = true)]
    async fn occasional_writes_are_never_delayed() {
        let budget = WriteBudget::new();
        for _ in 0..10_000 {
            budget.count(LARGEST);
            assert_eq!(budget.wait(), Duration::ZERO);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
