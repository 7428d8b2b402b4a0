//! Tests of the size limits and reserves.

use std::time::Duration;

use ipu_core::{
    CallWindow, ControllersSnapshot, CordonTarget, JobKey, LedgerState, Owner, PartitionSpec, QueuePolicy,
    Request, Timestamp,
};
use proptest::prelude::*;

use super::*;

fn owner(kind: &str, namespace: &str, name: &str, uid: &str) -> Owner {
    Owner {
        kind: kind.into(),
        job: JobKey::new(namespace, name, uid).unwrap(),
    }
}

fn queued(request: &Request) -> Entry {
    let window = CallWindow {
        now: Timestamp::from_millis(1_795_000_000_000),
        settle: Duration::from_secs(30),
    };
    let empty = LedgerState::default();
    let step = empty.request(
        request,
        &ControllersSnapshot::default(),
        &QueuePolicy::default(),
        window,
    );
    match step.unwrap().changes.first() {
        Some(Change::Put(entry)) => Entry::clone(entry),
        other => panic!("{other:?}"),
    }
}

fn entry(namespace: &str, number: usize) -> Entry {
    let owner = owner("IPUJob", namespace, &format!("job-{number}"), "u");
    queued(&Request::of_instance(
        owner,
        0,
        PartitionSpec::of_size(4.try_into().unwrap()),
    ))
}

fn put(entry: Entry) -> Change {
    Change::Put(Arc::new(entry))
}

/// A ConfigMap with `MAX_BYTES` bytes.
struct SmallConfigMap(Content);

const MAX_BYTES: usize = 50_000;

impl SmallConfigMap {
    fn write(&mut self, change: Change) -> Result<(), ConfigMapFull> {
        let content = self.0.after(&[change]);
        content.check_capacity(&self.0, MAX_BYTES)?;
        self.0 = content;
        Ok(())
    }

    /// Writes `make(0)`, `make(1)`, … until the ledger is full. Returns their number and the error message.
    fn fill(&mut self, make: impl Fn(usize) -> Change) -> (usize, String) {
        let refused = (0..).find_map(|number| Some((number, self.write(make(number)).err()?.0)));
        refused.unwrap()
    }
}

fn cordon(number: usize) -> Change {
    Change::Cordon(Arc::new(Cordon::new(
        format!("cordon-{number}").parse().unwrap(),
        "pod001:8090".parse().unwrap(),
        CordonTarget::Machine("a1".parse().unwrap()),
        "admin".parse().unwrap(),
        "x".repeat(200),
    )))
}

#[test]
fn every_queued_request_can_be_granted_and_released_beside_any_number_of_cordons() {
    let mut map = SmallConfigMap(Content::default());
    let (count, _) = map.fill(|number| put(entry("a", number)));
    let (cordons, message) = map.fill(cordon);
    assert!(count > 100 && cordons > 0, "{count}, {cordons}");
    assert!(
        message.contains("new requests and cordons are refused"),
        "{message}"
    );
    let fence = Timestamp::from_millis(1_795_000_030_000);
    let create = EntryState::Intent {
        operation: Operation::Create,
        fence,
    };
    for state in [create, EntryState::Active, EntryState::Releasing { fence }] {
        for number in 0..count {
            let mut entry = entry("a", number);
            entry.state = state.clone();
            entry.controller = Some("pod001.cluster.local:8090".parse().unwrap());
            entry.held_since = Some(entry.since);
            entry.unsettled = matches!(state, EntryState::Releasing { .. }).then_some(fence);
            map.write(put(entry)).unwrap();
        }
    }
}

#[test]
fn a_full_ledger_reports_the_largest_namespace() {
    let mut map = SmallConfigMap(Content::default());
    map.write(put(entry("b", 0))).unwrap();
    let (count, message) = map.fill(|number| put(entry("team-a", number)));
    let expected = format!("; namespace team-a has the most: {count} entries, ");
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn a_queued_request_that_grows_needs_capacity_like_a_new_one() {
    let mut map = SmallConfigMap(Content::default());
    map.fill(|number| put(entry("a", number)));
    let mut longer = entry("a", 0);
    longer.account = Some("x".repeat(63));
    assert!(map.write(put(longer)).is_err());
    // Being overtaken is not a change by its owner.
    let mut passed = entry("a", 0);
    passed.overtaken = 16;
    map.write(put(passed)).unwrap();
}

#[test]
fn ten_namespaces_fill_the_ledger_and_one_does_not() {
    let share = namespace_share(MAX_BYTES);
    assert!(share * SHARES + MAX_BYTES / HEADROOM_PARTS <= MAX_BYTES);
    let mut rules = QueuePolicy::default();
    rules.namespaces.max_queued_bytes = Some(share);
    let window = CallWindow {
        now: Timestamp::from_millis(0),
        settle: Duration::ZERO,
    };
    let (mut state, mut map) = (LedgerState::default(), SmallConfigMap(Content::default()));
    for namespace in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        let job = |number: usize| owner("IPUJob", namespace, &format!("job-{number}"), "u");
        let spec = || PartitionSpec::of_size(4.try_into().unwrap());
        let mut number = 0;
        while let Ok(step) = state.request(
            &Request::of_instance(job(number), 0, spec()),
            &ControllersSnapshot::default(),
            &rules,
            window,
        ) {
            for change in step.changes {
                state.apply(&change);
                map.write(change).unwrap();
            }
            number += 1;
        }
        assert!(number > 10, "{number}");
    }
}

proptest! {
    #[test]
    fn a_queued_entry_takes_no_more_bytes_than_its_record_bytes(
        kind in "[!-~]{1,63}", names in "[!-.0-~]{1,253}", uid in "[\"\\\\a]{1,253}", account in proptest::option::of(".{0,300}"),
        allocation in proptest::option::of("[!-~]{1,253}"), pin in proptest::option::of("[!-~]{1,253}"), holder in ".{0,80}",
        numbers in (any::<u32>(), any::<u32>(), any::<i32>(), 0_u32..=16), runtime in proptest::option::of(any::<u64>()),
        preemptible: bool, ipus in 0_u32..70,
    ) {
        let mut spec = PartitionSpec::of_size(65_536.try_into().unwrap());
        spec.allocation = allocation.map(|id| id.parse().unwrap());
        let mut request = Request::with_id("p".parse().unwrap(), owner(&kind, &names, &names, &uid), spec);
        (request.instance, request.attempt, request.priority) = (numbers.0, numbers.1, numbers.2);
        request.account = account;
        request.max_runtime = runtime.map(Duration::from_millis);
        request.preemptible = preemptible;
        request.holder = holder;
        request.pin.controller = pin.map(|name| name.parse().unwrap());
        request.pin.ipus = (0..ipus).map(|ipu| ipu_core::IpuPlace { link_domain: 4095, ipu }).collect();
        let mut entry = queued(&request);
        entry.overtaken = numbers.3;
        entry.ticket = u64::MAX;
        let (bytes, counted) = (compact(&entry).len() + growth(&entry), entry.record_bytes());
        prop_assert!(bytes <= counted, "{} bytes, {} counted: {}", bytes, counted, compact(&entry));
    }
}

#[test]
fn a_cordon_has_its_own_key_and_is_stored_until_it_is_lifted() {
    let cordon = Cordon::new(
        "maintenance".parse().unwrap(),
        "pod001:8090".parse().unwrap(),
        CordonTarget::Machine("a1".parse().unwrap()),
        "admin".parse().unwrap(),
        "a cable",
    );
    let change = Change::Cordon(Arc::new(cordon.clone()));
    let content = Content::default().after(&[change]);
    let texts = content.records.iter();
    let data: BTreeMap<String, String> = texts
        .map(|(key, record)| (key.to_string(), record.text.to_string()))
        .collect();
    let read = Content::read(data.clone(), None).unwrap();
    assert_eq!(read.cordons().first(), Some(&cordon));
    assert_eq!(read.entries(), []);
    assert!(read.after(&[Change::Lift(cordon.id)]).records.is_empty());

    let moved = BTreeMap::from([(".xother".to_owned(), data[".xmaintenance"].clone())]);
    let error = Content::read(moved, None).unwrap_err();
    assert!(
        matches!(&error, Unreadable::Damaged { key, .. } if key == ".xother"),
        "{error:?}"
    );
}
