//! Limits of namespaces: how many requests one may queue, at which priority, and charged to which accounts.
//!
//! *Guarantees*: a request that breaks a limit is refused before anything is recorded. A limit that is lowered later takes
//! nothing from entries that are recorded already, and does not refuse a repeated request that asks for no more.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::ids::{AllocationId, ControllerName, Namespace};
use crate::ledger::LedgerState;
use crate::ledger::entry::{Entry, Request};
use crate::ledger::transition_error::TransitionError;
use crate::partition::PartitionSpec;

/// Limits of the namespaces that owners are in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceRules {
    /// Most requests that one namespace, or all namespaces of one client together, may have in the queue. The default is a
    /// tenth of [`QueuePolicy::length_limit`](crate::QueuePolicy::length_limit), so that one namespace cannot fill the queue.
    pub max_queued: usize,
    /// Most bytes that the records of these requests may take together, for a store that holds only so many. No limit by default.
    pub max_queued_bytes: Option<usize>,
    /// Highest priority of namespaces that [`max_priorities`](Self::max_priorities) does not list. No limit by default.
    pub max_priority: i32,
    /// Highest priority by namespace.
    pub max_priorities: BTreeMap<Namespace, i32>,
    /// Accounts that only owners of these namespaces may charge. Every owner may charge an account that is not listed.
    pub accounts: BTreeMap<String, BTreeSet<Namespace>>,
}

impl Default for NamespaceRules {
    fn default() -> Self {
        Self {
            max_queued: 1_000,
            max_queued_bytes: None,
            max_priority: i32::MAX,
            max_priorities: BTreeMap::new(),
            accounts: BTreeMap::new(),
        }
    }
}

impl NamespaceRules {
    /// Checks what the owner of `request` may ask for. Values that `recorded` has already are allowed.
    pub(crate) fn check(&self, request: &Request, recorded: Option<&Entry>) -> Result<(), TransitionError> {
        let namespace = &request.owner.job.namespace;
        let listed = self.max_priorities.get(namespace);
        let highest = listed.copied().unwrap_or(self.max_priority);
        let raised = recorded.is_none_or(|entry| request.priority > entry.priority);
        if raised && request.priority > highest {
            return Err(TransitionError::PriorityTooHigh {
                namespace: namespace.clone(),
                asked: request.priority,
                highest,
            });
        }
        if let Some(account) = &request.account
            && recorded.is_none_or(|entry| entry.account.as_ref() != Some(account))
            && let Some(allowed) = self.accounts.get(account)
            && !allowed.contains(namespace)
        {
            return Err(TransitionError::AccountNotAllowed {
                namespace: namespace.clone(),
                account: account.clone(),
            });
        }
        Ok(())
    }
}

impl LedgerState {
    /// Checks that the namespace of `entry`, a new one, and the client that sent `request` for it may queue one more.
    pub(crate) fn check_queued(
        &self,
        entry: &Entry,
        request: &Request,
        rules: &NamespaceRules,
    ) -> Result<(), TransitionError> {
        let own = &request.owner.job.namespace;
        let client = || request.client_namespaces.iter().filter(|name| *name != own);
        let (mut of_own, mut of_all) = (Queued::default(), Queued::default());
        for queued in self.line.values() {
            let Some(owner) = &queued.owner else { continue };
            if owner.job.namespace == *own {
                of_own.add(queued);
                of_all.add(queued);
            } else if client().any(|name| *name == owner.job.namespace) {
                of_all.add(queued);
            }
        }
        let all = || core::iter::once(own).chain(client()).cloned().collect();
        of_own.check(entry, rules, || Vec::from([own.clone()]))?;
        of_all.check(entry, rules, all)
    }
}

/// The queued requests of some namespaces.
#[derive(Default)]
struct Queued {
    count: usize,
    bytes: usize,
}

impl Queued {
    fn add(&mut self, entry: &Entry) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(entry.record_bytes());
    }

    /// Checks that `entry` may be queued besides.
    fn check(
        &self,
        entry: &Entry,
        rules: &NamespaceRules,
        namespaces: impl FnOnce() -> Vec<Namespace>,
    ) -> Result<(), TransitionError> {
        let bytes = self.bytes.saturating_add(entry.record_bytes());
        let share = rules.max_queued_bytes.filter(|most| bytes > *most);
        if share.is_none() && self.count < rules.max_queued {
            return Ok(());
        }
        Err(TransitionError::NamespaceQueueFull {
            namespaces: namespaces(),
            queued: self.count,
            limit: rules.max_queued,
            share,
        })
    }
}

impl Entry {
    /// The most bytes that a queued entry takes as JSON with short names, and will take when it holds its partition. A test
    /// of `ipu-k8s` compares it with the record that is written.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        /// Punctuation, the format, two times, the ticket, the size and how often it was passed over.
        const ALWAYS: usize = 128;
        /// The name and the digits of a number that is not as usual.
        const NUMBER: usize = 32;
        /// Growth until the entry is granted and released: the controller, places and fences.
        const LATER: usize = 128;
        /// A pinned IPU.
        const PINNED: usize = 36;
        let owner = self.owner.iter().flat_map(|owner| {
            let job = &owner.job;
            [
                &*owner.kind,
                job.namespace.as_str(),
                job.name.as_str(),
                job.uid.as_str(),
            ]
        });
        let pinned = self.pin.controller.iter().map(ControllerName::as_str);
        let allocation = self.spec.allocation.iter().map(AllocationId::as_str);
        let others = [self.account.as_deref().unwrap_or_default(), &self.holder];
        let texts = owner.chain(pinned).chain(allocation).chain(others);
        let numbers = [
            self.instance > 0,
            self.attempt > 0,
            self.priority != 0,
            self.max_runtime.is_some(),
            self.preemptible,
            self.account.is_some(),
            !self.holder.is_empty(),
            !self.pin.is_open(),
        ];
        let unusual = numbers.iter().filter(|unusual| **unusual).count();
        let usual = PartitionSpec::of_size(self.spec.size);
        let spec = if self.spec == usual { 0 } else { 4 * NUMBER };
        let pins = self.pin.ipus.len() * PINNED;
        ALWAYS + LATER + spec + pins + unusual * NUMBER + texts.map(json_len).sum::<usize>()
    }
}

/// How many bytes a text of these names takes in JSON.
fn json_len(text: &str) -> usize {
    let of = |c: char| match c {
        '"' | '\\' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    };
    text.chars().map(of).sum()
}
