//! Invariants after any sequence of operations.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::tests::{at, create, pod, requirements_of};
use super::*;

#[derive(Clone, Debug)]
enum Op {
    Create { id: u8, order: u32, relocatable: bool },
    Remove { id: u8, force: Force },
    Reset { id: u8, relocatable: Relocation },
    Health { agent: u8, ipu: u32, health: Health },
    Wait,
}

fn op() -> impl Strategy<Value = Op> {
    let health = prop_oneof![Just(Health::Ok), Just(Health::Bad)];
    let force = prop_oneof![Just(Force::Yes), Just(Force::No)];
    let relocatable = prop_oneof![Just(Relocation::Yes), Just(Relocation::Keep)];
    prop_oneof![
        4 => (0..8_u8, 0..8_u32, any::<bool>())
            .prop_map(|(id, order, relocatable)| Op::Create { id, order, relocatable }),
        2 => (0..8_u8, force).prop_map(|(id, force)| Op::Remove { id, force }),
        1 => (0..8_u8, relocatable).prop_map(|(id, relocatable)| Op::Reset { id, relocatable }),
        2 => (1..=33_u8, 0..4_u32, health).prop_map(|(agent, ipu, health)| Op::Health { agent, ipu, health }),
        2 => Just(Op::Wait),
    ]
}

fn apply(state: &mut SimState, op: &Op, now: u64) {
    // A refusal is a valid result of any of these.
    match op {
        Op::Create {
            id,
            order,
            relocatable: false,
        } => {
            create(state, requirements_of(&format!("p{id}"), 1 << order), now).ok();
        }
        Op::Create {
            id,
            order,
            relocatable: true,
        } => {
            let requirements = Some(requirements_of(&format!("p{id}"), 1 << order));
            let request = wire::CreatePartitionRequest {
                requirements,
                relocatable: true,
                ..Default::default()
            };
            state.create(&request, at(now)).ok();
        }
        Op::Remove { id, force } => drop(state.remove(&format!("p{id}"), *force, at(now))),
        Op::Reset { id, relocatable } => drop(state.reset(&format!("p{id}"), *relocatable, at(now))),
        Op::Health { agent, ipu, health } => {
            drop(state.set_health(&format!("a{agent}"), *ipu, *health, at(now)));
        }
        Op::Wait => state.advance(at(now)),
    }
}

/// Asserts that no IPU is in two partitions, and that every partition is complete and inside its
/// allocation.
fn assert_invariants(state: &SimState) {
    let mut held = BTreeSet::new();
    for (id, partition) in &state.partitions {
        let addresses = state.ipu_addresses(&partition.spec);
        assert_eq!(
            addresses.len(),
            partition.spec.ipus.len(),
            "{} has IPUs that do not exist",
            id
        );
        let allocation = state
            .hardware
            .topology
            .allocation(&partition.spec.allocation_id.parse().unwrap())
            .unwrap();
        for address in addresses {
            assert!(held.insert(address), "{} is in two partitions", address);
            assert!(state.hardware.is_in(address, allocation));
        }
        if partition.phase == Phase::Active {
            assert!(
                state
                    .ipu_addresses(&partition.spec)
                    .iter()
                    .all(|address| state.hardware.is_good(*address))
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_ipu_is_in_two_partitions_and_the_state_round_trips_through_json(
        ops in vec((op(), 0..700_u64), 1..60),
    ) {
        let mut state = pod("pod128");
        let mut now = 0;
        for (op, wait) in ops {
            now += wait;
            apply(&mut state, &op, now);
            assert_invariants(&state);
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(&serde_json::from_str::<SimState>(&text).unwrap(), &state);
        }
    }

    #[test]
    fn advancing_time_in_steps_or_at_once_gives_the_same_state(
        ops in vec((op(), 0..700_u64), 1..30),
        steps in vec(0..2_000_u64, 0..12),
    ) {
        let mut state = pod("pod128");
        let mut now = 0;
        for (op, wait) in ops {
            now += wait;
            apply(&mut state, &op, now);
        }
        let mut stepped = state.clone();
        for step in steps {
            now += step;
            stepped.advance(at(now));
        }
        state.advance(at(now));
        prop_assert_eq!(state, stepped);
    }
}
