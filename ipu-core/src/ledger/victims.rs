//! The choice of the partitions that a request preempts.
//!
//! A scan of the queue on a hypothetical ledger decides, in which the chosen partitions do not exist: the
//! code that grants requests is the code that predicts the grant.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::{ControllerView, ControllersSnapshot};
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::queue::{QueueDecision, QueueScan};
use crate::ledger::queue_policy::QueuePolicy;
use crate::partition::IpuPlace;
use crate::units::Timestamp;

/// Maximum number of partitions among which the necessary ones are searched: each costs one scan of the
/// queue.
const MAX_SEARCHED: usize = 256;

/// The ledger and the controllers at the turn of a queued request, after the end of some partitions.
pub(crate) struct Hypothesis<'a> {
    pub(crate) state: &'a LedgerState,
    pub(crate) request: &'a Entry,
    pub(crate) snapshot: &'a ControllersSnapshot,
    pub(crate) policy: &'a QueuePolicy,
    pub(crate) now: Timestamp,
    /// Partitions that end in any case.
    pub(crate) ending: Vec<&'a Entry>,
}

impl Hypothesis<'_> {
    /// Returns the controller and the IPUs on which the request starts if the partitions of `released` end
    /// too. The IPUs are empty if the controller chooses them.
    pub(crate) fn start_without(&self, released: &[&Entry]) -> Option<(ControllerName, Vec<IpuPlace>)> {
        let mut state = self.state.clone();
        let mut snapshot = self.snapshot.clone();
        for entry in self.ending.iter().chain(released) {
            state.apply(&Change::Remove(entry.id.clone()));
            snapshot.assume_without(&entry.id);
        }
        let request = self.refused_request();
        let mut scan = QueueScan::new(&state, &snapshot, self.policy, self.now);
        for ahead in state.ahead_of(&request) {
            scan.advance(ahead);
        }
        match scan.evaluate(&request) {
            QueueDecision::Start {
                controller, places, ..
            } => Some((controller, places)),
            QueueDecision::Wait(_) => None,
        }
    }

    /// Returns the request with its refusal as if the controller repeated it now. Released partitions do not
    /// help against a refusal that this ledger cannot explain.
    fn refused_request(&self) -> Entry {
        let mut request = self.request.clone();
        if let EntryState::Waiting {
            refused: Some(refused),
        } = &mut request.state
            && self.now.since(refused.at) < self.policy.preemption_hold
        {
            let fingerprint = self
                .state
                .capacity_fingerprint(self.snapshot, &refused.controller);
            if let Some(fingerprint) = fingerprint {
                refused.fingerprint = fingerprint;
                refused.at = self.now;
            }
        }
        request
    }

    /// Returns those of `candidates` that have to end for the request to start, the first ones preferred:
    /// none of them can be left out. Returns none if the end of all does not help, or if the hardware of the
    /// controller is not known.
    pub(crate) fn victims<'e>(&self, candidates: Vec<&'e Entry>) -> Vec<&'e Entry> {
        let Some((controller, _)) = self.start_without(&candidates) else {
            return Vec::new();
        };
        let mut views = self.snapshot.controllers.iter();
        let view = views.find(|view| view.name == controller);
        let listing = view.and_then(|view| view.listing.as_ref().ok());
        if listing.is_none_or(|listing| listing.capacity().counts().is_none()) {
            return Vec::new();
        }
        let is_here = |entry: &&Entry| entry.is_at(self.snapshot, &controller);
        let mut searched: Vec<&Entry> = candidates.iter().copied().filter(is_here).collect();
        if self.start_without(&searched).is_none() {
            searched = candidates;
        }
        self.cut_to_prefix(&mut searched);
        self.cut_to_places(&mut searched);
        if searched.len() > MAX_SEARCHED {
            return Vec::new();
        }
        for index in (0..searched.len()).rev() {
            let entry = searched.remove(index);
            if self.start_without(&searched).is_none() {
                searched.insert(index, entry);
            }
        }
        searched
    }

    /// Cuts `enough` to the smallest number of leading partitions that is enough.
    fn cut_to_prefix(&self, enough: &mut Vec<&Entry>) {
        let (mut too_few, mut length) = (0, enough.len());
        while too_few < length {
            let middle = usize::midpoint(too_few, length);
            if self.start_without(&enough[..middle]).is_some() {
                length = middle;
            } else {
                too_few = middle + 1;
            }
        }
        enough.truncate(length);
    }

    /// Cuts `enough` to the partitions on the IPUs that the request gets, if that is enough.
    fn cut_to_places(&self, enough: &mut Vec<&Entry>) {
        let Some((_, places)) = self.start_without(enough) else {
            return;
        };
        let is_there = |entry: &&Entry| {
            entry.places.is_empty() || entry.places.iter().any(|place| places.contains(place))
        };
        let there: Vec<&Entry> = enough.iter().copied().filter(is_there).collect();
        if !places.is_empty() && self.start_without(&there).is_some() {
            *enough = there;
        }
    }
}

impl ControllersSnapshot {
    /// Removes a partition from the listing that has it, as a hypothesis.
    fn assume_without(&mut self, id: &PartitionId) {
        let lists = |view: &&mut ControllerView| {
            let listing = view.listing.as_ref();
            listing.is_ok_and(|listing| listing.partitions().contains_key(id))
        };
        for view in self.controllers.iter_mut().filter(lists) {
            if let Ok(listing) = &view.listing {
                view.listing = Ok(Arc::new(listing.assuming_without(id)));
            }
        }
    }
}
