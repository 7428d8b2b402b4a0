//! Dry runs: sizes that would fit if some holders had ended. Nothing is recorded, and no controller is
//! called.

use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::capacity_snapshot::capacity_snapshots;
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::IpuCount;

/// Result for one of the requested sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DryRun {
    /// The size.
    pub size: IpuCount,
    /// The controller that would have capacity; none if none has.
    pub controller: Option<ControllerName>,
    /// Reasons that it would not fit, by controller.
    #[serde(rename = "why")]
    pub reasons: Vec<(ControllerName, Reason)>,
}

impl LedgerState {
    /// Places partitions of `sizes` hypothetically, one after the other and side by side, as if those of
    /// `ended` were released. The queue and quotas are ignored: the result is about capacity. Controllers are
    /// tried in their order.
    #[must_use]
    pub fn dry_run(
        &self,
        snapshot: &ControllersSnapshot,
        sizes: &[IpuCount],
        ended: &[PartitionId],
    ) -> Vec<DryRun> {
        let snapshot = &*self.by_controller(snapshot);
        let mut capacities = capacity_snapshots(self, snapshot);
        for capacity in &mut capacities {
            ended.iter().for_each(|id| capacity.current.release(id));
        }
        let mut results = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            let mut result = DryRun {
                size: *size,
                controller: None,
                reasons: Vec::new(),
            };
            let id = PartitionId::hypothetical(index);
            for capacity in &mut capacities {
                if let Some(reason) = capacity
                    .closed_reason()
                    .filter(|_| !capacity.opens_without(ended))
                {
                    result.reasons.push((capacity.name.clone(), reason));
                    continue;
                }
                match capacity.current.reserve(&id, &PartitionSpec::of_size(*size), &[]) {
                    Ok(_) => {
                        result.controller = Some(capacity.name.clone());
                        result.reasons.clear();
                        break;
                    }
                    Err(reason) => result.reasons.push((capacity.name.clone(), reason)),
                }
            }
            results.push(result);
        }
        results
    }
}
