//! Dry runs: sizes that would fit if some holders had ended. Nothing is recorded, and no controller is
//! called.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::{Capacity, Hardware};
use crate::allocator::holders::capacities;
use crate::allocator::state::State;
use crate::hardware::partition::{IpuPlace, PartitionSpec};
use crate::ids::{ControllerName, PartitionId};
use crate::reason::Reason;
use crate::units::IpuCount;

/// Result for one of the requested sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DryRun {
    /// The size.
    pub size: IpuCount,
    /// The controller that would have capacity; none if none has.
    pub controller: Option<ControllerName>,
    /// IPUs that it would get; empty if it does not fit, or if the controller chooses them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<IpuPlace>,
    /// Partitions that would have to end for it to fit, of the first controller that knows them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<PartitionId>,
    /// Reasons that it would not fit, by controller.
    #[serde(rename = "why")]
    pub reasons: Vec<(ControllerName, Reason)>,
}

impl State {
    /// Places partitions of `specs` hypothetically, one after the other and side by side, as if those of
    /// `ended` were released. The queue and quotas are ignored: the result is about capacity. Controllers are
    /// tried in their order.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use ipu_core::allocator::{
    ///     ControllerView, Hardware, InventoryCapacity, Listing, ServiceState, State,
    /// };
    /// use ipu_core::hardware::{Inventory, PartitionSpec, Topology};
    /// use ipu_core::{ControllerName, IpuCount, ReasonCode};
    ///
    /// let capacity = InventoryCapacity::new(Inventory::new(&Topology::pod16()));
    /// let hardware = Hardware::new(vec![ControllerView {
    ///     name: ControllerName::new("pod:8090")?,
    ///     service: ServiceState::Open,
    ///     listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
    ///     alias_of: None,
    /// }]);
    /// let specs = [16, 4].map(|ipus| IpuCount::try_from(ipus).map(PartitionSpec::of_size));
    /// let specs = specs.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let placed = State::default().dry_run(&hardware, &specs, &[]);
    /// assert_eq!(placed[0].places.len(), 16);
    /// assert_eq!(placed[1].reasons[0].1.code, ReasonCode::NotEnoughFree);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn dry_run(
        &self,
        hardware: &Hardware,
        specs: &[PartitionSpec],
        ended: &[PartitionId],
    ) -> Vec<DryRun> {
        let mut capacities = capacities(self, hardware);
        for capacity in &mut capacities {
            ended.iter().for_each(|id| capacity.current.release(id));
        }
        let mut results = Vec::new();
        let is_hypothetical =
            |id: &PartitionId| (0..specs.len()).any(|index| PartitionId::hypothetical(index) == *id);
        for (index, spec) in specs.iter().enumerate() {
            let mut result = DryRun {
                size: spec.size,
                controller: None,
                places: Vec::new(),
                blockers: Vec::new(),
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
                match capacity.current.reserve(&id, spec, &[]) {
                    Ok(places) => {
                        result.controller = Some(capacity.name.clone());
                        result.places = places;
                        result.blockers.clear();
                        result.reasons.clear();
                        break;
                    }
                    Err(reason) => {
                        if result.blockers.is_empty() {
                            let reserved = places_on(&capacity.name, &results);
                            result.blockers = blockers(&*capacity.current, spec, &reserved);
                            result.blockers.retain(|id| !is_hypothetical(id));
                        }
                        result.reasons.push((capacity.name.clone(), reason));
                    }
                }
            }
            results.push(result);
        }
        results
    }
}

/// Returns the IPUs of the hypothetical partitions on a controller.
fn places_on(controller: &ControllerName, results: &[DryRun]) -> Vec<IpuPlace> {
    let placed = results
        .iter()
        .filter(|result| result.controller.as_ref() == Some(controller));
    placed.flat_map(|result| result.places.iter().copied()).collect()
}

/// Returns the partitions that would have to end for `spec` to fit outside the `reserved` IPUs.
fn blockers(capacity: &dyn Capacity, spec: &PartitionSpec, reserved: &[IpuPlace]) -> Vec<PartitionId> {
    match capacity.places_on(&capacity.machines(), spec) {
        Ok(mut places) if !reserved.is_empty() => {
            places.retain(|place| !reserved.contains(place));
            capacity.blockers(spec, &places)
        }
        _ => capacity.blockers(spec, &[]),
    }
}
