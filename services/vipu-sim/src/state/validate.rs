//! What every state keeps, for states that come from a file: the rest of the code relies on it.

use std::collections::BTreeMap;

use ipu_core::{AllocationId, IpuAddress, IpuCount, PartitionId, Timestamp};

use super::lifecycle::MAX_AUTO_RESETS;
use super::{SimPartition, SimState};

/// The last moment that the API's form of a time can tell: the end of the year 9999.
const LAST_MOMENT: Timestamp = Timestamp::from_millis(253_402_300_799_999);

impl SimState {
    /// What cannot be, in words, if there is anything: an IPU that does not exist or is in two partitions, a partition
    /// whose numbers do not fit each other.
    pub(crate) fn find_inconsistency(&self) -> Option<String> {
        if self.now > LAST_MOMENT {
            return Some("its time is after the year 9999".to_owned());
        }
        let topology = &self.hardware.topology;
        if let Some(at) = self.hardware.bad.iter().find(|at| !topology.contains(**at)) {
            return Some(format!("{at} is bad and does not exist"));
        }
        let mut holders = BTreeMap::new();
        self.partitions.iter().find_map(|(id, held)| {
            let wrong = self.wrong(id, held, &mut holders)?;
            Some(format!("partition {id}: {wrong}"))
        })
    }

    fn wrong<'a>(
        &self,
        id: &'a PartitionId,
        held: &SimPartition,
        holders: &mut BTreeMap<IpuAddress, &'a PartitionId>,
    ) -> Option<String> {
        let spec = &held.spec;
        let count = spec.ipus.len();
        let size = u32::try_from(count).unwrap_or(u32::MAX);
        if IpuCount::try_from(size).is_err() {
            return Some(format!("{count} IPUs are no power of two"));
        }
        if spec.num_gcds == 0 || !size.is_multiple_of(spec.num_gcds) {
            return Some(format!("{size} IPUs in {} GCDs", spec.num_gcds));
        }
        if spec.num_replicas < spec.num_gcds || spec.num_replicas > size {
            return Some(format!("{} replicas", spec.num_replicas));
        }
        if held.auto_resets > MAX_AUTO_RESETS {
            return Some(format!("{} automatic resets", held.auto_resets));
        }
        if held.last_auto_reset.is_some_and(|at| at > self.now) {
            return Some("an automatic reset in the future".to_owned());
        }
        let id_of = AllocationId::new(spec.allocation_id.as_str()).ok();
        let topology = &self.hardware.topology;
        let Some(allocation) = id_of.and_then(|id| topology.allocation(&id)) else {
            return Some("its allocation does not exist".to_owned());
        };
        let places = self.places(spec);
        if places.len() != count {
            return Some("one of its IPUs does not exist".to_owned());
        }
        if let Some(at) = places.iter().find(|at| !self.hardware.is_in(**at, allocation)) {
            return Some(format!("{at} is not in allocation {}", allocation.id));
        }
        places.into_iter().find_map(|at| {
            let other = holders.insert(at, id)?;
            Some(format!("{at} is held by {other} too"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{create, pod, wanted};
    use super::*;

    fn held() -> (SimState, PartitionId) {
        let mut state = pod("pod16");
        create(&mut state, wanted("p1", 4), 1_000).unwrap();
        (state, PartitionId::new("p1").unwrap())
    }

    #[track_caller]
    fn contradiction(change: impl FnOnce(&mut SimPartition)) -> String {
        let (mut state, id) = held();
        assert_eq!(state.find_inconsistency(), None);
        change(state.partitions.get_mut(&id).unwrap());
        state.find_inconsistency().unwrap()
    }

    #[test]
    fn a_partition_whose_numbers_do_not_fit_is_named() {
        let said = contradiction(|held| held.spec.num_gcds = 0);
        assert_eq!(said, "partition p1: 4 IPUs in 0 GCDs");
        let said = contradiction(|held| held.spec.num_gcds = 3);
        assert_eq!(said, "partition p1: 4 IPUs in 3 GCDs");
        let said = contradiction(|held| held.spec.num_replicas = 5);
        assert_eq!(said, "partition p1: 5 replicas");
        let said = contradiction(|held| held.spec.ipus.truncate(3));
        assert_eq!(said, "partition p1: 3 IPUs are no power of two");
        let said = contradiction(|held| held.auto_resets = u32::MAX);
        assert_eq!(said, "partition p1: 4294967295 automatic resets");
        let said = contradiction(|held| held.last_auto_reset = Some(LAST_MOMENT));
        assert_eq!(said, "partition p1: an automatic reset in the future");
    }

    #[test]
    fn an_ipu_that_is_missing_or_held_twice_is_named() {
        let said = contradiction(|held| held.spec.allocation_id = "other".into());
        assert_eq!(said, "partition p1: its allocation does not exist");
        let said = contradiction(|held| held.spec.ipus[0].topology_id = 17);
        assert_eq!(said, "partition p1: one of its IPUs does not exist");
        let said = contradiction(|held| held.spec.ipus[0] = held.spec.ipus[1]);
        assert_eq!(said, "partition p1: IPU 1 of link domain 0 is held by p1 too");
        let (mut state, _) = held();
        state.hardware.bad.insert(IpuAddress {
            link_domain: 7,
            ipu: 0,
        });
        assert_eq!(
            state.find_inconsistency().unwrap(),
            "IPU 0 of link domain 7 is bad and does not exist"
        );
        state.now = Timestamp::from_millis(u64::MAX);
        assert_eq!(
            state.find_inconsistency().unwrap(),
            "its time is after the year 9999"
        );
    }
}
