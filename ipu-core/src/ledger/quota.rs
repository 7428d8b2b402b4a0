//! Quotas: how much a namespace or an account may hold at a time.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::ids::{Namespace, PartitionId};
use crate::ledger::entry::Entry;
use crate::reason::Reason;

/// Whose quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum QuotaSubject {
    /// All owners of a namespace.
    Namespace(Namespace),
    /// All requests that are charged to an account.
    Account(String),
}

impl core::fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Account(name) => write!(f, "account {name}"),
        }
    }
}

/// The most that a subject may hold. A lowered quota takes nothing away from those who hold already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quota {
    /// Most IPUs; none is no limit.
    pub max_ipus: Option<u32>,
    /// Most partitions; none is no limit.
    pub max_partitions: Option<u32>,
}

/// The quotas in force.
pub type Quotas = BTreeMap<QuotaSubject, Quota>;

/// What each subject with a quota holds.
pub(crate) struct QuotaUse<'a> {
    quotas: &'a Quotas,
    used: BTreeMap<&'a QuotaSubject, Used>,
}

#[derive(Clone, Default)]
struct Used {
    ipus: u32,
    holders: Vec<PartitionId>,
}

impl<'a> QuotaUse<'a> {
    pub(crate) fn new<'e>(quotas: &'a Quotas, entries: impl Iterator<Item = &'e Entry>) -> Self {
        let mut this = Self {
            quotas,
            used: BTreeMap::new(),
        };
        if !quotas.is_empty() {
            for entry in entries.filter(|entry| entry.state.holds()) {
                this.add(entry);
            }
        }
        this
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        for (subject, _) in self.quotas.iter().filter(|(subject, _)| concerns(subject, entry)) {
            let used = self.used.entry(subject).or_default();
            used.ipus = used.ipus.saturating_add(entry.size());
            used.holders.push(entry.id.clone());
        }
    }

    /// The reason why `entry` would exceed a quota, with the partitions that use it up.
    pub(crate) fn exceeded_by(&self, entry: &Entry) -> Option<(Reason, Vec<PartitionId>)> {
        self.quotas
            .iter()
            .filter(|(subject, _)| concerns(subject, entry))
            .find_map(|(subject, quota)| {
                let used = self.used.get(subject).cloned().unwrap_or_default();
                let partitions = u32::try_from(used.holders.len()).unwrap_or(u32::MAX);
                let (word, limit, has, wants) = match (quota.max_ipus, quota.max_partitions) {
                    (Some(limit), _) if used.ipus.saturating_add(entry.size()) > limit => {
                        ("IPUs", limit, used.ipus, entry.size())
                    }
                    (_, Some(limit)) if partitions >= limit => ("partitions", limit, partitions, 1),
                    _ => return None,
                };
                let reason = Reason::new(
                    "QuotaExceeded",
                    format!("{subject} holds {has} of {limit} {word} and asks for {wants} more"),
                )
                .with("used", has)
                .with("limit", limit)
                .with("size", entry.size());
                Some((reason, used.holders))
            })
    }
}

fn concerns(subject: &QuotaSubject, entry: &Entry) -> bool {
    match subject {
        QuotaSubject::Namespace(name) => entry
            .owner
            .as_ref()
            .is_some_and(|owner| owner.job.namespace == *name),
        QuotaSubject::Account(name) => entry.account.as_ref().is_some_and(|account| account == name),
    }
}
