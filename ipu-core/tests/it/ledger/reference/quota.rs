//! Quota usage during an evaluation of the queue.

use std::collections::BTreeMap;

use ipu_core::{Entry, PartitionId, QuotaSubject, Quotas, Reason};

/// The usage of each subject with a quota.
pub(super) struct QuotaUse<'a> {
    quotas: &'a Quotas,
    used: BTreeMap<&'a QuotaSubject, Used>,
}

#[derive(Clone, Default)]
struct Used {
    ipus: u32,
    holders: Vec<PartitionId>,
}

impl<'a> QuotaUse<'a> {
    pub(super) fn new<'e>(quotas: &'a Quotas, entries: impl Iterator<Item = &'e Entry>) -> Self {
        let mut usage = Self {
            quotas,
            used: BTreeMap::new(),
        };
        if !quotas.is_empty() {
            for entry in entries.filter(|entry| entry.state.holds()) {
                usage.add(entry);
            }
        }
        usage
    }

    pub(super) fn add(&mut self, entry: &Entry) {
        for (subject, _) in self
            .quotas
            .iter()
            .filter(|(subject, _)| applies_to(subject, entry))
        {
            let used = self.used.entry(subject).or_default();
            used.ipus = used.ipus.saturating_add(entry.spec.size.get());
            used.holders.push(entry.id.clone());
        }
    }

    /// Returns the reason if `entry` would exceed a quota, with the partitions that use it.
    pub(super) fn exceeded_by(&self, entry: &Entry) -> Option<(Reason, Vec<PartitionId>)> {
        self.quotas
            .iter()
            .filter(|(subject, _)| applies_to(subject, entry))
            .find_map(|(subject, quota)| {
                let used = self.used.get(subject).cloned().unwrap_or_default();
                let partitions = u32::try_from(used.holders.len()).unwrap_or(u32::MAX);
                let (unit, limit, used_count, requested) = match (quota.max_ipus, quota.max_partitions) {
                    (Some(limit), _) if used.ipus.saturating_add(entry.spec.size.get()) > limit => {
                        ("IPUs", limit, used.ipus, entry.spec.size.get())
                    }
                    (_, Some(limit)) if partitions >= limit => ("partitions", limit, partitions, 1),
                    _ => return None,
                };
                let reason = Reason::new(
                    "QuotaExceeded",
                    format!("{subject} holds {used_count} of {limit} {unit} and requests {requested} more"),
                )
                .with("used", used_count)
                .with("limit", limit)
                .with("size", entry.spec.size.get());
                Some((reason, used.holders))
            })
    }
}

fn applies_to(subject: &QuotaSubject, entry: &Entry) -> bool {
    match subject {
        QuotaSubject::Namespace(name) => entry
            .owner
            .as_ref()
            .is_some_and(|owner| owner.job.namespace == *name),
        QuotaSubject::Account(name) => entry.account.as_ref().is_some_and(|account| account == name),
    }
}
