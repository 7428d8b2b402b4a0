//! Planted histories.

use std::collections::BTreeSet;

use super::check;
use crate::crash::history::{
    Call, CallAnswer, Death, ListedPartition, Listing, Micros, Operation, Record, StateLoss,
};

const POD: &str = "pod:1";

fn ipus(numbers: &[u32]) -> BTreeSet<String> {
    numbers.iter().map(|number| format!("0/{number}")).collect()
}

/// Call from `invoked` to `returned` with this answer.
fn call(
    operation: Operation,
    (id, owner, attempt): (&str, &str, u32),
    (invoked, returned): (Micros, Micros),
    answer: Option<CallAnswer>,
) -> Record {
    Record::Call(Call {
        operation,
        id: id.to_owned(),
        owner: owner.to_owned(),
        attempt,
        invoked,
        not_after: returned,
        returned,
        answer,
    })
}

fn state(status: u16, state: &str) -> Option<CallAnswer> {
    Some(CallAnswer {
        status,
        state: Some(state.to_owned()),
        ..CallAnswer::default()
    })
}

fn problem(status: u16, code: &str) -> Option<CallAnswer> {
    Some(CallAnswer {
        status,
        code: Some(code.to_owned()),
        ..CallAnswer::default()
    })
}

fn active(of: (&str, &str, u32), times: (Micros, Micros), numbers: &[u32]) -> Record {
    let mut answer = state(200, "active").unwrap();
    (answer.owner, answer.attempt) = (Some(of.1.to_owned()), Some(of.2));
    (answer.controller, answer.ipus) = (Some(POD.to_owned()), ipus(numbers));
    call(Operation::Put, of, times, Some(answer))
}

fn deleted(of: (&str, &str, u32), times: (Micros, Micros)) -> Record {
    call(Operation::Delete, of, times, state(200, "gone"))
}

fn absent(id: &str, times: (Micros, Micros)) -> Record {
    call(Operation::Get, (id, "reader", 0), times, problem(404, "NotFound"))
}

fn listing(times: (Micros, Micros), partitions: &[(&str, &str, &[u32])]) -> Record {
    Record::Listing(Listing {
        controller: POD.to_owned(),
        invoked: times.0,
        returned: times.1,
        partitions: partitions
            .iter()
            .map(|(id, state, numbers)| ListedPartition {
                id: (*id).to_owned(),
                state: (*state).to_owned(),
                ipus: ipus(numbers),
            })
            .collect(),
    })
}

fn violations(history: impl IntoIterator<Item = Record>) -> Vec<String> {
    // As the file has them.
    let lines = history
        .into_iter()
        .map(|record| serde_json::to_string(&record).unwrap());
    check(lines.map(|line| serde_json::from_str(&line).unwrap())).violations
}

#[track_caller]
fn assert_accepted(history: impl IntoIterator<Item = Record>) {
    assert_eq!(violations(history), Vec::<String>::new());
}

#[track_caller]
fn assert_caught(history: impl IntoIterator<Item = Record>, part: &str) {
    let found = violations(history);
    assert!(
        found.len() == 1 && found[0].contains(part),
        "{found:?} is not one violation with {part:?}"
    );
}

const A: (&str, &str, u32) = ("p", "a", 0);
const B: (&str, &str, u32) = ("q", "b", 0);

#[test]
fn a_double_grant_is_caught() {
    let history = [active(A, (0, 10), &[0, 1]), active(B, (20, 30), &[1, 2])];
    assert_caught(history.clone(), "two holders of one IPU");
    let [first, second] = history;
    assert_caught(
        [first, second, deleted(A, (40, 50)), deleted(B, (60, 70))],
        "two holders of one IPU",
    );
}

#[test]
fn a_double_grant_during_a_long_hold_is_caught_after_a_short_one() {
    let (short, long) = (("s", "a", 0), ("l", "a", 0));
    let history = [
        active(long, (0, 10), &[0, 1]),
        active(short, (0, 11), &[2]),
        deleted(short, (12, 13)),
        active(B, (20, 30), &[0, 2]),
    ];
    assert_caught(history, "two holders of one IPU: a holds l");
}

#[test]
fn a_grant_after_the_release_or_the_death_of_the_holder_is_accepted() {
    assert_accepted([
        active(A, (0, 10), &[0]),
        deleted(A, (20, 40)),
        active(B, (15, 30), &[0]),
    ]);
    let death = Record::Death(Death {
        id: "p".into(),
        owner: "a".into(),
        at: 20,
    });
    assert_accepted([active(A, (0, 10), &[0]), death, active(B, (15, 30), &[0])]);
}

#[test]
fn a_grant_without_ipus_is_caught() {
    assert_caught([active(A, (0, 10), &[])], "no IPUs");
}

#[test]
fn a_partition_that_vanishes_or_is_reset_during_a_hold_is_caught() {
    let with = |partitions: &[(&str, &str, &[u32])]| {
        [
            active(A, (0, 10), &[0]),
            listing((20, 21), partitions),
            deleted(A, (30, 40)),
        ]
    };
    assert_accepted(with(&[("p", "ACTIVE", &[0]), ("other", "CREATING", &[1])]));
    assert_caught(with(&[("other", "ACTIVE", &[1])]), "not listed");
    assert_caught(with(&[("p", "RESETTING", &[0])]), "the partition is RESETTING");
    assert_caught(with(&[("p", "ACTIVE", &[3])]), "the partition is on");
    assert_caught(
        with(&[("p", "ACTIVE", &[0]), ("q", "ACTIVE", &[0])]),
        "in two partitions",
    );
}

#[test]
fn a_listing_that_overlaps_an_end_of_the_hold_proves_nothing() {
    let newer = ("p", "a", 1);
    assert_accepted([
        listing((5, 15), &[]),
        active(A, (0, 10), &[0]),
        active(newer, (20, 30), &[0]),
        listing((19, 21), &[("p", "RESETTING", &[0])]),
        listing((22, 23), &[("p", "RESETTING", &[0])]),
        listing((39, 41), &[]),
        deleted(newer, (40, 50)),
    ]);
}

#[test]
fn a_lost_partition_is_excused_only_if_its_controller_lost_its_state() {
    let failed = call(Operation::Put, A, (60, 70), problem(409, "PartitionFailed"));
    let history = |controller: &str| {
        let loss = StateLoss {
            controller: controller.into(),
            began: 30,
            ended: 40,
        };
        [
            active(A, (0, 10), &[0]),
            Record::StateLoss(loss),
            listing((50, 51), &[]),
        ]
    };
    assert_accepted(history(POD).into_iter().chain([failed.clone()]));
    assert_caught(history("pod:2"), "not listed");
    assert_caught(
        [active(A, (0, 10), &[0]), failed],
        "no controller has lost its state",
    );
}

#[test]
fn an_absent_answer_while_a_partition_is_held_is_caught() {
    assert_caught(
        [active(A, (0, 10), &[0]), absent("p", (20, 30))],
        "no order explains",
    );
    assert_accepted([
        absent("p", (0, 10)),
        active(A, (5, 20), &[0]),
        absent("q", (30, 40)),
    ]);
    assert_accepted([
        active(A, (0, 10), &[0]),
        deleted(A, (20, 40)),
        absent("p", (25, 30)),
    ]);
}

#[test]
fn an_answer_of_another_owner_or_attempt_than_the_held_one_is_caught() {
    let other = ("p", "b", 0);
    let refused = call(Operation::Put, other, (20, 30), problem(409, "NotTheOwner"));
    assert_accepted([active(A, (0, 10), &[0]), refused.clone()]);
    assert_caught([refused], "no order explains");
    assert_caught(
        [active(A, (0, 10), &[0]), active(other, (20, 30), &[1])],
        "no order explains",
    );
    let old = call(Operation::Put, A, (20, 30), problem(409, "OldAttempt"));
    assert_caught([active(A, (0, 10), &[0]), old.clone()], "no order explains");
    assert_accepted([active(("p", "a", 1), (0, 10), &[0]), old]);
    let mut answer = active(("p", "a", 1), (0, 10), &[0]);
    if let Record::Call(call) = &mut answer {
        call.attempt = 0;
    }
    assert_caught([answer], "no order explains");
}

#[test]
fn a_held_partition_is_not_queued_again() {
    let get = |name: &str, times| {
        let mut answer = state(200, name).unwrap();
        (answer.owner, answer.attempt) = (Some("a".into()), Some(0));
        call(Operation::Get, ("p", "reader", 0), times, Some(answer))
    };
    let grant = || active(A, (0, 20), &[0]);
    assert_accepted([
        grant(),
        get("waiting", (5, 10)),
        get("creating", (11, 15)),
        get("active", (30, 40)),
    ]);
    assert_accepted([grant(), get("active", (5, 10))]);
    assert_caught([grant(), get("waiting", (30, 40))], "no order explains");
    assert_caught([grant(), get("releasing", (30, 40))], "no order explains");
}

#[test]
fn a_request_without_an_answer_may_take_effect_once_until_its_deadline() {
    let lost = call(Operation::Put, ("p", "b", 0), (0, 10), None);
    let refused = |times| call(Operation::Put, A, times, problem(409, "NotTheOwner"));
    assert_accepted([lost.clone(), refused((20, 30))]);
    assert_accepted([lost.clone(), active(A, (20, 30), &[0])]);
    assert_caught(
        [lost.clone(), active(A, (20, 30), &[0]), refused((40, 50))],
        "no order explains",
    );
    let (later, minute) = (30_000_000, 60_000_000);
    let expired = [
        lost.clone(),
        absent("p", (later, later + 10)),
        refused((minute, minute + 10)),
    ];
    assert_caught(expired, "no order explains");
    let of_lost = ("p", "b", 0);
    let history = [
        lost,
        deleted(of_lost, (20, 30)),
        active(A, (40, 50), &[0]),
        deleted(A, (60, 70)),
    ];
    assert_accepted(history.clone());
    let revived = [refused((80, 90)), refused((100, 110)), absent("p", (120, 130))];
    assert_caught(history.into_iter().chain(revived), "no order explains");
}

#[test]
fn a_release_ends_only_what_its_owner_has() {
    let releasing = call(Operation::Delete, A, (20, 30), state(202, "releasing"));
    assert_accepted([active(A, (0, 10), &[0]), releasing.clone(), absent("p", (40, 50))]);
    assert_accepted([
        active(A, (0, 10), &[0]),
        releasing.clone(),
        active(A, (40, 50), &[0]),
    ]);
    assert_caught([releasing.clone()], "no order explains");
    let of_other = active(("p", "b", 0), (0, 10), &[0]);
    assert_caught([of_other, releasing], "no order explains");
}
