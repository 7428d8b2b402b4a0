//! Limits of namespaces: the number of queued requests, their priority, and the accounts that they may
//! charge.
//!
//! *Guarantees*: a request that exceeds a limit is rejected before anything is recorded. A limit that is
//! lowered later affects no recorded entry, and does not reject a repeated request that asks for no more.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use crate::allocator::entry::Entry;
use crate::allocator::error::RequestError;
use crate::allocator::request::Request;
use crate::allocator::state::State;
use crate::ids::{AllocationId, ControllerName, Namespace, Owner};

/// Limits of the namespaces of owners.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NamespaceRules {
    /// Maximum number of queued requests of one namespace, or of all namespaces of one client together. The
    /// default is a tenth of [`Policy::length_limit`](crate::allocator::Policy::length_limit), so that one
    /// namespace cannot fill the queue.
    pub max_queued: usize,
    /// Maximum size in bytes of the records of these requests, for a store of limited size. No limit by
    /// default.
    pub max_queued_bytes: Option<usize>,
    /// Highest priority of namespaces that [`max_priorities`](Self::max_priorities) does not list. No limit
    /// by default.
    pub max_priority: i32,
    /// Highest priority by namespace.
    pub max_priorities: BTreeMap<Namespace, i32>,
    /// Accounts that only owners of these namespaces may charge. Every owner may charge an account that is
    /// not listed.
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
    /// Checks the priority and the account of `request`. Values that `recorded` has already are allowed.
    pub(crate) fn check(&self, request: &Request, recorded: Option<&Entry>) -> Result<(), RequestError> {
        let namespace = &request.owner.job.namespace;
        let listed = self.max_priorities.get(namespace);
        let highest = listed.copied().unwrap_or(self.max_priority);
        let raised = recorded.is_none_or(|entry| request.priority > entry.priority);
        if raised && request.priority > highest {
            return Err(RequestError::PriorityTooHigh {
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
            return Err(RequestError::AccountNotAllowed {
                namespace: namespace.clone(),
                account: account.clone(),
            });
        }
        Ok(())
    }
}

/// Checks that the namespace of the new `entry`, and the client that sent `request` for it, may queue one
/// more request.
pub(crate) fn check_queued(
    state: &State,
    entry: &Entry,
    request: &Request,
    rules: &NamespaceRules,
) -> Result<(), RequestError> {
    let own = &request.owner.job.namespace;
    let others = request.client_namespaces.iter().filter(|name| *name != own);
    let all: Vec<&Namespace> = core::iter::once(own).chain(others).collect();
    check_share(state, entry, &[own], rules)?;
    if all.len() == 1 {
        return Ok(());
    }
    check_share(state, entry, &all, rules)
}

/// Checks that `namespaces` together may queue `entry` in addition.
fn check_share(
    state: &State,
    entry: &Entry,
    namespaces: &[&Namespace],
    rules: &NamespaceRules,
) -> Result<(), RequestError> {
    let is_theirs = |owner: &Owner| namespaces.contains(&&owner.job.namespace);
    let theirs = || {
        state
            .queue()
            .filter(|queued| queued.owner.as_ref().is_some_and(is_theirs))
    };
    let queued_bytes = || theirs().map(|queued| queued.record_bytes()).sum::<usize>();
    let share = rules.max_queued_bytes;
    let share = share.filter(|limit| queued_bytes() + entry.record_bytes() > *limit);
    let queued = theirs().count();
    if share.is_none() && queued < rules.max_queued {
        return Ok(());
    }
    Err(RequestError::NamespaceQueueFull {
        namespaces: namespaces.iter().copied().cloned().collect(),
        queued,
        limit: rules.max_queued,
        share,
    })
}

impl Entry {
    /// Returns the maximum size in bytes of a queued entry as JSON with its id as a key, including its growth
    /// until it is released. The places of its IPUs do not count: the hardware bounds those of all entries
    /// together. A test of `ipu-k8s` compares it with the record that is written.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        /// The key, the names and punctuation, the properties, a time, the ticket and the count of
        /// overtakings.
        const FIXED_BYTES: usize = 384;
        /// The name and the digits of a field that is not the default.
        const BYTES_PER_FIELD: usize = 40;
        /// Growth until the entry is granted and released: the controller, a time and counts.
        const GROWTH_BYTES: usize = 224;
        /// A pinned IPU.
        const BYTES_PER_PIN: usize = 36;
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
        let fields = [
            self.instance > 0,
            self.attempt > 0,
            self.priority != 0,
            self.max_runtime.is_some(),
            self.preemptible,
            self.account.is_some(),
            !self.holder.is_empty(),
            !self.pin.is_open(),
            self.rejects,
            self.spec.allocation.is_some(),
        ];
        let non_default = fields.iter().filter(|non_default| **non_default).count();
        let pins = self.pin.ipus.len() * BYTES_PER_PIN;
        FIXED_BYTES + GROWTH_BYTES + pins + non_default * BYTES_PER_FIELD + texts.map(json_len).sum::<usize>()
    }
}

/// Returns the length in bytes of a name in JSON.
fn json_len(text: &str) -> usize {
    let escaped_len = |c: char| match c {
        '"' | '\\' => 2,
        c if c.is_control() => 6,
        c => c.len_utf8(),
    };
    text.chars().map(escaped_len).sum()
}
