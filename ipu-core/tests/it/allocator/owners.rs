//! Only the owner itself commands its entry, and only the requested partition satisfies it.

use ipu_core::allocator::{
    CallKind, Claim, Entry, Event, Hardware, Owners, Phase, Policy, Release, Request, RequestError, State,
    step,
};
use ipu_core::hardware::PartitionSpec;
use ipu_core::{Owner, Timestamp};
use ipu_testkit::strategies::{similar_owners, similar_specs};
use proptest::prelude::*;

use super::controller::{Controller, places};
use super::tables::queued_entry;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn run(state: &State, hardware: &Hardware, event: &Event) -> Result<ipu_core::allocator::Step, RequestError> {
    step(state, hardware, &Policy::default(), NOW, event)
}

/// Returns every phase.
fn phases() -> [Phase; 7] {
    [
        Phase::Queued,
        Phase::Creating,
        Phase::Resetting,
        Phase::Active,
        Phase::Failed { errors: Vec::new() },
        Phase::Releasing { refusal: None },
        Phase::Quarantined,
    ]
}

/// Returns the entry of `request` in `phase`.
fn entry(request: &Request, phase: &Phase) -> Entry {
    let mut entry = queued_entry(request);
    if phase.holds() {
        entry.controller = Some(Controller::new(0, 64).name);
        entry.places = places((1 << request.spec.size.get()) - 1);
    }
    entry.owner = entry.owner.filter(|_| *phase != Phase::Quarantined);
    entry.holder = String::from("1");
    entry.phase = phase.clone();
    entry
}

/// Returns the commands of `owner` for the entry of `request`.
fn commands(request: &Request, owner: &Owner) -> [Event; 4] {
    let (id, owner) = (request.id.clone(), owner.clone());
    let mut asked = Request::with_id(id.clone(), owner.clone(), request.spec.clone());
    asked.attempt = 1;
    let release = Release::of(&asked);
    let reset = Event::Reset {
        id: id.clone(),
        owner: owner.clone(),
        attempt: 1,
        not_after: None,
    };
    let holder = String::from("2");
    [
        Event::Ensure(asked),
        reset,
        Event::Release(release),
        Event::Renew { id, owner, holder },
    ]
}

/// Returns a controller that has a partition of `spec` under the id of `request`.
fn hardware(request: &Request, spec: &PartitionSpec) -> Hardware {
    let mut controller = Controller::new(0, 64);
    let (spec, ipus) = (spec.clone(), Vec::new());
    controller.execute(&request.id, &CallKind::Create { spec, ipus });
    Hardware::new(vec![controller.view(NOW)])
}

proptest! {
    #[test]
    fn an_owner_that_differs_in_one_part_commands_nothing((owner, other) in similar_owners()) {
        let request = Request::of_instance(owner, 0, PartitionSpec::of_size(2.try_into().unwrap()));
        let hardware = hardware(&request, &request.spec);
        let taken = run(&State::default(), &Hardware::default(), &commands(&request, &other)[0]);
        prop_assert_eq!(taken.is_ok(), other.job == request.owner.job, "its id is taken");
        for phase in phases() {
            let state = State::new([entry(&request, &phase)], []);
            // The id of a partition without a recorded owner proves all parts but the kind.
            let is_derived = phase == Phase::Quarantined && other.job == request.owner.job;
            for command in commands(&request, &other) {
                let refused = matches!(run(&state, &hardware, &command), Err(RequestError::NotTheOwner { .. }));
                prop_assert_eq!(refused, !is_derived, "{} {:?}", &phase, command);
            }
            let may_fail = matches!(phase, Phase::Queued | Phase::Releasing { .. } | Phase::Quarantined);
            for command in commands(&request, &request.owner) {
                let error = run(&state, &hardware, &command).err();
                let is_foreign = matches!(error, Some(RequestError::NotTheOwner { .. }));
                prop_assert!(error.is_none() || may_fail && !is_foreign, "{} {:?}", &phase, command);
            }
            let mut owners = Owners::default();
            let mut claimed = Request::of_instance(other.clone(), 0, request.spec.clone());
            claimed.attempt = 1;
            owners.claim(Claim::from(claimed));
            let step = run(&state, &hardware, &Event::Compare(owners)).unwrap();
            let may_adopt = is_derived || phase == Phase::Queued && other.job == request.owner.job;
            prop_assert_eq!(step.changes.is_empty(), !may_adopt, "{} {:?}", &phase, step.actions);
        }
    }

    #[test]
    fn a_repeated_request_does_not_observe_a_partition_that_outlives_its_processes(
        (owner, _) in similar_owners(),
        (spec, _) in similar_specs(),
        attempt in 0_u32..2,
    ) {
        let request = Request::of_instance(owner, 0, spec.clone());
        for phase in phases().into_iter().filter(|phase| *phase != Phase::Quarantined) {
            let mut recorded = entry(&request, &phase);
            recorded.holder = Request::UNOBSERVED.into();
            let state = State::new([recorded], []);
            let mut again = request.clone().with_holder("2");
            again.attempt = attempt;
            let mut after = state.clone();
            let step = run(&state, &hardware(&request, &spec), &Event::Ensure(again));
            let changes = step.map(|step| step.changes).unwrap_or_default();
            changes.iter().for_each(|change| after.apply(change));
            let holder = &after.get(&request.id).unwrap().holder;
            let is_new = attempt > 0 && !matches!(phase, Phase::Queued | Phase::Releasing { .. });
            let may_change = is_new || !phase.holds();
            prop_assert!(may_change || holder == Request::UNOBSERVED, "{}", &phase);
            prop_assert!(!is_new || holder == "2", "{}", &phase);
        }
        // A reset for a newer attempt ends it, too.
        let mut recorded = entry(&request, &Phase::Active);
        recorded.holder = Request::UNOBSERVED.into();
        let mut state = State::new([recorded], []);
        let (id, owner) = (request.id.clone(), request.owner.clone());
        let reset = Event::Reset { id, owner, attempt, not_after: None };
        let mut again = request.clone().with_holder("2");
        again.attempt = attempt;
        for event in [reset, Event::Ensure(again)] {
            let step = run(&state, &hardware(&request, &spec), &event).unwrap();
            step.changes.iter().for_each(|change| state.apply(change));
        }
        let holder = &state.get(&request.id).unwrap().holder;
        prop_assert_eq!(holder == "2", attempt > 0);
    }

    #[test]
    fn a_partition_that_differs_in_one_property_satisfies_no_request(
        (owner, _) in similar_owners(),
        (spec, other) in similar_specs(),
    ) {
        let request = Request::of_instance(owner, 0, spec.clone());
        let found = hardware(&request, &other);
        let first = run(&State::default(), &found, &Event::Ensure(request.clone()));
        prop_assert!(matches!(first, Err(RequestError::Foreign { .. })), "{:?}", first);
        let mut claimed = Owners::default();
        claimed.claim(Claim::from(request.clone()));
        for phase in phases() {
            let recorded = entry(&request, &phase);
            prop_assert!(recorded.matches(&spec) && !recorded.matches(&other));
            let state = State::new([recorded], []);
            let mut changed = request.clone();
            changed.spec = other.clone();
            let repeated = run(&state, &hardware(&request, &spec), &Event::Ensure(changed));
            prop_assert!(matches!(repeated, Err(RequestError::OtherSpec { .. })), "{:?}", repeated);
            let adopted = run(&state, &found, &Event::Compare(claimed.clone())).unwrap();
            prop_assert!(adopted.actions.is_empty(), "{} {:?}", &phase, adopted.actions);
            // A queued request does not start on it either.
            let started = run(&state, &found, &Event::Schedule).unwrap();
            prop_assert_eq!(&started.changes, &[], "{}", &phase);
        }
    }
}
