//! Certain holds: from the return of an `active` answer until the holder's next step that may end it.

use std::collections::{BTreeMap, BTreeSet};

use crate::crash::history::{Call, Death, Micros, Operation};

/// Interval in which an owner certainly holds a partition for one attempt.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) id: String,
    pub(super) owner: String,
    pub(super) attempt: u32,
    pub(super) controller: String,
    pub(super) ipus: BTreeSet<String>,
    /// Return of the first `active` answer.
    pub(super) began: Micros,
    /// Invocation of the release or of a newer attempt, or death of the holder.
    pub(super) ended: Micros,
}

impl std::fmt::Display for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            id,
            owner,
            attempt,
            controller,
            ipus,
            began,
            ended,
        } = self;
        let end = if *ended == Micros::MAX {
            "the end".to_owned()
        } else {
            format!("{ended} µs")
        };
        write!(
            f,
            "{owner} holds {id} (attempt {attempt}) on {ipus:?} of {controller} from {began} µs to {end}"
        )
    }
}

/// Returns the certain holds of all owners, in the order of their begin.
pub(super) fn certain_holds(calls: &[Call], deaths: &[Death]) -> Vec<Hold> {
    let mut requests: BTreeMap<(&str, &str), Vec<&Call>> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.operation != Operation::Get) {
        requests.entry((&call.id, &call.owner)).or_default().push(call);
    }
    let mut holds: BTreeMap<(&str, &str, u32), Hold> = BTreeMap::new();
    for call in calls {
        let Some(answer) = call.answer.as_ref() else {
            continue;
        };
        let is_grant = call.operation == Operation::Put && answer.status == 200;
        if !is_grant || answer.state.as_deref() != Some("active") {
            continue;
        }
        let key = (&*call.id, &*call.owner, call.attempt);
        let began = call
            .returned
            .min(holds.get(&key).map_or(Micros::MAX, |hold| hold.began));
        let may_end = |other: &&&Call| other.operation == Operation::Delete || other.attempt > call.attempt;
        let ends = requests[&(key.0, key.1)]
            .iter()
            .filter(may_end)
            .map(|call| call.invoked);
        let dies = deaths
            .iter()
            .filter(|death| death.id == call.id && death.owner == call.owner);
        let ended = ends.chain(dies.map(|death| death.at)).min();
        let hold = Hold {
            id: call.id.clone(),
            owner: call.owner.clone(),
            attempt: call.attempt,
            controller: answer.controller.clone().unwrap_or_default(),
            ipus: answer.ipus.clone(),
            began,
            ended: ended.unwrap_or(Micros::MAX),
        };
        holds.insert(key, hold);
    }
    let mut holds: Vec<Hold> = holds
        .into_values()
        .filter(|hold| hold.began < hold.ended)
        .collect();
    holds.sort_by_key(|hold| hold.began);
    holds
}

/// Returns the grants without IPUs, and the pairs of holds of one IPU that overlap.
pub(super) fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut violations = Vec::new();
    // The hold of each IPU that ends last so far.
    let mut latest: BTreeMap<(&str, &str), &Hold> = BTreeMap::new();
    for hold in holds {
        if hold.ipus.is_empty() {
            violations.push(format!("a grant has no IPUs: {hold}"));
        }
        let mut conflicts: BTreeMap<&str, &Hold> = BTreeMap::new();
        for ipu in &hold.ipus {
            let last = latest.entry((&hold.controller, ipu)).or_insert(hold);
            let is_same_holder = last.id == hold.id && last.owner == hold.owner;
            if !is_same_holder && hold.began < last.ended {
                conflicts.insert(&last.id, last);
            }
            if last.ended < hold.ended {
                *last = hold;
            }
        }
        violations.extend(
            conflicts
                .values()
                .map(|other| format!("two holders of one IPU: {other}, and {hold}")),
        );
    }
    violations
}
