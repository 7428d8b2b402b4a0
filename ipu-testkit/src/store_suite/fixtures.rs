//! Entries to store.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    AgentId, AllocationId, CallWindow, Change, ControllerName, ControllerRejection, ControllersSnapshot,
    Cordon, CordonId, CordonOwner, CordonTarget, Entry, EntryState, IpuCount, IpuPlace, JobKey, LedgerState,
    Operation, Owner, PartitionSpec, PlacedBy, PlacementConstraint, QueuePolicy, Request, Timestamp,
};

/// Returns the change that puts [`entry`].
pub(super) fn put(name: &str) -> Change {
    Change::Put(Arc::new(entry(name)))
}

/// Returns the change that puts [`entry`] with this attempt.
pub(super) fn put_attempt(name: &str, attempt: u32) -> Change {
    let mut entry = entry(name);
    entry.attempt = attempt;
    Change::Put(Arc::new(entry))
}

/// Returns the change that removes [`entry`].
pub(super) fn remove(name: &str) -> Change {
    Change::Remove(entry(name).id)
}

/// Returns the change that cordons one IPU under the id `name`.
pub(super) fn cordon(name: &str, reason: &str) -> Change {
    let mut cordon = Cordon::new(
        valid(CordonId::new(name)),
        controller(),
        CordonTarget::Ipu(valid(AgentId::new("agent-1")), 3),
        valid(CordonOwner::new("system:serviceaccount:suite:somebody")),
        format!("{reason} {TEXT}"),
    );
    cordon.since = Timestamp::from_millis(u64::MAX);
    Change::Cordon(Arc::new(cordon))
}

/// Returns the change that lifts [`cordon`].
pub(super) fn lift(name: &str) -> Change {
    Change::Lift(valid(CordonId::new(name)))
}

/// Returns an entry as the ledger records it for a queued request.
pub(super) fn entry(name: &str) -> Entry {
    let job = valid(JobKey::new("suite", name, "0c5a1e9e-0000-4000-8000-000000000001"));
    let owner = Owner {
        kind: "Suite".into(),
        job,
    };
    let request = Request::of_instance(owner, 0, PartitionSpec::of_size(valid(IpuCount::try_from(4))));
    let window = CallWindow {
        now: Timestamp::from_millis(1_700_000_000_000),
        settle: Duration::from_secs(30),
    };
    let step = valid(LedgerState::default().request(
        &request,
        &ControllersSnapshot::default(),
        &QueuePolicy::default(),
        window,
    ));
    match step.changes.first() {
        Some(Change::Put(entry)) => Entry::clone(entry),
        other => panic!("a first request must be recorded, not {other:?}"),
    }
}

/// Returns changes that put entries with these numbers, which differ only in their ids.
pub(super) fn put_many(numbers: Range<usize>) -> Vec<Change> {
    let like = entry("many");
    let numbered = numbers.map(|number| {
        let mut entry = like.clone();
        entry.id = valid(format!("many-{number}").parse());
        Change::Put(Arc::new(entry))
    });
    numbered.collect()
}

/// Returns entries in every state: with minimal fields, and with every field at its limits.
pub(super) fn entries_of_every_kind() -> Vec<Entry> {
    let states = || every_state().into_iter().enumerate();
    let plain = states().map(|(number, state)| {
        let mut entry = entry(&format!("plain{number}"));
        entry.state = state;
        entry
    });
    let full = states().map(|(number, state)| full(&format!("full{number}"), state));
    let mut entries: Vec<_> = plain.chain(full).collect();
    let mut nobodys = entry("nobodys");
    nobodys.owner = None;
    nobodys.state = EntryState::Quarantined;
    entries.push(nobodys);
    entries
}

fn every_state() -> Vec<EntryState> {
    let refused = ControllerRejection {
        controller: controller(),
        message: TEXT.into(),
        fingerprint: u64::MAX,
        at: Timestamp::from_millis(u64::MAX),
    };
    let fence = Timestamp::from_millis(1_700_000_030_001);
    let intent = |operation| EntryState::Intent { operation, fence };
    vec![
        EntryState::Waiting { refused: None },
        EntryState::Waiting {
            refused: Some(refused),
        },
        intent(Operation::Create),
        intent(Operation::Reset),
        EntryState::Active,
        EntryState::Failed { errors: Vec::new() },
        EntryState::Failed {
            errors: vec![TEXT.into(), String::new(), TEXT.into()],
        },
        EntryState::Releasing { fence },
        EntryState::Orphaned,
        EntryState::Quarantined,
    ]
}

/// Text with special characters, as users and controllers write it.
const TEXT: &str = "it's \"down\" \\ \u{1F980}\nsecond line\ttab % ' ; -- {}";

/// Returns an entry that differs from [`entry`] in every field.
fn full(name: &str, state: EntryState) -> Entry {
    let place = |ipu| IpuPlace { link_domain: 3, ipu };
    let mut entry = entry(name);
    entry.instance = 7;
    entry.attempt = u32::MAX;
    entry.spec = PartitionSpec {
        size: valid(IpuCount::try_from(16)),
        gcds: 2,
        replicas: 4,
        reconfigurable: true,
        allocation: Some(valid(AllocationId::new("alloc-1"))),
    };
    entry.state = state;
    entry.overtaken = 16;
    entry.controller = Some(controller());
    entry.places = (0..16).rev().map(place).collect();
    entry.placed = PlacedBy::Ledger;
    entry.ticket = u64::MAX;
    entry.since = Timestamp::from_millis(u64::MAX);
    entry.unsettled = Some(Timestamp::from_millis(1));
    entry.unsettled_reset = Some(Timestamp::from_millis(u64::MAX - 1));
    entry.held_since = Some(Timestamp::from_millis(0));
    entry.priority = i32::MIN;
    entry.max_runtime = Some(Duration::from_millis(123_456_789));
    entry.account = Some(TEXT.into());
    entry.preemptible = true;
    entry.holder = TEXT.into();
    entry.pin = PlacementConstraint {
        controller: Some(controller()),
        ipus: vec![place(63), place(0)],
    };
    entry
}

fn controller() -> ControllerName {
    valid(ControllerName::new("controller-1"))
}

/// Unwraps a value that the suite constructs.
fn valid<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("the suite's own values are valid: {error}"))
}
