//! For how long IPUs were held, by whom, and how much of that without use: counted from the changes of the ledger, so that a
//! hold between two looks is not missed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipu_core::{Entry, EntryState, Operation, PartitionId, Timestamp};
use ipu_ledger::LedgerChange;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Most pairs of namespace and account that are counted by themselves: an account is any text that a client makes up, and
/// every pair is a time series for ever.
const PAIRS: usize = 1_000;

/// What the rest is counted under.
const OTHERS: &str = "other";

/// Whom a hold is charged to: a namespace and an account, each empty if there is none.
pub(crate) type ChargeKey = (String, String);

/// Seconds times IPUs, by whatever they are told apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct IpuSeconds {
    /// That were held.
    pub(crate) held: BTreeMap<ChargeKey, f64>,
    /// That were held and could not be used, by the state of the partition.
    pub(crate) idle: BTreeMap<&'static str, f64>,
}

/// Counts.
#[derive(Debug)]
pub(crate) struct Consumption {
    /// When this process began to count.
    began: Timestamp,
    kept: Mutex<ConsumptionState>,
}

#[derive(Debug, Default)]
struct ConsumptionState {
    /// Of all that is over.
    over: IpuSeconds,
    /// Up to when each partition has been counted.
    counted: BTreeMap<PartitionId, ConsumptionTotals>,
    /// What was told last: a counter never goes back, not even by a millisecond.
    told: IpuSeconds,
}

#[derive(Clone, Copy, Debug, Default)]
struct ConsumptionTotals {
    held: Option<Timestamp>,
    idle: Option<Timestamp>,
}

impl Consumption {
    /// Counts from `began` on by these changes, in a task that ends with the ledger.
    pub(crate) fn of(mut changes: broadcast::Receiver<LedgerChange>, began: Timestamp) -> Arc<Self> {
        let this = Arc::new(Self {
            began,
            kept: Mutex::default(),
        });
        let counting = Arc::downgrade(&this);
        tokio::spawn(async move {
            loop {
                let change = changes.recv().await;
                let Some(this) = counting.upgrade() else { return };
                match change {
                    Ok(change) => this.count(&change),
                    // What is still there is counted later, from where it was left.
                    Err(RecvError::Lagged(missed)) => {
                        tracing::warn!(missed, "some holds that ended are not in the metrics");
                    }
                    Err(RecvError::Closed) => return,
                }
            }
        });
        this
    }

    fn count(&self, change: &LedgerChange) {
        let Some(before) = &change.from else { return };
        let mut kept = self.kept();
        let ConsumptionState { over, counted, .. } = &mut *kept;
        let until = counted.entry(change.id.clone()).or_default();
        self.add(over, before, until, change.at);
        if change.to.as_ref().is_none_or(|entry| !entry.state.holds()) {
            counted.remove(&change.id);
        }
    }

    /// Counts `entry` up to `now`.
    fn add(&self, sum: &mut IpuSeconds, entry: &Entry, until: &mut ConsumptionTotals, now: Timestamp) {
        let ipus = f64::from(entry.spec.size.get());
        let from = |since: Timestamp, counted: Option<Timestamp>| {
            let since = since.max(self.began);
            counted.map_or(since, |counted| counted.max(since))
        };
        if let Some(since) = entry.held_since
            && is_counted(&entry.state)
        {
            let seconds = now.since(from(since, until.held)).as_secs_f64();
            *charged(&mut sum.held, entry) += seconds * ipus;
            until.held = Some(now);
        }
        if entry.state.holds() && entry.state != EntryState::Active {
            let seconds = now.since(from(entry.since, until.idle)).as_secs_f64();
            *sum.idle.entry(entry.state.label()).or_default() += seconds * ipus;
            until.idle = Some(now);
        }
    }

    /// All that was counted, with what `entries` hold at `now`.
    pub(crate) fn read(&self, entries: &[Entry], now: Timestamp) -> IpuSeconds {
        let mut kept = self.kept();
        let mut sum = kept.over.clone();
        for entry in entries {
            let mut until = kept.counted.get(&entry.id).copied().unwrap_or_default();
            self.add(&mut sum, entry, &mut until, now);
        }
        never_less(&mut sum.held, &kept.told.held);
        never_less(&mut sum.idle, &kept.told.idle);
        kept.told = sum.clone();
        sum
    }

    // Nothing panics while it is locked, so that what a poisoned lock holds is whole.
    fn kept(&self) -> MutexGuard<'_, ConsumptionState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a controller may refuse is counted once it has not: all of it then, as the records of usage do.
fn is_counted(state: &EntryState) -> bool {
    let only_wanted = matches!(
        state,
        EntryState::Intent {
            operation: Operation::Create,
            ..
        }
    );
    state.holds() && !only_wanted
}

fn charged<'a>(held: &'a mut BTreeMap<ChargeKey, f64>, entry: &Entry) -> &'a mut f64 {
    let namespace = entry.owner.as_ref().map(|owner| owner.job.namespace.to_string());
    let pair = (
        namespace.unwrap_or_default(),
        entry.account.clone().unwrap_or_default(),
    );
    let known = held.len() < PAIRS || held.contains_key(&pair);
    held.entry(if known {
        pair
    } else {
        (OTHERS.to_owned(), OTHERS.to_owned())
    })
    .or_default()
}

fn never_less<K: Ord + Clone>(sum: &mut BTreeMap<K, f64>, told: &BTreeMap<K, f64>) {
    for (key, told) in told {
        let seconds = sum.entry(key.clone()).or_default();
        *seconds = seconds.max(*told);
    }
}
