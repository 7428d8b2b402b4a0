//! The tables of the allocator, row by row: comparisons, answers, and what a process knows of its calls.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::allocator::{
    Answer, Call, CallKind, CallTimes, Change, Claim, ControllerView, Cordon, CordonTarget, Ended, Entry,
    Event, Hardware, InFlight, OnNoCapacity, Outcome, OwnerLiveness, Owners, Phase, Policy, Release,
    RemovalRefusal, Reply, Request, RequestError, ServiceState, State, Step, UsageRecord, calls,
    evaluate_queue, step,
};
use ipu_core::hardware::{Partition, PartitionState};
use ipu_core::{BootTime, ClusterId, CordonId, CordonOwner, Reason, ReasonCode, Timestamp};

use super::controller::{Controller, places};
use super::world::request;

pub(super) const NOW: Timestamp = Timestamp::from_millis(1_000_000);

pub(super) fn run(state: &State, hardware: &Hardware, event: &Event) -> Step {
    let step = try_run(state, hardware, event).unwrap();
    for change in &step.changes {
        let record = serde_json::to_string(change).unwrap();
        assert_eq!(serde_json::from_str::<Change>(&record).unwrap(), *change);
    }
    step
}

fn try_run(state: &State, hardware: &Hardware, event: &Event) -> Result<Step, RequestError> {
    step(state, hardware, &Policy::default(), NOW, event)
}

/// Returns the queued entry of `request`, recorded a while ago.
pub(super) fn queued_entry(request: &Request) -> Entry {
    let event = Event::Ensure(request.clone());
    let step = run(&State::default(), &Hardware::default(), &event);
    let Change::Put(queued) = &step.changes[0] else {
        panic!("{:?}", step.changes);
    };
    let mut entry = Entry::clone(queued);
    entry.since = Timestamp::from_millis(1);
    entry
}

/// Returns the entry of owner 0, with 2 IPUs of controller 0, in this phase for a while.
pub(super) fn entry(phase: Phase) -> Entry {
    let mut entry = queued_entry(&request(0, 2));
    if phase.holds() {
        entry.controller = Some(Controller::new(0, 8).name);
        entry.places = places(0b11);
    }
    if phase == Phase::Quarantined {
        entry.owner = None;
    }
    entry.phase = phase;
    entry
}

/// Returns the first of `entries` after the event; none if it ended.
fn after(entries: &[&Entry], hardware: &Hardware, event: &Event) -> Option<Entry> {
    let mut state = State::new(entries.iter().copied().cloned(), []);
    let step = run(&state, hardware, event);
    step.changes.iter().for_each(|change| state.apply(change));
    state.get(&entries[0].id).map(|entry| Entry::clone(entry))
}

/// Returns a changed copy of `entry`.
pub(super) fn changed(entry: &Entry, change: impl FnOnce(&mut Entry)) -> Entry {
    let mut changed = entry.clone();
    change(&mut changed);
    changed
}

fn state(entry: Option<&Entry>) -> State {
    State::new(entry.cloned(), [])
}

fn releasing() -> Phase {
    Phase::Releasing { refusal: None }
}

fn failed() -> Phase {
    let errors = vec![String::from("broken")];
    Phase::Failed { errors }
}

fn queued() -> Phase {
    Phase::Queued
}

/// Which controllers list the partition, on the recorded IPUs or on others.
#[derive(Clone, Copy, PartialEq)]
enum Lists {
    Nothing,
    It,
    OnOtherIpus,
    Unknown,
    /// The controller is not configured.
    Missing,
    /// The name is a second one of controller 1.
    SecondName,
}

fn hardware(lists: &[Lists]) -> Hardware {
    let view = |(number, lists): (usize, &Lists)| {
        let mut controller = Controller::new(number, 8);
        let id = request(0, 2).id;
        match lists {
            Lists::It => controller.make_by_hand(&id, 2, false),
            Lists::OnOtherIpus => {
                controller.make_by_hand(&"other".parse().unwrap(), 4, true);
                controller.make_by_hand(&id, 2, false);
            }
            Lists::Nothing | Lists::Unknown | Lists::Missing | Lists::SecondName => {}
        }
        let listing = match lists {
            Lists::Unknown | Lists::SecondName => Err(Reason::new(
                ReasonCode::ControllerUnavailable,
                "it does not answer",
            )),
            _ => Ok(Arc::new(controller.listing(NOW))),
        };
        ControllerView {
            name: controller.name,
            service: ServiceState::Open,
            alias_of: (*lists == Lists::SecondName).then(|| Controller::new(1, 8).name),
            listing,
        }
    };
    let configured = lists
        .iter()
        .enumerate()
        .filter(|(_, lists)| **lists != Lists::Missing);
    Hardware::new(configured.map(view).collect())
}

/// Knowledge about the owner.
#[derive(Clone, Copy)]
enum OwnerIs {
    Unknown,
    Dead,
    /// It claims the partition for an attempt, at a controller or anywhere.
    Claims(u32, Option<usize>),
}

/// Record, whether it is an old copy, listings, owner, action, phase afterwards.
type Row = (
    Option<Phase>,
    bool,
    &'static [Lists],
    OwnerIs,
    &'static str,
    &'static str,
);

#[test]
fn every_row_of_the_comparison_has_its_action() {
    use Lists::{It, Missing, Nothing, OnOtherIpus, SecondName};
    use OwnerIs::{Claims, Dead, Unknown};
    let (active, quarantined) = (Phase::Active, Phase::Quarantined);
    let unconfirmed = true;
    #[rustfmt::skip]
    let rows: Vec<Row> = vec![
        (Some(queued()), false, &[Nothing], Dead, "drop", ""),
        (Some(Phase::Creating), false, &[It], Dead, "release", "releasing"),
        (Some(Phase::Resetting), false, &[It], Dead, "release", "releasing"),
        (Some(active.clone()), false, &[It], Dead, "release", "releasing"),
        (Some(failed()), false, &[Nothing], Dead, "release", "releasing"),
        (Some(releasing()), false, &[It], Dead, "", "releasing"),
        (Some(queued()), false, &[Nothing], Unknown, "", "waiting"),
        (Some(Phase::Resetting), false, &[It], Unknown, "", "resetting"),
        (Some(releasing()), false, &[It], Unknown, "", "releasing"),
        (Some(active.clone()), false, &[It], Unknown, "", "active"),
        (Some(active.clone()), false, &[Nothing], Unknown, "doubt", "active"),
        (Some(active.clone()), false, &[OnOtherIpus], Unknown, "doubt", "active"),
        (Some(failed()), false, &[Nothing], Unknown, "", "failed"),
        (Some(Phase::Creating), false, &[Nothing], Unknown, "", "creating"),
        (Some(active.clone()), false, &[Missing, It], Unknown, "record", "active"),
        (Some(active.clone()), false, &[SecondName, Nothing], Unknown, "record", "active"),
        (None, false, &[It], Claims(3, Some(0)), "adopt", "active"),
        (Some(queued()), false, &[It], Claims(3, Some(0)), "adopt", "active"),
        (Some(quarantined.clone()), false, &[It], Claims(3, None), "adopt", "active"),
        (None, false, &[Nothing, It], Claims(0, Some(0)), "quarantine", "quarantined"),
        (Some(quarantined.clone()), false, &[Nothing, It], Claims(0, Some(0)), "", "quarantined"),
        (None, false, &[It, It], Claims(0, None), "quarantine", "quarantined"),
        (Some(releasing()), false, &[It], Claims(1, Some(0)), "adopt", "active"),
        (Some(active.clone()), false, &[It], Claims(0, Some(0)), "", "active"),
        (None, false, &[It], Unknown, "quarantine", "quarantined"),
        (None, false, &[Nothing], Unknown, "", ""),
        (Some(quarantined), false, &[Nothing], Unknown, "doubt", "quarantined"),
        (Some(releasing()), unconfirmed, &[It], Unknown, "", "releasing"),
        (Some(active.clone()), unconfirmed, &[It], Dead, "", "active"),
        (Some(Phase::Creating), unconfirmed, &[It], Claims(0, Some(0)), "adopt", "active"),
        (Some(Phase::Creating), unconfirmed, &[Nothing], Unknown, "", "creating"),
        (Some(Phase::Creating), unconfirmed, &[Nothing], Dead, "release", "releasing"),
        (Some(releasing()), unconfirmed, &[Nothing], Unknown, "confirm", "releasing"),
        (Some(queued()), unconfirmed, &[Nothing], Unknown, "", "waiting"),
        (Some(queued()), unconfirmed, &[Nothing], Dead, "drop", ""),
        (Some(queued()), unconfirmed, &[], Unknown, "", "waiting"),
        (Some(active.clone()), unconfirmed, &[SecondName, It], Unknown, "record", "active"),
        (Some(queued()), unconfirmed, &[Nothing, Lists::Unknown], Unknown, "", "waiting"),
        (Some(active.clone()), unconfirmed, &[Nothing], Unknown, "confirm", "failed"),
        (Some(active.clone()), unconfirmed, &[Nothing, It], Unknown, "", "active"),
        (Some(active.clone()), unconfirmed, &[Lists::Unknown], Unknown, "", "active"),
        (Some(active.clone()), false, &[Lists::Unknown], Unknown, "", "active"),
        (Some(active), false, &[Lists::Unknown], Dead, "release", "releasing"),
    ];
    for (number, (phase, is_copy, lists, owner, action, after)) in rows.into_iter().enumerate() {
        let mut recorded = phase.map(entry);
        recorded.iter_mut().for_each(|entry| entry.unconfirmed = is_copy);
        let mut state = state(recorded.as_ref());
        let mut owners = Owners::default();
        let mut request = request(0, 2);
        match (owner, state.get(&request.id)) {
            (Claims(attempt, at), _) => {
                request.attempt = attempt;
                let at = at.map(|number| Controller::new(number, 8).name);
                owners.claim(at.map_or_else(|| request.clone().into(), |at| Claim::at(request.clone(), at)));
            }
            (Dead, Some(entry)) => owners.set_liveness(entry, OwnerLiveness::Dead),
            (Unknown, Some(entry)) => owners.set_liveness(entry, OwnerLiveness::Unknown),
            (Dead | Unknown, None) => {}
        }
        let step = run(&state, &hardware(lists), &Event::Compare(owners));
        let doubts = step.doubted.iter().map(|_| "doubt");
        let actions: Vec<&str> = step
            .actions
            .iter()
            .map(|(action, _)| action.as_str())
            .chain(doubts)
            .collect();
        assert_eq!(actions.join(","), action, "row {number}");
        step.changes.iter().for_each(|change| state.apply(change));
        let left = state.get(&request.id);
        assert_eq!(
            left.map_or("", |entry| entry.phase.as_str()),
            after,
            "row {number}"
        );
        if let (Claims(attempt, _), "adopt") = (owner, action) {
            assert_eq!(left.unwrap().attempt, attempt, "row {number}");
        }
    }
}

#[test]
fn a_second_name_of_a_controller_hides_no_reason_of_the_controller() {
    let view = |number, listing| ControllerView {
        name: Controller::new(number, 8).name,
        service: ServiceState::Open,
        alias_of: None,
        listing,
    };
    let doubled = Reason::new(ReasonCode::SameController, "it is controller 0");
    let first = Ok(Arc::new(Controller::new(0, 8).listing(NOW)));
    let hardware = Hardware::new(vec![view(0, first), view(1, Err(doubled))]);
    let large = state(Some(&queued_entry(&request(0, 16))));
    let queue = evaluate_queue(&large, &hardware, &Policy::default(), NOW);
    let reason = &queue[0].1.reason;
    assert_eq!((&reason.code, reason.numbers["free"]), (&ReasonCode::TooLarge, 8));
    assert!(hardware.listing_error(&hardware.controllers[1].name).is_some());
}

#[test]
fn the_owner_of_a_queued_request_of_an_old_copy_gets_the_partition_that_it_has_by_now() {
    let copy = changed(&entry(queued()), |entry| {
        entry.unconfirmed = true;
        entry.holder = String::from("1");
    });
    let mut wanted = request(0, 2);
    wanted.attempt = 3;
    let renewal = Event::Renew {
        id: wanted.id.clone(),
        owner: wanted.owner.clone(),
        holder: String::from("2"),
    };
    let release = Event::Release(Release::of(&wanted));
    for (event, expected) in [
        (Event::Ensure(wanted), "active"),
        (renewal, "active"),
        (release, "releasing"),
    ] {
        let heard = after(&[&copy], &hardware(&[Lists::It]), &event).unwrap();
        let found = (heard.phase.as_str(), heard.unconfirmed, heard.places);
        assert_eq!(found, (expected, false, places(0b11)), "{event:?}");
    }
    // A silent controller may have it.
    let event = Event::Ensure(request(0, 2));
    let heard = after(&[&copy], &hardware(&[Lists::Unknown]), &event);
    assert_eq!(heard, Some(copy));
}

#[test]
fn an_owner_that_is_heard_owns_its_partition_although_the_copy_is_of_a_time_without_owner() {
    let copy = changed(&entry(releasing()), |entry| {
        entry.unconfirmed = true;
        entry.owner = None;
    });
    let wanted = request(0, 2);
    let event = Event::Ensure(wanted.clone());
    let heard = after(&[&copy], &hardware(&[Lists::It]), &event).unwrap();
    assert_eq!((heard.phase, heard.owner), (Phase::Active, Some(wanted.owner)));
}

#[test]
fn a_chosen_id_at_another_controller_proves_nothing() {
    let mut controller = Controller::new(1, 8);
    let chosen = changed(&entry(Phase::Active), |entry| {
        entry.id = "chosen".parse().unwrap()
    });
    controller.make_by_hand(&chosen.id, 2, false);
    let hardware = Hardware::new(vec![controller.view(NOW)]);
    let event = Event::Compare(Owners::default());
    assert_eq!(after(&[&chosen], &hardware, &event), Some(chosen));
}

#[test]
fn a_partition_of_another_id_is_never_touched() {
    let mut controller = Controller::new(0, 8);
    controller.make_by_hand(&"training".parse().unwrap(), 4, true);
    let step = run(
        &State::default(),
        &Hardware::new(vec![controller.view(NOW)]),
        &Event::Compare(Owners::default()),
    );
    assert_eq!(step.changes, []);
}

#[test]
fn a_listing_from_before_the_present_phase_proves_nothing() {
    let mut active = entry(Phase::Active);
    active.since = NOW;
    let step = run(
        &state(Some(&active)),
        &hardware(&[Lists::Nothing]),
        &Event::Compare(Owners::default()),
    );
    assert_eq!((step.changes.len(), step.doubted.len()), (0, 0));
}

#[test]
fn a_queued_request_starts_on_a_partition_of_a_newer_listing_and_of_any_if_the_clock_was_set_back() {
    let at = NOW.as_millis();
    for (since, expected) in [(at - 1, "resetting"), (at, "creating"), (at + 1, "resetting")] {
        let mut entry = entry(queued());
        entry.since = Timestamp::from_millis(since);
        let left = after(&[&entry], &hardware(&[Lists::It]), &Event::Schedule);
        assert_eq!(left.unwrap().phase.as_str(), expected, "{since}");
    }
}

#[test]
fn an_existing_partition_is_reset_before_it_is_granted() {
    let ensure = Event::Ensure(request(0, 2));
    let events = [
        (None, &ensure),
        (Some(Phase::Quarantined), &ensure),
        (Some(queued()), &Event::Schedule),
    ];
    for (recorded, event) in events {
        let mut state = state(recorded.map(entry).as_ref());
        let step = run(&state, &hardware(&[Lists::It]), event);
        step.changes.iter().for_each(|change| state.apply(change));
        let granted = state.get(&request(0, 2).id).unwrap();
        assert_eq!(
            (granted.phase.as_str(), &granted.places),
            ("resetting", &places(0b11)),
            "{event:?}"
        );
    }
}

#[test]
fn the_declared_end_counts_from_the_start_of_the_hold_and_is_unknown_once_it_has_passed() {
    // It was reset meanwhile.
    let held = changed(&entry(Phase::Active), |entry| {
        entry.held_since = Some(Timestamp::from_millis(1_000));
        entry.since = Timestamp::from_millis(3_000);
        entry.max_runtime = Some(Duration::from_secs(4));
    });
    let end = Timestamp::from_millis(5_000);
    assert_eq!(held.declared_end(Timestamp::from_millis(4_999)), Some(end));
    assert_eq!(held.declared_end(end), None);
}

#[test]
fn the_ipus_of_an_active_partition_are_recorded_once_they_are_listed() {
    let mut active = entry(Phase::Active);
    active.places = Vec::new();
    let event = Event::Compare(Owners::default());
    let noted = after(&[&active], &hardware(&[Lists::It]), &event);
    assert_eq!(noted.unwrap().places, places(0b11));
}

#[test]
fn evidence_of_an_earlier_attempt_or_holder_releases_nothing() {
    let judged = entry(Phase::Active);
    let mut owners = Owners::default();
    owners.set_liveness(&Arc::new(judged.clone()), OwnerLiveness::Dead);
    let renewed = changed(&judged, |entry| entry.holder = String::from("2"));
    let restarted = changed(&judged, |entry| entry.attempt = 1);
    let again = changed(&judged, |entry| entry.ticket = 9);
    let event = Event::Compare(owners);
    for entry in [renewed, restarted, again] {
        assert_eq!(after(&[&entry], &hardware(&[Lists::It]), &event), Some(entry));
    }
}

/// Returns the answer `reply` to the present operation of `entry`.
fn answer(entry: &Entry, reply: Reply, is_settled: bool) -> Answer {
    let state = state(Some(entry));
    let mut in_flight = InFlight::default();
    in_flight.doubt(&entry.id);
    let due = calls(&state, &in_flight, BootTime::default(), NOW);
    Answer {
        id: entry.id.clone(),
        operation: due[0].operation,
        reply,
        is_settled,
    }
}

pub(super) fn found(size: u32, ipus: u64, state: PartitionState) -> Partition {
    let request = request(0, size);
    Partition {
        id: request.id,
        spec: request.spec,
        cluster: None,
        ipus: places(ipus),
        state,
    }
}

fn status(state: PartitionState) -> Reply {
    Reply::Status { state, listed: None }
}

fn located(ipus: u64) -> Reply {
    let listed = Some(found(2, ipus, PartitionState::Active));
    Reply::Status {
        state: PartitionState::Active,
        listed,
    }
}

fn broken() -> Reply {
    let errors = vec![String::from("broken")];
    status(PartitionState::Failed { errors })
}

fn message() -> String {
    String::from("no")
}

#[test]
fn every_answer_moves_the_entry_as_the_table_says() {
    let exists = |size| Reply::Exists(Some(found(size, 0b11, PartitionState::Active)));
    let refused = || Reply::Refused { message: message() };
    let active = || status(PartitionState::Active);
    let (settled, unsettled) = (true, false);
    #[rustfmt::skip]
    let rows = vec![
        (Phase::Creating, exists(2), settled, "resetting"),
        (Phase::Creating, exists(2), unsettled, "resetting"),
        (Phase::Creating, exists(4), settled, ""),
        (Phase::Creating, Reply::Exists(None), settled, "resetting"),
        (Phase::Creating, refused(), settled, "waiting"),
        (Phase::Creating, refused(), unsettled, "creating"),
        (Phase::Creating, active(), settled, "active"),
        (Phase::Creating, active(), unsettled, "active"),
        (Phase::Creating, broken(), settled, "broken"),
        (Phase::Creating, Reply::Absent, settled, "creating"),
        (Phase::Resetting, active(), settled, "active"),
        (Phase::Resetting, broken(), settled, "broken"),
        (Phase::Resetting, exists(2), settled, "resetting"),
        (Phase::Resetting, Reply::Absent, settled, "waiting"),
        (Phase::Resetting, Reply::Absent, unsettled, "resetting"),
        (Phase::Active, located(0b11), settled, "active"),
        (Phase::Active, located(0b1100), settled, "controller c0 has created it again on other IPUs"),
        (Phase::Active, Reply::Absent, settled, "controller c0 no longer lists the partition"),
        (Phase::Active, broken(), settled, "broken"),
        (failed(), active(), settled, "active"),
        (failed(), Reply::Absent, settled, "controller c0 no longer lists the partition"),
        (failed(), broken(), settled, "broken"),
        (Phase::Quarantined, Reply::Absent, settled, ""),
        (Phase::Quarantined, active(), settled, "quarantined"),
        (releasing(), Reply::Absent, settled, ""),
        (releasing(), Reply::Absent, unsettled, "releasing"),
        (releasing(), active(), settled, "releasing"),
        (releasing(), Reply::NeedsForce { message: message() }, settled, "releasing"),
    ];
    for (phase, reply, is_settled, expected) in rows {
        let recorded = entry(phase);
        let event = Event::Answered(answer(&recorded, reply.clone(), is_settled));
        let left = after(&[&recorded], &hardware(&[Lists::It]), &event);
        let context = format!("{} and {reply:?}, settled: {is_settled}", recorded.phase);
        let name = match left.as_ref().map(|left| &left.phase) {
            Some(Phase::Failed { errors }) => errors[0].clone(),
            phase => phase.map_or_else(String::new, ToString::to_string),
        };
        assert_eq!(name, expected, "{context}");
        let Some(left) = left else { continue };
        let is_refusal = matches!(reply, Reply::NeedsForce { .. });
        assert_eq!(left.removal_refusal().is_some(), is_refusal, "{context}");
        if left.phase == recorded.phase {
            assert_eq!(left, recorded, "{context}");
        } else if left.phase == Phase::Active {
            assert_eq!(left.unsettled, !is_settled, "{context}");
        }
    }
}

#[test]
fn a_partition_becomes_active_on_known_ipus_that_no_other_one_of_its_cluster_may_use() {
    let active = || status(PartitionState::Active);
    let entry = |phase, ipus, cluster: Option<&str>| {
        let mut entry = entry(phase);
        entry.places = places(ipus);
        entry.cluster = cluster.map(|name| ClusterId::new(name).unwrap());
        entry
    };
    let mut user = entry(Phase::Active, 0b11, Some("a"));
    user.id = "user".parse().unwrap();
    for (entry, reply, expected) in [
        (entry(Phase::Creating, 0, None), active(), "creating"),
        (entry(Phase::Creating, 0, None), located(0b1100), "active"),
        (entry(Phase::Active, 0, None), located(0b1100), "active"),
        (entry(failed(), 0, None), active(), "active"),
        (entry(Phase::Creating, 0b11, None), active(), "failed"),
        (entry(Phase::Creating, 0b11, Some("a")), active(), "failed"),
        (entry(Phase::Creating, 0b11, Some("b")), active(), "active"),
    ] {
        let event = Event::Answered(answer(&entry, reply, true));
        let left = after(&[&entry, &user], &hardware(&[Lists::Nothing]), &event);
        assert_eq!(left.unwrap().phase.as_str(), expected, "{event:?}");
    }
}

#[test]
fn an_answer_to_an_earlier_operation_moves_nothing() {
    let creating = entry(Phase::Creating);
    let event = Event::Answered(answer(&creating, status(PartitionState::Active), true));
    let later = changed(&creating, |entry| entry.operations += 1);
    let other = changed(&creating, |entry| entry.ticket += 1);
    for entry in [later, other] {
        assert_eq!(after(&[&entry], &hardware(&[Lists::It]), &event), Some(entry));
    }
}

#[test]
fn the_owner_of_a_request_without_a_partition_gets_the_reason() {
    let mut rejected = entry(Phase::Creating);
    rejected.rejects = true;
    let refused = answer(&rejected, Reply::Refused { message: message() }, true);
    let step = run(
        &state(Some(&rejected)),
        &hardware(&[Lists::Nothing]),
        &Event::Answered(refused),
    );
    assert!(matches!(&step.ended[&rejected.id], Ended::Refused(refusal) if refusal.message == "no"));
    let other = Reply::Exists(Some(found(4, 0b1111, PartitionState::Active)));
    let step = run(
        &state(Some(&rejected)),
        &hardware(&[Lists::It]),
        &Event::Answered(answer(&rejected, other, true)),
    );
    assert!(matches!(&step.ended[&rejected.id], Ended::Foreign(_)));
}

#[test]
fn a_partition_under_a_chosen_id_is_taken_over_only_if_the_allocator_may_have_created_it() {
    let mut chosen = entry(Phase::Creating);
    chosen.id = "training".parse().unwrap();
    let mut found = found(2, 0b11, PartitionState::Active);
    found.id = chosen.id.clone();
    for (is_settled, expected) in [(true, None), (false, Some("resetting"))] {
        let answer = answer(&chosen, Reply::Exists(Some(found.clone())), is_settled);
        let event = Event::Answered(answer);
        let left = after(&[&chosen], &hardware(&[Lists::Nothing]), &event);
        assert_eq!(left.as_ref().map(|entry| entry.phase.as_str()), expected);
        let released = changed(&chosen, |entry| {
            (entry.phase, entry.operations) = (releasing(), entry.operations + 1);
        });
        let left = after(&[&released], &hardware(&[Lists::Nothing]), &event);
        assert_eq!(left.is_none(), is_settled);
    }
}

/// The calls of one process for one entry.
struct Calls {
    entry: Entry,
    in_flight: InFlight,
    now: u64,
}

impl Calls {
    fn new(entry: Entry) -> Self {
        let in_flight = InFlight::inherited(CallTimes::default(), &State::default(), BootTime::default());
        Self {
            entry,
            in_flight,
            now: 1_000_000,
        }
    }

    /// A process that has just taken over.
    fn inherited(entry: Entry) -> Self {
        let mut calls = Self::new(entry);
        let now = BootTime::from_millis(calls.now);
        calls.in_flight = InFlight::inherited(CallTimes::default(), &state(Some(&calls.entry)), now);
        calls
    }

    fn due(&self) -> Option<Call> {
        let now = BootTime::from_millis(self.now);
        calls(&state(Some(&self.entry)), &self.in_flight, now, NOW).pop()
    }

    /// Waits for the next call, which is checked, and its reply. Returns the answer, with the seconds waited.
    fn call(&mut self, name: &str, reply: Reply) -> (u64, Option<Answer>) {
        let begun = self.now;
        let call = loop {
            let wake = self
                .in_flight
                .wake(&state(Some(&self.entry)), BootTime::from_millis(self.now));
            if let Some(call) = self.due() {
                assert_eq!(wake, None, "no further call");
                break call;
            }
            self.now = wake.unwrap_or_else(|| panic!("no {name} follows")).as_millis();
        };
        let kind = format!("{:?}", call.kind);
        assert!(kind.starts_with(name), "{kind} instead of {name}");
        assert!(!self.in_flight.is_running(&call.id));
        self.in_flight.begin(&call, BootTime::from_millis(self.now));
        assert!(self.in_flight.is_running(&call.id));
        assert_eq!(self.due(), None, "one call at a time");
        let now = BootTime::from_millis(self.now);
        let answer = self.in_flight.finish(&self.entry.id, reply, now);
        ((self.now - begun) / 1_000, answer)
    }
}

#[test]
fn a_create_is_repeated_at_once_and_what_it_finds_may_be_its_own() {
    let mut calls = Calls::new(entry(Phase::Creating));
    assert_eq!(calls.call("Create", Reply::NotSent).1, None);
    assert_eq!(calls.call("Create", Reply::Lost).1, None);
    let (waited, answer) = calls.call("Create", Reply::Refused { message: message() });
    assert_eq!((waited, answer.unwrap().is_settled), (0, false));
    let (_, answer) = calls.call("Create", Reply::Exists(None));
    assert!(!answer.unwrap().is_settled);
    let mut fresh = Calls::new(entry(Phase::Creating));
    assert!(fresh.call("Create", Reply::Exists(None)).1.unwrap().is_settled);
    let mut inherited = Calls::inherited(entry(Phase::Creating));
    inherited.now += 60_000;
    assert!(
        !inherited
            .call("Create", Reply::Exists(None))
            .1
            .unwrap()
            .is_settled
    );
    assert!(
        inherited
            .call("Create", Reply::Refused { message: message() })
            .1
            .unwrap()
            .is_settled
    );
}

#[test]
fn a_reset_is_not_repeated_while_the_first_one_may_take_effect() {
    let mut calls = Calls::new(entry(Phase::Resetting));
    assert_eq!(calls.call("Reset", Reply::Lost).1, None);
    assert_eq!(calls.call("Reset", Reply::Accepted), (30, None));
    let mut inherited = Calls::inherited(entry(Phase::Resetting));
    assert_eq!(inherited.call("Reset", Reply::NotSent).0, 30);
    assert_eq!(inherited.call("Reset", Reply::Accepted).0, 0);
}

#[test]
fn a_partition_is_missing_at_its_reset_only_once_no_late_call_can_create_it() {
    let mut fresh = Calls::new(entry(Phase::Resetting));
    assert!(fresh.call("Reset", Reply::Absent).1.unwrap().is_settled);
    let mut inherited = Calls::inherited(entry(Phase::Resetting));
    inherited.now -= 1;
    let (waited, answer) = inherited.call("Reset", Reply::Absent);
    assert_eq!((waited, answer.unwrap().is_settled), (30, true));
}

#[test]
fn the_status_of_an_accepted_call_is_queried_until_it_ends() {
    let mut calls = Calls::new(entry(Phase::Creating));
    assert_eq!(calls.call("Create", Reply::Accepted).1, None);
    assert_eq!(calls.call("Status", status(PartitionState::Creating)).1, None);
    assert_eq!(calls.call("Status", Reply::Lost).1, None);
    assert!(
        calls
            .call("Status", status(PartitionState::Active))
            .1
            .unwrap()
            .is_settled
    );
    // It vanished meanwhile.
    assert!(calls.call("Status", Reply::Absent).1.is_some());
    // Or its status lagged behind.
    let (_, answer) = calls.call("Create", Reply::Exists(None));
    assert!(!answer.unwrap().is_settled);
}

#[test]
fn an_entry_ends_by_an_absence_that_no_late_call_can_contradict() {
    let mut calls = Calls::new(entry(releasing()));
    assert_eq!(calls.call("Remove", Reply::Lost).1, None);
    assert!(!calls.call("Remove", Reply::Absent).1.unwrap().is_settled);
    let (waited, answer) = calls.call("Remove", Reply::Absent);
    assert_eq!((waited, answer.unwrap().is_settled), (29, true));
    let mut inherited = Calls::inherited(entry(releasing()));
    assert_eq!(inherited.call("Remove", Reply::NotSent), (0, None));
    let (waited, answer) = inherited.call("Remove", Reply::Absent);
    assert_eq!((waited, answer.unwrap().is_settled), (0, false));
    let (waited, answer) = inherited.call("Remove", Reply::Absent);
    assert_eq!((waited, answer.unwrap().is_settled), (29, true));
}

#[test]
fn a_removal_goes_on_until_the_partition_is_gone() {
    let mut calls = Calls::new(entry(releasing()));
    assert_eq!(calls.call("Remove", Reply::Accepted).1, None);
    assert_eq!(calls.call("Status", status(PartitionState::Removing)).1, None);
    assert!(calls.call("Status", status(PartitionState::Active)).1.is_some());
    assert_eq!(calls.call("Remove { force: true }", Reply::Accepted).1, None);
    calls.entry.unforced = true;
    calls.entry.operations += 1;
    assert!(
        calls
            .call(
                "Remove { force: false }",
                Reply::NeedsForce { message: message() }
            )
            .1
            .is_some()
    );
    calls.now += 5_000;
    let refusal = |at| Phase::Releasing {
        refusal: Some(RemovalRefusal::new("no", at)),
    };
    calls.entry.phase = refusal(NOW);
    assert_eq!(calls.due(), None);
    calls.entry.phase = refusal(Timestamp::from_millis(NOW.as_millis() - 30_000));
    assert!(calls.due().is_some());
}

#[test]
fn a_new_operation_starts_anew_and_waits_for_the_call_under_way() {
    let mut calls = Calls::new(entry(Phase::Creating));
    let create = calls.due().unwrap();
    calls.in_flight.begin(&create, BootTime::from_millis(calls.now));
    calls.entry.phase = releasing();
    calls.entry.operations += 1;
    assert_eq!(calls.due(), None);
    let now = BootTime::from_millis(calls.now);
    let answer = calls
        .in_flight
        .finish(&calls.entry.id, Reply::Exists(None), now)
        .unwrap();
    assert_eq!(answer.operation, create.operation);
    assert!(matches!(calls.due().unwrap().kind, CallKind::Remove { .. }));
}

#[test]
fn calls_follow_only_for_entries_that_their_owners_confirmed() {
    for phase in [Phase::Creating, Phase::Resetting, releasing()] {
        let copied = changed(&entry(phase), |entry| entry.unconfirmed = true);
        assert_eq!(Calls::new(copied).due(), None);
    }
    for phase in [queued(), Phase::Active, failed(), Phase::Quarantined] {
        assert_eq!(Calls::new(entry(phase)).due(), None);
    }
}

#[test]
fn a_doubted_partition_is_queried_once() {
    for phase in [Phase::Active, failed(), Phase::Quarantined] {
        let mut calls = Calls::new(entry(phase));
        calls.in_flight.doubt(&calls.entry.id);
        assert!(calls.call("Status { locate: true }", Reply::Absent).1.is_some());
        assert_eq!(calls.due(), None);
    }
}

#[test]
fn pauses_grow_to_their_limit() {
    let mut calls = Calls::new(entry(Phase::Creating));
    let mut pause_after = |name, reply: Reply| {
        for _ in 0..20 {
            assert_eq!(calls.call(name, reply.clone()).1, None);
        }
        let begun = calls.now;
        let _ = calls.call(name, Reply::Accepted);
        Duration::from_millis(calls.now - begun)
    };
    let times = CallTimes::default();
    assert_eq!(pause_after("Create", Reply::NotSent), times.max_retry_pause);
    let creating = status(PartitionState::Creating);
    assert_eq!(pause_after("Status", creating), times.max_poll_pause);
}

#[test]
fn a_request_that_is_not_to_be_queued_starts_at_once_or_leaves_no_record() {
    let ensure = |size| {
        let mut request: Request = request(0, size);
        request.on_no_capacity = OnNoCapacity::Reject;
        run(
            &State::default(),
            &hardware(&[Lists::Nothing]),
            &Event::Ensure(request),
        )
    };
    let starts = |entry: &Entry| entry.phase == Phase::Creating && entry.places == places(0xff);
    assert!(matches!(&ensure(8).changes[..], [Change::Put(entry)] if starts(entry)));
    assert_eq!(ensure(16).changes, []);
}

#[test]
fn a_request_may_queue_unless_it_can_never_start() {
    let ensure = |size| {
        let mut request: Request = request(1, size);
        request.on_no_capacity = OnNoCapacity::QueueUnlessImpossible;
        let held = State::new([entry(Phase::Active)], []);
        run(&held, &hardware(&[Lists::It]), &Event::Ensure(request)).outcome
    };
    assert_eq!(ensure(8), Outcome::Recorded);
    assert!(matches!(ensure(16), Outcome::Rejected(status) if status.reason.code.is_permanent()));
}

#[test]
fn a_repeated_request_moves_the_entry_as_the_table_says() {
    let is_copy = true;
    let broken = PartitionState::Failed { errors: vec![] };
    let (active, resetting) = (PartitionState::Active, PartitionState::Resetting);
    #[rustfmt::skip]
    let rows = [
        (Phase::Active, false, &active, 0, "active"),
        (Phase::Active, false, &active, 1, "resetting"),
        (failed(), false, &active, 1, "resetting"),
        (Phase::Active, is_copy, &active, 1, "active"),
        (Phase::Active, is_copy, &resetting, 0, "resetting"),
        (failed(), is_copy, &active, 0, "active"),
        (failed(), is_copy, &broken, 0, "failed"),
    ];
    for (number, (phase, is_copy, listed, attempt, expected)) in rows.into_iter().enumerate() {
        let recorded = changed(&entry(phase), |entry| entry.unconfirmed = is_copy);
        let mut controller = Controller::new(0, 8);
        controller.make_by_hand(&recorded.id, 2, false);
        controller.partitions.get_mut(&recorded.id).unwrap().state = listed.clone();
        let event = Event::Ensure(request(0, 2).with_attempt(attempt));
        let left = after(&[&recorded], &Hardware::new(vec![controller.view(NOW)]), &event);
        assert_eq!(left.unwrap().phase.as_str(), expected, "row {number}");
    }
}

#[test]
fn a_request_is_too_late_only_after_its_time() {
    for (time, is_late) in [(NOW.as_millis() - 1, true), (NOW.as_millis(), false)] {
        let mut asked = request(0, 2);
        asked.not_after = Some(Timestamp::from_millis(time));
        let result = try_run(&State::default(), &hardware(&[]), &Event::Ensure(asked));
        assert_eq!(result.is_err(), is_late);
    }
}

#[test]
fn an_administrator_releases_only_partitions_without_an_owner() {
    let rows = [(failed(), false), (releasing(), true), (Phase::Quarantined, true)];
    for (phase, is_allowed) in rows {
        let mut release = Release::of(&request(0, 2));
        release.owner = None;
        let state = state(Some(&entry(phase)));
        let result = try_run(&state, &hardware(&[Lists::It]), &Event::Release(release));
        assert_eq!(result.is_ok(), is_allowed);
    }
}

#[test]
fn force_that_an_owner_allows_stays_allowed() {
    for (phase, unforced) in [(Phase::Active, false), (releasing(), true)] {
        let recorded = changed(&entry(phase), |entry| entry.unforced = unforced);
        let mut release = Release::of(&request(0, 2));
        release.force = unforced;
        let left = after(&[&recorded], &hardware(&[Lists::It]), &Event::Release(release));
        assert_eq!(left.unwrap().unforced, !unforced);
    }
}

#[test]
fn a_hold_ends_once_its_entry_is_gone_or_begins_another_hold() {
    let held = |(ticket, since)| {
        changed(&entry(Phase::Active), |entry| {
            (entry.ticket, entry.held_since) = (ticket, Some(Timestamp::from_millis(since)));
        })
    };
    for next in [None, Some((1, 1)), Some((2, 1)), Some((1, 2))] {
        let record = UsageRecord::from_transition(&held((1, 1)), next.map(held).as_ref(), NOW);
        let used = (next != Some((1, 1))).then_some(2 * (NOW.as_millis() - 1));
        assert_eq!(record.map(|record| record.ipu_millis()), used, "{next:?}");
    }
}

#[test]
fn a_cordon_affects_the_holders_of_its_controller_and_only_its_owner_lifts_it() {
    let here = entry(Phase::Active);
    let there = changed(&here, |entry| {
        entry.id = "there".parse().unwrap();
        entry.controller = Some(Controller::new(1, 8).name);
    });
    let mut state = State::new([here.clone(), there], []);
    let silent = hardware(&[Lists::Unknown, Lists::Unknown]);
    assert_eq!(Vec::from_iter(&state.map(&silent)[0].unplaced), [&here.id]);
    let id = CordonId::new("k").unwrap();
    let owner = |name| CordonOwner::new(name).unwrap();
    let (name, all) = (Controller::new(0, 8).name, CordonTarget::Controller);
    let cordon = |owner, length| {
        let reason = "r".repeat(length);
        Event::Cordon(Cordon::new(id.clone(), name.clone(), all.clone(), owner, reason))
    };
    for refused in [cordon(owner("a"), 257), cordon(CordonOwner::health(), 0)] {
        assert!(try_run(&state, &silent, &refused).is_err());
    }
    let step = run(&state, &silent, &cordon(owner("a"), 256));
    step.changes.iter().for_each(|change| state.apply(change));
    assert_eq!(run(&state, &silent, &cordon(owner("a"), 256)).changes, []);
    assert!(try_run(&state, &silent, &cordon(owner("a"), 0)).is_err());
    let holders = match step.outcome {
        Outcome::Cordoned(effect) => effect.holders,
        other => panic!("{other:?}"),
    };
    let holders = holders.into_iter().map(|holder| holder.id);
    assert_eq!(Vec::from_iter(holders), [here.id]);
    for (owner, may_lift) in [(owner("b"), false), (owner("a"), true)] {
        let id = id.clone();
        let result = try_run(&state, &silent, &Event::Uncordon { id, owner });
        assert_eq!(result.is_ok(), may_lift);
    }
}

#[test]
fn partitions_that_the_state_does_not_hold_count_as_foreign() {
    let hardware = hardware(&[Lists::OnOtherIpus]);
    for (phase, counts) in [(Phase::Active, (2, 4, 0)), (queued(), (0, 6, 2))] {
        let stats = state(Some(&entry(phase))).stats(&hardware);
        assert_eq!((stats.used, stats.foreign, stats.leaked), counts);
    }
}

#[test]
fn calls_are_forgotten_once_no_entry_needs_them_and_they_can_have_no_effect() {
    let mut calls = Calls::new(entry(releasing()));
    let nothing = calls.in_flight.clone();
    let _ = calls.call("Remove", Reply::Lost);
    let needed = state(Some(&calls.entry));
    for (state, seconds, is_kept) in [(None, 29, true), (None, 30, false), (Some(needed), 30, true)] {
        let mut retained = calls.in_flight.clone();
        let now = BootTime::from_millis(calls.now + 1_000 * seconds);
        retained.retain(&state.unwrap_or_default(), now);
        assert_eq!(retained != nothing, is_kept);
    }
}

#[test]
fn a_process_with_rebased_times_judges_answers_alike() {
    for (begun, lasted) in [
        (1, 0),
        (20, 9),
        (29, 0),
        (29, 1),
        (29, 9),
        (30, 0),
        (30, 9),
        (40, 9),
    ] {
        let mut calls = Calls::new(entry(releasing()));
        let _ = calls.call("Remove", Reply::Lost);
        calls.now += 1_000 * begun;
        let base = BootTime::from_millis(30_000);
        let rebased = |more| {
            calls
                .in_flight
                .rebased(BootTime::from_millis(calls.now + more), base)
        };
        assert_eq!(
            rebased(0) == rebased(60_000),
            begun >= 30,
            "times that have passed"
        );
        let remove = calls.due().unwrap();
        calls.in_flight.begin(&remove, BootTime::from_millis(calls.now));
        let end = BootTime::from_millis(calls.now + 1_000 * lasted);
        let mut rebased = calls.in_flight.rebased(end, base);
        let answer = calls.in_flight.finish(&remove.id, Reply::Absent, end);
        assert_eq!(answer.as_ref().unwrap().is_settled, begun >= 30);
        assert_eq!(rebased.finish(&remove.id, Reply::Absent, base), answer);
    }
}

#[test]
fn a_request_of_an_earlier_attempt_is_refused() {
    let recorded = changed(&entry(Phase::Active), |entry| entry.attempt = 2);
    let event = Event::Ensure(request(0, 2).with_attempt(1));
    let result = try_run(&state(Some(&recorded)), &hardware(&[Lists::It]), &event);
    assert!(matches!(result, Err(RequestError::StaleAttempt { .. })));
}

#[test]
fn users_read_what_is_cordoned_and_why_a_removal_waits() {
    let (id, target) = ("k".parse().unwrap(), CordonTarget::Ipu("m1".parse().unwrap(), 2));
    let (name, owner) = (Controller::new(0, 8).name, CordonOwner::new("a").unwrap());
    let cordon = Cordon::new(id, name, target, owner, "broken").to_string();
    assert_eq!(cordon, "k (IPU 2 of machine m1) by a: broken");
    let refusal = Some(RemovalRefusal::new("in error", NOW));
    let reason = entry(Phase::Releasing { refusal }).removal_reason().unwrap();
    let message = "controller c0 refuses to remove the partition without force: in error; release it";
    assert!(reason.message.starts_with(message), "{}", reason.message);
}
