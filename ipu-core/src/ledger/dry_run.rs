//! What would fit if some of those who hold had ended: nothing is recorded, nothing is asked.

use alloc::vec::Vec;

use serde::Serialize;

use crate::ids::{ControllerName, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::capacity::ControllersSnapshot;
use crate::ledger::capacity_snapshot::overlays;
use crate::partition::PartitionSpec;
use crate::reason::Reason;
use crate::units::IpuCount;

/// What would become of one of the sizes that were asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DryRun {
    /// The size.
    pub size: IpuCount,
    /// The controller that would have room; none if none has.
    pub controller: Option<ControllerName>,
    /// Why it would not fit: what each controller says that answered, by name.
    pub why: Vec<(ControllerName, Reason)>,
}

impl LedgerState {
    /// Where partitions of `sizes` would go, one after the other and side by side, if those of `ended` were gone. The
    /// waiting line is left aside, and so are quotas: the answer is about room. Controllers are tried in their order.
    #[must_use]
    pub fn dry_run(
        &self,
        world: &ControllersSnapshot,
        sizes: &[IpuCount],
        ended: &[PartitionId],
    ) -> Vec<DryRun> {
        let world = &*self.by_controller(world);
        let mut overlays = overlays(self, world);
        for overlay in &mut overlays {
            ended.iter().for_each(|id| overlay.now.release(id));
        }
        let mut answers = Vec::new();
        for (number, size) in sizes.iter().enumerate() {
            let mut answer = DryRun {
                size: *size,
                controller: None,
                why: Vec::new(),
            };
            let id = PartitionId::hypothetical(number);
            for overlay in &mut overlays {
                if let Some(reason) = overlay.closed().filter(|_| !overlay.opens_without(ended)) {
                    answer.why.push((overlay.name.clone(), reason));
                    continue;
                }
                match overlay.now.reserve(&id, &PartitionSpec::of_size(*size), &[]) {
                    Ok(_) => {
                        answer.controller = Some(overlay.name.clone());
                        answer.why.clear();
                        break;
                    }
                    Err(reason) => answer.why.push((overlay.name.clone(), reason)),
                }
            }
            answers.push(answer);
        }
        answers
    }
}
