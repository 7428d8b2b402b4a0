//! IPU seconds that were held, by namespace and account, and the part without use. They are counted from the
//! changes of the ledger, so that a hold between two scrapes is not missed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipu_allocator::EntryChange;
use ipu_core::allocator::{Entry, Phase};
use ipu_core::{PartitionId, Timestamp};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Maximum number of separate pairs of namespace and account: clients choose the text of an account, and
/// every pair is a permanent time series.
const MAX_PAIRS: usize = 1_000;

/// Label value of all further pairs.
const OTHERS: &str = "other";

/// Namespace and account that a hold is charged to, each empty if there is none.
pub(crate) type ChargeKey = (String, String);

/// Seconds times IPUs, by label.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct IpuSeconds {
    /// Held IPU seconds.
    pub(crate) held: BTreeMap<ChargeKey, f64>,
    /// Held IPU seconds without use, by the state of the partition.
    pub(crate) idle: BTreeMap<&'static str, f64>,
}

/// Counter of IPU seconds.
#[derive(Debug)]
pub(crate) struct Consumption {
    /// Start time of the count.
    started: Timestamp,
    state: Mutex<ConsumptionState>,
}

#[derive(Debug, Default)]
struct ConsumptionState {
    /// IPU seconds that are counted from changes.
    ended: IpuSeconds,
    /// Time until which each partition has been counted.
    counted: BTreeMap<PartitionId, CountedUntil>,
    /// Last reported values: a counter never decreases, not even by a millisecond.
    reported: IpuSeconds,
}

/// Times until which one partition has been counted.
#[derive(Clone, Copy, Debug, Default)]
struct CountedUntil {
    held: Option<Timestamp>,
    idle: Option<Timestamp>,
}

impl Consumption {
    /// Counts these changes from `started` on, in a task that ends with the ledger.
    pub(crate) fn of(mut changes: broadcast::Receiver<EntryChange>, started: Timestamp) -> Arc<Self> {
        let this = Arc::new(Self {
            started,
            state: Mutex::default(),
        });
        let counting = Arc::downgrade(&this);
        tokio::spawn(async move {
            loop {
                let change = changes.recv().await;
                let Some(this) = counting.upgrade() else { return };
                match change {
                    Ok(change) => this.count(&change),
                    // Partitions that still exist are counted later, from their last counted time.
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "the metrics miss some ended holds");
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        this
    }

    fn count(&self, change: &EntryChange) {
        let Some(before) = &change.from else { return };
        let mut state = self.lock();
        let ConsumptionState { ended, counted, .. } = &mut *state;
        let until = counted.entry(change.id.clone()).or_default();
        self.add(ended, before, until, change.at);
        if change.to.as_ref().is_none_or(|entry| !entry.phase.holds()) {
            counted.remove(&change.id);
        }
    }

    /// Counts `entry` up to `now`.
    fn add(&self, sum: &mut IpuSeconds, entry: &Entry, until: &mut CountedUntil, now: Timestamp) {
        let ipus = f64::from(entry.spec.size.get());
        let from = |since: Timestamp, counted: Option<Timestamp>| {
            let since = since.max(self.started);
            counted.map_or(since, |counted| counted.max(since))
        };
        if let Some(since) = entry.held_since
            && is_counted(&entry.phase)
        {
            let seconds = now.since(from(since, until.held)).as_secs_f64();
            *charged_entry(&mut sum.held, entry) += seconds * ipus;
            until.held = Some(now);
        }
        if entry.phase.holds() && entry.phase != Phase::Active {
            let seconds = now.since(from(entry.since, until.idle)).as_secs_f64();
            *sum.idle.entry(entry.phase.as_str()).or_default() += seconds * ipus;
            until.idle = Some(now);
        }
    }

    /// Returns all counted IPU seconds, including those that `entries` hold at `now`.
    pub(crate) fn read(&self, entries: impl Iterator<Item = Arc<Entry>>, now: Timestamp) -> IpuSeconds {
        let mut state = self.lock();
        let mut sum = state.ended.clone();
        for entry in entries {
            let mut until = state.counted.get(&entry.id).copied().unwrap_or_default();
            self.add(&mut sum, &entry, &mut until, now);
        }
        raise_to(&mut sum.held, &state.reported.held);
        raise_to(&mut sum.idle, &state.reported.idle);
        state.reported = sum.clone();
        sum
    }

    // No code panics while it holds the lock, so that a poisoned lock still has a complete value.
    fn lock(&self) -> MutexGuard<'_, ConsumptionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the hold counts. A hold that the controller may still refuse counts in full once the
/// partition is created, as in the usage records.
fn is_counted(phase: &Phase) -> bool {
    phase.holds() && *phase != Phase::Creating
}

fn charged_entry<'a>(held: &'a mut BTreeMap<ChargeKey, f64>, entry: &Entry) -> &'a mut f64 {
    let namespace = entry.owner.as_ref().map(|owner| owner.job.namespace.to_string());
    let pair = (
        namespace.unwrap_or_default(),
        entry.account.clone().unwrap_or_default(),
    );
    let has_series = held.len() < MAX_PAIRS || held.contains_key(&pair);
    held.entry(if has_series {
        pair
    } else {
        (OTHERS.to_owned(), OTHERS.to_owned())
    })
    .or_default()
}

fn raise_to<K: Ord + Clone>(sum: &mut BTreeMap<K, f64>, reported: &BTreeMap<K, f64>) {
    for (key, reported) in reported {
        let seconds = sum.entry(key.clone()).or_default();
        *seconds = seconds.max(*reported);
    }
}
