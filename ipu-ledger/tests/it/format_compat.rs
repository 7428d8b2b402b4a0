//! A model of the previous build's ledger format, and upgrades and downgrades under load. It runs over every
//! store: the tests of the ledger in a ConfigMap include this file too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{ControllerName, CordonTarget, FormatError, JobKey, Owner, PartitionSpec, Request, Topology};
use ipu_ledger::{
    Change, Entry, Ledger, LedgerError, LedgerOptions, LedgerStore, Released, Revision, Snapshot, StoreError,
    WriteLock, encode,
};
use ipu_testkit::FakeController;
use ipu_vipu_client::ControllerPool;
use serde_json::Value;
use tokio::task::JoinSet;

/// Number of jobs in total, maximum number of concurrent jobs, and number of jobs after which the build
/// changes.
const JOBS: usize = 96;
const MAX_CONCURRENT: usize = 12;
const JOBS_PER_BUILD: usize = 12;

/// The fields of an entry of format 1. Never add to this list: builds with exactly these fields are in use.
const FIELDS: [&str; 21] = [
    "account",
    "attempt",
    "controller",
    "heldSince",
    "holder",
    "id",
    "instance",
    "maxRuntimeMillis",
    "owner",
    "passedOver",
    "pin",
    "placed",
    "places",
    "preemptible",
    "priority",
    "since",
    "spec",
    "state",
    "ticket",
    "unsettled",
    "unsettledReset",
];

/// The states of format 1 with their fields.
const STATES: [(&str, &[&str]); 7] = [
    ("waiting", &["refused"]),
    ("intent", &["operation", "fence"]),
    ("active", &[]),
    ("failed", &["errors"]),
    ("releasing", &["fence"]),
    ("orphaned", &[]),
    ("quarantined", &[]),
];

/// A type-erased store.
#[derive(Clone)]
pub(crate) struct AnyStore(Arc<dyn LedgerStore>);

impl AnyStore {
    pub(crate) fn new(store: impl LedgerStore) -> Self {
        Self(Arc::new(store))
    }
}

#[async_trait]
impl LedgerStore for AnyStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.0.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.0.commit(basis, changes).await
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        self.0.lock().await
    }
}

/// The store of the previous build, which reads and writes only format 1.
struct PreviousStore(AnyStore);

#[async_trait]
impl LedgerStore for PreviousStore {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        let snapshot = self.0.load(newer_than).await?;
        if let Some(snapshot) = &snapshot {
            if !snapshot.cordons.is_empty() {
                return Err(FormatError::Newer { found: 2 }.into());
            }
            snapshot.entries.iter().for_each(check);
        }
        Ok(snapshot)
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        for change in changes {
            match change {
                Change::Put(entry) => check(entry),
                Change::Remove(_) => {}
                other => panic!("the previous build does not support {other:?}"),
            }
        }
        self.0.commit(basis, changes).await
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        self.0.lock().await
    }
}

/// Panics if the previous build would refuse this entry.
fn check(entry: &Entry) {
    let stored: Value = serde_json::from_str(&encode(entry)).unwrap();
    assert_eq!(stored["format"], 1, "{stored}");
    for field in stored["entry"].as_object().unwrap().keys() {
        assert!(
            FIELDS.contains(&field.as_str()),
            "the previous build has no field {field}"
        );
    }
    let state = stored["entry"]["state"].as_object().unwrap();
    let state_fields = STATES.iter().find(|(label, _)| state["is"] == *label);
    let (_, fields) = state_fields.unwrap_or_else(|| panic!("the previous build has no state {state:?}"));
    for field in state.keys().filter(|field| *field != "is") {
        assert!(
            fields.contains(&field.as_str()),
            "the previous build has no field {field} of {state:?}"
        );
    }
}

pub(crate) type AnyLedger = Ledger<FakeController, AnyStore>;

/// The build that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Build {
    Previous,
    This,
}

fn start(build: Build, controller: &FakeController, topology: &Topology, store: AnyStore) -> AnyLedger {
    let store = match build {
        Build::Previous => AnyStore::new(PreviousStore(store)),
        Build::This => store,
    };
    let name = ControllerName::new("pod:8090").unwrap();
    let mut options = LedgerOptions::default();
    options.topologies.insert(name.clone(), topology.clone());
    options.queue_poll_interval = Duration::from_millis(50);
    options.max_poll_interval = Duration::from_millis(20);
    // A call of this controller ends with its caller.
    options.settle = Duration::ZERO;
    Ledger::new(
        ControllerPool::single(name, Arc::new(controller.clone())),
        store,
        options,
    )
}

fn request(number: usize) -> Request {
    let name = format!("job{number}");
    let owner = Owner {
        kind: "Job".into(),
        job: JobKey::new("default", &name, "uid").unwrap(),
    };
    Request::of_instance(owner, 0, PartitionSpec::of_size(4.try_into().unwrap()))
}

/// Alternates between the builds while jobs run. Both builds overlap for a while, and the earlier one is
/// dropped in the middle of its operations. `open` opens the store like an additional process.
pub(crate) async fn exchange_builds_under_load(open: impl AsyncFn() -> AnyStore) {
    let topology = Topology::pod64();
    let controller = FakeController::new(&topology, 1);
    controller.set_operation_time(Duration::from_millis(2));
    let first = start(Build::Previous, &controller, &topology, open().await);
    let current = Arc::new(RwLock::new(first));
    let done = Arc::new(AtomicUsize::new(0));
    let mut jobs = JoinSet::new();
    let mut builds = vec![Build::Previous];
    for number in 0..JOBS {
        while jobs.len() >= MAX_CONCURRENT {
            jobs.join_next().await.unwrap().unwrap();
        }
        if done.load(Ordering::SeqCst) >= builds.len() * JOBS_PER_BUILD {
            let next = match builds.last() {
                Some(Build::Previous) => Build::This,
                _ => Build::Previous,
            };
            let next_ledger = start(next, &controller, &topology, open().await);
            *current.write().unwrap_or_else(PoisonError::into_inner) = next_ledger;
            builds.push(next);
        }
        let job = run(
            number,
            Arc::clone(&current),
            controller.clone(),
            Arc::clone(&done),
        );
        jobs.spawn(job);
    }
    while let Some(job) = jobs.join_next().await {
        job.unwrap();
    }
    assert!(builds.len() > 4, "{builds:?}");
    assert_eq!(controller.disturbed(), Vec::<String>::new());
    assert_eq!(controller.ids(), []);
    for build in [Build::Previous, Build::This] {
        let ledger = start(build, &controller, &topology, open().await);
        assert_eq!(ledger.list().await.unwrap(), [], "{build:?}");
    }
}

/// Runs one job, which uses the current ledger for each step.
async fn run(
    number: usize,
    ledger: Arc<RwLock<AnyLedger>>,
    controller: FakeController,
    done: Arc<AtomicUsize>,
) {
    let current = || ledger.read().unwrap_or_else(PoisonError::into_inner).clone();
    let mut request = request(number);
    current()
        .ensure_active(request.clone(), &mut |_| {})
        .await
        .unwrap();
    // Panics if another job holds the partition, or held it without a reset.
    controller.mark_in_use(&request.id);
    tokio::task::yield_now().await;
    controller.mark_unused(&request.id);
    if number.is_multiple_of(3) {
        request.attempt = 1;
        current()
            .ensure_active(request.clone(), &mut |_| {})
            .await
            .unwrap();
        controller.mark_in_use(&request.id);
        controller.mark_unused(&request.id);
    }
    while let Released::InProgress { .. } = current()
        .release(&request.id, &request.owner, None)
        .await
        .unwrap()
    {}
    done.fetch_add(1, Ordering::SeqCst);
}

/// Verifies that the previous build refuses records of the newer format by their number, before it writes
/// anything, and works again after they are removed.
pub(crate) async fn refuse_records_of_a_newer_format(open: impl AsyncFn() -> AnyStore) {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let this = start(Build::This, &controller, &topology, open().await);
    this.ensure_active(request(1), &mut |_| {}).await.unwrap();
    let cordon = ipu_core::Cordon::new(
        "fan".parse().unwrap(),
        "pod:8090".parse().unwrap(),
        CordonTarget::Controller,
        "admin".parse().unwrap(),
        "a fan is broken",
    );
    this.cordon(cordon).await.unwrap();
    let previous = start(Build::Previous, &controller, &topology, open().await);
    let owner = request(1).owner;
    let refused = previous.release(&request(1).id, &owner, None).await.unwrap_err();
    let LedgerError::Store(error) = &refused else {
        panic!("{refused}")
    };
    assert!(
        matches!(&**error, StoreError::Format(FormatError::Newer { found: 2 })),
        "{error}"
    );
    assert_eq!(controller.ids(), [request(1).id]);
    this.uncordon(&"fan".parse().unwrap(), &"admin".parse().unwrap())
        .await
        .unwrap();
    previous.release(&request(1).id, &owner, None).await.unwrap();
    assert_eq!(controller.ids(), []);
}
