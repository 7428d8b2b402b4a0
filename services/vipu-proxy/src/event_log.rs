//! Recent changes of partitions, from which a client of the event stream resumes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use ipu_allocator::EntryChange;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// Maximum number of changes for clients that resume: about a minute of a busy system.
const MAX_HISTORY_LEN: usize = 4096;

/// Recent changes, for clients that resume.
pub(crate) struct EventLog {
    /// Distinguishes the sequence numbers of this process from those of others.
    pub(crate) epoch: u64,
    recent: Mutex<VecDeque<EntryChange>>,
}

/// Id of an event, with which a client resumes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventId {
    epoch: u64,
    pub(crate) seq: u64,
}

impl EventId {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (epoch, seq) = text.split_once('-')?;
        Some(Self {
            epoch: epoch.parse().ok()?,
            seq: seq.parse().ok()?,
        })
    }
}

impl EventLog {
    /// Records these changes in a task that ends with the ledger.
    pub(crate) fn of(mut changes: broadcast::Receiver<EntryChange>, epoch: u64) -> Arc<Self> {
        let log = Arc::new(Self {
            epoch,
            recent: Mutex::default(),
        });
        let weak = Arc::downgrade(&log);
        tokio::spawn(async move {
            loop {
                let change = changes.recv().await;
                let Some(log) = weak.upgrade() else { return };
                let mut recent = log.recent.lock().unwrap_or_else(PoisonError::into_inner);
                match change {
                    Ok(change) => {
                        if recent.len() == MAX_HISTORY_LEN {
                            recent.pop_front();
                        }
                        recent.push_back(change);
                    }
                    // The next change does not follow the recorded ones.
                    Err(RecvError::Lagged(_)) => recent.clear(),
                    Err(RecvError::Closed) => return,
                }
            }
        });
        log
    }

    /// Returns the changes after `last`, if all of them are still recorded.
    pub(crate) fn since(&self, last: EventId) -> Option<Vec<EntryChange>> {
        if last.epoch != self.epoch {
            return None;
        }
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let (oldest, newest) = (recent.front()?.seq, recent.back()?.seq);
        // A number that this process never sent would hide later changes.
        (oldest <= last.seq.saturating_add(1) && last.seq <= newest).then(|| {
            recent
                .iter()
                .filter(|change| change.seq > last.seq)
                .cloned()
                .collect()
        })
    }

    pub(crate) fn last_seq(&self) -> u64 {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.back().map_or(0, |change| change.seq)
    }
}
