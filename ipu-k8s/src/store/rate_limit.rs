//! How fast the ledger is written, so that etcd keeps up.
//!
//! etcd keeps every version of the object until the API server has it compacted, which is every five minutes; up to ten
//! minutes of writes are kept. Beyond its quota (2 GiB unless set) it refuses every write of the whole cluster until a person
//! repairs it. A large ledger that is written as fast as it goes would get there. So writes are counted in bytes: many may
//! come at once, and after that no more than so many a second. Requests that wait for the turn share the next write.
//!
//! Writes of other processes count too. Each write names its writer and numbers it, so that a process that reads the ledger
//! knows how many writes of each other process it has not seen.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How many bytes a second are written in the long run: with [`BURST`], 1.4 GiB in ten minutes.
const RATE: f64 = 2.0 * 1024.0 * 1024.0;

/// How many bytes may be written at once after a pause.
const BURST: f64 = 256.0 * 1024.0 * 1024.0;

/// How many other processes are remembered: more than there are proxies and operators in any installation.
const WRITERS: usize = 64;

/// What was written lately.
#[derive(Debug)]
pub(super) struct WriteBudget(Mutex<BudgetLevel>);

#[derive(Debug)]
struct BudgetLevel {
    /// Bytes that have not drained yet.
    bytes: f64,
    at: Instant,
    /// The number of the last write that was seen of each other process, the process seen last at the back.
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

    /// Counts the writes of `writer`, another process, up to its write `number`: those that were not counted before, each of so
    /// many bytes. Of a writer that is new, that one write.
    pub(super) fn count_other(&self, writer: &str, number: u64, bytes: usize) {
        let mut level = self.level();
        let known = level.others.iter().position(|(other, _)| other == writer);
        let last = known
            .and_then(|known| level.others.remove(known))
            .map(|(_, last)| last);
        let writes = last.map_or(1, |last| number.saturating_sub(last));
        level.add(u32::try_from(writes).unwrap_or(u32::MAX), bytes);
        if level.others.len() == WRITERS {
            level.others.pop_front();
        }
        let number = last.map_or(number, |last| last.max(number));
        level.others.push_back((writer.to_owned(), number));
    }

    /// How long the next write has to wait.
    pub(super) fn wait(&self) -> Duration {
        Duration::from_secs_f64((self.level().bytes - BURST).max(0.0) / RATE)
    }

    /// The level now.
    fn level(&self) -> MutexGuard<'_, BudgetLevel> {
        // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
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
        // An object is far smaller than what a float counts exactly.
        self.bytes += f64::from(writes) * u32::try_from(bytes).map_or(BURST, f64::from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What etcd takes unless set.
    const QUOTA: usize = 2 << 30;

    /// The largest object that etcd takes.
    const LARGEST: usize = 1 << 20;

    #[tokio::test(start_paused = true)]
    async fn ten_minutes_of_writes_as_fast_as_they_go_stay_below_the_quota_of_etcd() {
        for size in [20_000, LARGEST] {
            let pace = WriteBudget::new();
            let begun = Instant::now();
            let mut written = 0;
            while begun.elapsed() < Duration::from_secs(600) {
                tokio::time::sleep(pace.wait()).await;
                pace.count(size);
                written += size;
                // What a write takes.
                tokio::time::advance(Duration::from_millis(2)).await;
            }
            assert!(written < QUOTA * 3 / 4, "{written}");
            assert!(written > QUOTA / 2, "{written}: that would be slow for no reason");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn several_processes_together_stay_below_the_quota_of_etcd() {
        for processes in [2, 5] {
            let paces: Vec<WriteBudget> = (0..processes).map(|_| WriteBudget::new()).collect();
            let begun = Instant::now();
            let mut written = 0;
            let mut numbers = vec![0; processes];
            // The process that waits least writes next, and the others read what it wrote.
            while begun.elapsed() < Duration::from_secs(600) {
                let waits = |index: &usize| (paces[*index].wait(), numbers[*index]);
                let writer = (0..processes).min_by_key(waits).unwrap();
                tokio::time::sleep(paces[writer].wait()).await;
                for _ in 0..2 {
                    paces[writer].count(LARGEST);
                    numbers[writer] += 1;
                    written += LARGEST;
                    tokio::time::advance(Duration::from_millis(2)).await;
                }
                for other in (0..processes).filter(|other| *other != writer) {
                    paces[other].count_other(&writer.to_string(), numbers[writer], LARGEST);
                }
            }
            assert!(written < QUOTA * 3 / 4, "{written} of {processes}");
            assert!(written > QUOTA / 2, "{written}: that would be slow for no reason");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_of_another_process_counts_once() {
        let pace = WriteBudget::new();
        for number in [10, 10, 9, 12] {
            pace.count_other("other", number, LARGEST);
        }
        // One of a writer that is new, and two more.
        let bytes = pace.level().bytes;
        assert!((bytes - 3.0 * 1_048_576.0).abs() < 1.0, "{bytes}");
        for writer in 0..WRITERS * 2 {
            pace.count_other(&writer.to_string(), 1, 0);
        }
        assert_eq!(pace.level().others.len(), WRITERS);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_is_written_now_and_then_never_waits() {
        let pace = WriteBudget::new();
        for _ in 0..10_000 {
            pace.count(LARGEST);
            assert_eq!(pace.wait(), Duration::ZERO);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    }
}
