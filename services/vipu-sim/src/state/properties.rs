//! What holds after any sequence of operations.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::tests::{at, create, pod, wanted};
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
    // A refusal is a legal answer to any of these.
    match op {
        Op::Create {
            id,
            order,
            relocatable: false,
        } => {
            create(state, wanted(&format!("p{id}"), 1 << order), now).ok();
        }
        Op::Create {
            id,
            order,
            relocatable: true,
        } => {
            let requirements = Some(wanted(&format!("p{id}"), 1 << order));
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

/// No IPU in two partitions, every partition whole, and each inside its allocation.
fn check(state: &SimState) {
    assert_eq!(state.find_inconsistency(), None);
    let mut seen = BTreeSet::new();
    for (id, held) in &state.partitions {
        let places = state.places(&held.spec);
        assert_eq!(
            places.len(),
            held.spec.ipus.len(),
            "{} has IPUs that do not exist",
            id
        );
        let allocation = state
            .hardware
            .topology
            .allocation(&held.spec.allocation_id.parse().unwrap())
            .unwrap();
        for place in places {
            assert!(seen.insert(place), "{} is in two partitions", place);
            assert!(state.hardware.is_in(place, allocation));
        }
        if held.phase == Phase::Active {
            assert!(
                state
                    .places(&held.spec)
                    .iter()
                    .all(|place| state.hardware.is_good(*place))
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_ipu_is_ever_in_two_partitions_and_the_stored_state_is_the_state(
        ops in vec((op(), 0..700_u64), 1..60),
    ) {
        let mut state = pod("pod128");
        let mut now = 0;
        for (op, wait) in ops {
            now += wait;
            apply(&mut state, &op, now);
            check(&state);
            let text = serde_json::to_string(&state).unwrap();
            prop_assert_eq!(&serde_json::from_str::<SimState>(&text).unwrap(), &state);
        }
    }

    #[test]
    fn time_that_passes_in_steps_or_at_once_leads_to_the_same(
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
