//! Validates states that come from a file: the rest of the code relies on these invariants.

use std::collections::BTreeMap;

use ipu_core::hardware::IpuAddress;
use ipu_core::{AllocationId, IpuCount, PartitionId, Timestamp};

use super::lifecycle::MAX_AUTO_RESETS;
use super::{SimPartition, SimState};

/// Latest time that the API's timestamp can represent: the end of the year 9999.
const MAX_TIMESTAMP: Timestamp = Timestamp::from_millis(253_402_300_799_999);

impl SimState {
    /// Returns the first inconsistency: an IPU that does not exist or is in two partitions, or a partition
    /// with contradicting numbers.
    pub(crate) fn find_inconsistency(&self) -> Option<String> {
        if self.now > MAX_TIMESTAMP {
            return Some("its time is after the year 9999".to_owned());
        }
        let topology = &self.hardware.topology;
        if let Some(address) = self
            .hardware
            .bad
            .iter()
            .find(|address| !topology.contains(**address))
        {
            return Some(format!("{address} is marked bad but does not exist"));
        }
        let mut holders = BTreeMap::new();
        self.partitions.iter().find_map(|(id, partition)| {
            let inconsistency = self.partition_inconsistency(id, partition, &mut holders)?;
            Some(format!("partition {id}: {inconsistency}"))
        })
    }

    fn partition_inconsistency<'a>(
        &self,
        id: &'a PartitionId,
        partition: &SimPartition,
        holders: &mut BTreeMap<IpuAddress, &'a PartitionId>,
    ) -> Option<String> {
        let spec = &partition.spec;
        let count = spec.ipus.len();
        let size = u32::try_from(count).unwrap_or(u32::MAX);
        if IpuCount::try_from(size).is_err() {
            return Some(format!("{count} IPUs are not a power of two"));
        }
        if spec.num_gcds == 0 || !size.is_multiple_of(spec.num_gcds) {
            return Some(format!("{size} IPUs in {} GCDs", spec.num_gcds));
        }
        if spec.num_replicas < spec.num_gcds || spec.num_replicas > size {
            return Some(format!("{} replicas", spec.num_replicas));
        }
        if partition.auto_resets > MAX_AUTO_RESETS {
            return Some(format!("{} automatic resets", partition.auto_resets));
        }
        if partition.last_auto_reset.is_some_and(|time| time > self.now) {
            return Some("an automatic reset in the future".to_owned());
        }
        let id_of = AllocationId::new(spec.allocation_id.as_str()).ok();
        let topology = &self.hardware.topology;
        let Some(allocation) = id_of.and_then(|id| topology.allocation(&id)) else {
            return Some("its allocation does not exist".to_owned());
        };
        let addresses = self.ipu_addresses(spec);
        if addresses.len() != count {
            return Some("one of its IPUs does not exist".to_owned());
        }
        if let Some(address) = addresses
            .iter()
            .find(|address| !self.hardware.is_in(**address, allocation))
        {
            return Some(format!("{address} is not in allocation {}", allocation.id));
        }
        addresses.into_iter().find_map(|address| {
            let other = holders.insert(address, id)?;
            Some(format!("{address} is also held by {other}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{create, pod, requirements_of};
    use super::*;

    fn state_with_partition() -> (SimState, PartitionId) {
        let mut state = pod("pod16");
        create(&mut state, requirements_of("p1", 4), 1_000).unwrap();
        (state, PartitionId::new("p1").unwrap())
    }

    #[track_caller]
    fn inconsistency_after(change: impl FnOnce(&mut SimPartition)) -> String {
        let (mut state, id) = state_with_partition();
        assert_eq!(state.find_inconsistency(), None);
        change(state.partitions.get_mut(&id).unwrap());
        state.find_inconsistency().unwrap()
    }

    #[test]
    fn a_partition_with_contradicting_numbers_is_reported() {
        let inconsistency = inconsistency_after(|partition| partition.spec.num_gcds = 0);
        assert_eq!(inconsistency, "partition p1: 4 IPUs in 0 GCDs");
        let inconsistency = inconsistency_after(|partition| partition.spec.num_gcds = 3);
        assert_eq!(inconsistency, "partition p1: 4 IPUs in 3 GCDs");
        let inconsistency = inconsistency_after(|partition| partition.spec.num_replicas = 5);
        assert_eq!(inconsistency, "partition p1: 5 replicas");
        let inconsistency = inconsistency_after(|partition| partition.spec.ipus.truncate(3));
        assert_eq!(inconsistency, "partition p1: 3 IPUs are not a power of two");
        let inconsistency = inconsistency_after(|partition| partition.auto_resets = u32::MAX);
        assert_eq!(inconsistency, "partition p1: 4294967295 automatic resets");
        let inconsistency = inconsistency_after(|partition| partition.last_auto_reset = Some(MAX_TIMESTAMP));
        assert_eq!(inconsistency, "partition p1: an automatic reset in the future");
    }

    #[test]
    fn a_missing_ipu_or_one_held_twice_is_reported() {
        let inconsistency = inconsistency_after(|partition| partition.spec.allocation_id = "other".into());
        assert_eq!(inconsistency, "partition p1: its allocation does not exist");
        let inconsistency = inconsistency_after(|partition| partition.spec.ipus[0].topology_id = 17);
        assert_eq!(inconsistency, "partition p1: one of its IPUs does not exist");
        let inconsistency = inconsistency_after(|partition| partition.spec.ipus[0] = partition.spec.ipus[1]);
        assert_eq!(
            inconsistency,
            "partition p1: IPU 1 of link domain 0 is also held by p1"
        );
        let (mut state, _) = state_with_partition();
        state.hardware.bad.insert(IpuAddress {
            link_domain: 7,
            ipu: 0,
        });
        assert_eq!(
            state.find_inconsistency().unwrap(),
            "IPU 0 of link domain 7 is marked bad but does not exist"
        );
        state.now = Timestamp::from_millis(u64::MAX);
        assert_eq!(
            state.find_inconsistency().unwrap(),
            "its time is after the year 9999"
        );
    }
}
