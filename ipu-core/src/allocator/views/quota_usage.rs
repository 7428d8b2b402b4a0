//! Use of the quotas.

use alloc::vec::Vec;

use crate::allocator::policy::Policy;
use crate::allocator::quota::{Quota, QuotaSubject, QuotaUse};
use crate::allocator::state::State;

/// Current use of one quota.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuotaUsage {
    /// Subject of the quota.
    pub subject: QuotaSubject,
    /// Its limits.
    pub quota: Quota,
    /// Number of IPUs that the subject holds.
    pub ipus: u32,
    /// Number of partitions that the subject holds.
    pub partitions: u32,
}

impl State {
    /// Returns the use of each quota of `policy`, by subject.
    #[must_use]
    pub fn quota_usage(&self, policy: &Policy) -> Vec<QuotaUsage> {
        let entries = self.entries().map(|entry| &**entry);
        let used = QuotaUse::new(&policy.quotas, entries);
        let quotas = policy.quotas.iter();
        quotas
            .map(|(subject, quota)| QuotaUsage {
                subject: subject.clone(),
                quota: *quota,
                ipus: used.ipus(subject),
                partitions: u32::try_from(used.holders(subject).len()).unwrap_or(u32::MAX),
            })
            .collect()
    }
}
