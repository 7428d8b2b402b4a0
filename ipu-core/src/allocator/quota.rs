//! Quotas: the maximum that a namespace or an account may hold at a time.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::entry::Entry;
use crate::ids::{Namespace, PartitionId};
use crate::reason::{Reason, ReasonCode};

/// The subject of a quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
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

/// Limits of a subject. A lowered quota does not affect partitions that are held already.
///
/// ```
/// use ipu_core::allocator::{Policy, Quota, QuotaSubject};
///
/// let mut policy = Policy::default();
/// let limit = Quota { max_ipus: Some(16), max_partitions: None };
/// policy.quotas.insert(QuotaSubject::Namespace("research".parse()?), limit);
/// # Ok::<(), ipu_core::NameError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Quota {
    /// Maximum number of IPUs; unlimited if unset.
    pub max_ipus: Option<u32>,
    /// Maximum number of partitions; unlimited if unset.
    pub max_partitions: Option<u32>,
}

/// The quotas in force.
pub type Quotas = BTreeMap<QuotaSubject, Quota>;

/// Current use of each subject with a quota.
pub(crate) struct QuotaUse<'a> {
    quotas: &'a Quotas,
    used: BTreeMap<&'a QuotaSubject, HeldBySubject>,
}

#[derive(Clone, Default)]
struct HeldBySubject {
    ipus: u32,
    holders: Vec<PartitionId>,
}

impl<'a> QuotaUse<'a> {
    pub(crate) fn new<'e>(quotas: &'a Quotas, entries: impl Iterator<Item = &'e Entry>) -> Self {
        let mut quota_use = Self {
            quotas,
            used: BTreeMap::new(),
        };
        if !quotas.is_empty() {
            for entry in entries.filter(|entry| entry.phase.holds()) {
                quota_use.add(entry);
            }
        }
        quota_use
    }

    pub(crate) fn add(&mut self, entry: &Entry) {
        for (subject, _) in quotas_of(self.quotas, entry) {
            let used = self.used.entry(subject).or_default();
            used.ipus = used.ipus.saturating_add(entry.size());
            used.holders.push(entry.id.clone());
        }
    }

    /// Returns the first quota that `entry` would exceed.
    pub(crate) fn exceeded_by(&self, entry: &Entry) -> Option<Excess<'a>> {
        quotas_of(self.quotas, entry).find_map(|(subject, quota)| {
            let ipus = self.ipus(subject);
            let partitions = u32::try_from(self.holders(subject).len()).unwrap_or(u32::MAX);
            let (unit, limit, held, requested) = match (quota.max_ipus, quota.max_partitions) {
                (Some(limit), _) if ipus.saturating_add(entry.size()) > limit => {
                    ("IPUs", limit, ipus, entry.size())
                }
                (_, Some(limit)) if partitions >= limit => ("partitions", limit, partitions, 1),
                _ => return None,
            };
            Some(Excess {
                subject,
                unit,
                limit,
                held,
                requested,
            })
        })
    }

    /// Returns the IPUs that `subject` holds.
    pub(crate) fn ipus(&self, subject: &QuotaSubject) -> u32 {
        self.used.get(subject).map_or(0, |used| used.ipus)
    }

    /// Returns the partitions that use up the quota of `subject`.
    pub(crate) fn holders(&self, subject: &QuotaSubject) -> &[PartitionId] {
        self.used.get(subject).map_or(&[], |used| &used.holders)
    }
}

/// A quota that an entry would exceed.
#[derive(Clone, Copy)]
pub(crate) struct Excess<'a> {
    pub(crate) subject: &'a QuotaSubject,
    unit: &'static str,
    limit: u32,
    held: u32,
    requested: u32,
}

impl Excess<'_> {
    /// Builds the reason that `entry` waits.
    pub(crate) fn reason(&self, entry: &Entry) -> Reason {
        let Self {
            subject,
            unit,
            limit,
            held,
            requested,
        } = self;
        let code = if requested > limit {
            ReasonCode::QuotaTooSmall
        } else {
            ReasonCode::QuotaExceeded
        };
        Reason::new(
            code,
            format!("{subject} holds {held} of {limit} {unit} and requests {requested} more"),
        )
        .with("used", *held)
        .with("limit", *limit)
        .with("size", entry.size())
    }
}

/// Iterates over the quotas that `entry` counts towards, that of its namespace first.
fn quotas_of<'q>(
    quotas: &'q Quotas,
    entry: &Entry,
) -> impl Iterator<Item = (&'q QuotaSubject, &'q Quota)> + use<'q> {
    let quotas = Some(quotas).filter(|quotas| !quotas.is_empty());
    let subjects = quotas.map(|_| {
        let owner = entry.owner.as_ref();
        [
            owner.map(|owner| QuotaSubject::Namespace(owner.job.namespace.clone())),
            entry.account.clone().map(QuotaSubject::Account),
        ]
    });
    let subjects = subjects.into_iter().flatten().flatten();
    subjects.filter_map(move |subject| quotas?.get_key_value(&subject))
}
