//! Cases of whole ledgers on the store: several drivers, a controller with faults, a store that loses
//! replies, and callers that crash.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipu_core::{
    Change, ControllerName, Cordon, CordonId, CordonOwner, CordonTarget, Entry, JobKey, OnNoCapacity, Owner,
    OwnerLiveness, PartitionId, PartitionSpec, Request, Timestamp, Topology, TransitionError,
};
use ipu_ledger::{
    EnsureOutcome, Ledger, LedgerError, LedgerOptions, LedgerStore, Released, Revision, Snapshot, StoreError,
    WriteLock,
};
use ipu_vipu_client::ControllerPool;
use tokio::task::JoinSet;

use super::crashes::poll_at_most;
use super::harness::{CaseResult, StoreFixture};
use crate::conformance::{broken, check_eq, check_ok, panic_message_of};
use crate::fake::{FakeController, Fault};
use crate::random::Random;

/// Number of ledgers, each with its own store as in its own process.
const DRIVERS: usize = 3;

/// Partition sizes of the jobs, on 16 IPUs: they do not all fit at once.
const SIZES: [u32; 5] = [16, 8, 4, 4, 2];

/// Number of times each job requests, resets or releases its partition.
const ROUNDS: u32 = 5;

/// Limit on requests or releases of a job: many times the cost of crashes and faults.
const MAX_TRIES: u32 = 400;

/// Maximum number of controller calls with faults.
const FAULTS: usize = 60;

/// Limit on final repairs: one repair finishes pending operations and one deletes completed entries; the
/// others allow for lost replies.
const REPAIRS: u32 = 20;

type SharedLedger<S> = Ledger<FakeController, Unreliable<S>>;

pub(super) async fn drivers_sharing_a_store_never_double_book_or_leak<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    controller.set_operation_time(Duration::from_millis(1));
    let mut random = Random::new(1);
    controller.script((0..FAULTS).map(|_| {
        *random.pick(&[
            None,
            None,
            Some(Fault::Broken),
            Some(Fault::LostReply),
            Some(Fault::Duplicate),
        ])
    }));
    let options = options(&topology);
    let mut ledgers = Vec::new();
    for (seed, store) in (2..).zip(fixture.open_all(DRIVERS).await) {
        ledgers.push(ledger(&options, &controller, Unreliable::new(store, seed)));
    }
    let mut jobs = JoinSet::new();
    for (number, size) in (100..).zip(SIZES) {
        let (ledgers, controller) = (ledgers.clone(), controller.clone());
        jobs.spawn(async move { run_job(number, size, &ledgers, &controller).await });
    }
    while let Some(job) = jobs.join_next().await {
        job.unwrap_or_else(|error| {
            let rule = "a granted partition is active and unused";
            Err(broken(rule, "such a partition", panic_message_of(error)))
        })?;
    }
    let rule = "no partition is reset or removed under the workers of its owner";
    check_eq(rule, &controller.disturbed(), &Vec::new())?;
    drop(ledgers);
    controller.script([]);
    let store = Unreliable::reliable(fixture.open().await);
    check_nothing_left(&ledger(&options, &controller, store), &controller).await
}

pub(super) async fn a_stale_driver_cannot_release_a_newer_attempt<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let options = options(&topology);
    let store = Unreliable::reliable(fixture.open().await);
    let old = ledger(&options, &controller, store);
    let store = Unreliable::reliable(fixture.open().await);
    let new = ledger(&options, &controller, store);

    let mut request = request_of(0, 4);
    let (id, owner) = (request.id.clone(), request.owner.clone());
    check_ok(
        "a single request gets a partition",
        old.ensure_active(request.clone(), &mut |_| {}).await,
    )?;
    request.attempt = 1;
    let rule = "a newer attempt gets the partition again";
    let granted = check_ok(rule, new.ensure_active(request, &mut |_| {}).await)?;
    check_eq(rule, &granted.attempt, &1)?;
    controller.mark_in_use(&id);
    let rule = "a release by a driver with an older attempt than the partition's is rejected";
    match old.release(&id, &owner, Some(0)).await {
        Err(LedgerError::Illegal(TransitionError::StaleAttempt {
            asked: 0,
            recorded: 1,
            ..
        })) => {}
        other => {
            return Err(broken(
                rule,
                "StaleAttempt with both attempts",
                format!("{other:?}"),
            ));
        }
    }
    check_eq(rule, &controller.disturbed(), &Vec::new())?;
    controller.mark_unused(&id);
    let rule = "a driver with the newest attempt releases the partition";
    check_eq(
        rule,
        &check_ok(rule, new.release(&id, &owner, Some(1)).await)?,
        &Released::Removed,
    )
}

pub(super) async fn cordons_of_another_process_prevent_placement<S: LedgerStore>(
    fixture: &StoreFixture<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let options = options(&topology);
    let store = Unreliable::reliable(fixture.open().await);
    let admin = ledger(&options, &controller, store);
    let store = Unreliable::reliable(fixture.open().await);
    let scheduler = ledger(&options, &controller, store);

    let (agent, _) = topology.agents().next().expect("a Pod16 has agents");
    let cordon = Cordon::new(
        CordonId::new("maintenance").expect("a valid id"),
        name(),
        CordonTarget::Machine(agent.clone()),
        CordonOwner::new("admin").expect("a valid name"),
        "a cable",
    );
    let rule = "cordoned IPUs get no new partitions, whichever process places them";
    check_ok(rule, admin.cordon(cordon.clone()).await)?;
    for number in 0..3 {
        let request = request_of(number, 4);
        let granted = check_ok(rule, scheduler.ensure_active(request, &mut |_| {}).await)?;
        let cordoned = topology
            .agent_ipus(agent)
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        let on: Vec<_> = controller.ipus(&granted.id);
        check_eq(rule, &on.iter().any(|ipu| cordoned.contains(ipu)), &false)?;
    }
    let mut last = request_of(3, 4);
    last.on_no_capacity = OnNoCapacity::Reject;
    match check_ok(rule, scheduler.ensure(last.clone()).await)? {
        EnsureOutcome::Refused(waiting) => check_eq(rule, &&*waiting.reason.code, &"Excluded")?,
        other => {
            return Err(broken(
                rule,
                "a rejection because of the cordon",
                format!("{other:?}"),
            ));
        }
    }
    let rule = "IPUs are placed on again after the cordon is lifted";
    check_ok(rule, admin.uncordon(&cordon.id, &cordon.owner).await)?;
    check_ok(rule, scheduler.ensure_active(last, &mut |_| {}).await).map(drop)
}

fn options(topology: &Topology) -> LedgerOptions {
    let mut options = LedgerOptions::default();
    options.topologies.insert(name(), topology.clone());
    options.min_poll_interval = Duration::from_millis(1);
    options.max_poll_interval = Duration::from_millis(5);
    options.queue_poll_interval = Duration::from_millis(5);
    options.timeout = Duration::from_millis(50);
    // A call of this controller ends with its caller, and each job has one caller at a time.
    options.settle = Duration::ZERO;
    // The clock of the timers, so that both advance together even when paused.
    let start = tokio::time::Instant::now();
    options.clock = Arc::new(move || Timestamp::from_millis(1_000_000).plus(start.elapsed()));
    options
}

fn name() -> ControllerName {
    ControllerName::new("fake").expect("a valid controller name")
}

fn ledger<S: LedgerStore>(
    options: &LedgerOptions,
    controller: &FakeController,
    store: Unreliable<S>,
) -> SharedLedger<S> {
    let pool = ControllerPool::single(name(), Arc::new(controller.clone()));
    Ledger::new(pool, store, options.clone())
}

/// Runs one job: requests its partition through different drivers, with crashes in between, and releases it.
async fn run_job<S: LedgerStore>(
    number: u32,
    size: u32,
    ledgers: &[SharedLedger<S>],
    controller: &FakeController,
) -> CaseResult {
    let mut random = Random::new(u64::from(number));
    let mut request = request_of(number, size);
    let id = request.id.clone();
    let mut rounds = 0;
    for _ in 0..MAX_TRIES {
        if rounds == ROUNDS {
            return release_until_gone(&id, &request.owner, &mut random, ledgers).await;
        }
        let ledger = random.pick(ledgers);
        let polls = crash_after(&mut random);
        let granted = poll_at_most(ledger.ensure_active(request.clone(), &mut |_| {}), polls).await;
        if let Some(Ok(_)) = granted {
            controller.mark_in_use(&id);
            tokio::task::yield_now().await;
            controller.mark_unused(&id);
            rounds += 1;
        }
        if let Some(Err(error)) = granted {
            expected(error)?;
        }
        // A caller that does not know the result of its request asks for a newer attempt, which is a reset.
        request.attempt += 1;
        if random.chance(40) {
            let ledger = random.pick(ledgers);
            let polls = crash_after(&mut random);
            if let Some(Err(error)) =
                poll_at_most(ledger.release(&id, &request.owner, Some(request.attempt)), polls).await
            {
                expected(error)?;
            }
        }
    }
    let actual = format!("{rounds} grants in {MAX_TRIES} tries");
    Err(broken(
        "a request that is retried gets a partition eventually",
        format!("{ROUNDS} grants"),
        actual,
    ))
}

fn request_of(number: u32, size: u32) -> Request {
    let job = JobKey::new("suite", format!("job{number}"), "uid").expect("a valid job key");
    let owner = Owner {
        kind: "Suite".into(),
        job,
    };
    let size = size.try_into().expect("a valid partition size");
    Request::of_instance(owner, 0, PartitionSpec::of_size(size))
}

/// Releases until the partition is gone; before that, another request may wait for its IPUs.
async fn release_until_gone<S: LedgerStore>(
    id: &PartitionId,
    owner: &Owner,
    random: &mut Random,
    ledgers: &[SharedLedger<S>],
) -> CaseResult {
    for _ in 0..MAX_TRIES {
        match random.pick(ledgers).release(id, owner, None).await {
            Ok(Released::Removed | Released::NotFound | Released::Dequeued) => return Ok(()),
            Ok(_) => {}
            Err(error) => expected(error)?,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err(broken(
        "a released partition is gone eventually",
        "gone",
        format!("{id} was not after {MAX_TRIES} tries"),
    ))
}

/// Returns the number of polls after which a call is dropped, as in a crash; one of four calls is.
fn crash_after(random: &mut Random) -> u32 {
    if random.chance(25) {
        random.below(30)
    } else {
        u32::MAX
    }
}

/// Accepts the errors that a caller must expect.
fn expected(error: LedgerError) -> CaseResult {
    match error {
        LedgerError::Store(error) if is_injected(&error) => Ok(()),
        LedgerError::Illegal(_) | LedgerError::PartitionFailed { .. } => Ok(()),
        other => Err(broken(
            "a ledger on the store makes progress",
            "a grant, or an error that the suite injected",
            format!("the error \"{other}\""),
        )),
    }
}

async fn check_nothing_left<S: LedgerStore>(
    ledger: &SharedLedger<S>,
    controller: &FakeController,
) -> CaseResult {
    let rule = "nothing is left after all owners are dead and repairs finish";
    for _ in 0..REPAIRS {
        check_ok(rule, ledger.repair(&|_: &Entry| OwnerLiveness::Dead).await)?;
        if check_ok(rule, ledger.list().await)?.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let left: Vec<_> = check_ok(rule, ledger.list().await)?
        .into_iter()
        .map(|entry| format!("{} ({})", entry.id, entry.state))
        .collect();
    check_eq(
        "no entry is left in the ledger when all owners are dead",
        &left,
        &Vec::new(),
    )?;
    check_eq(
        "no partition is left on the controller when all owners are dead",
        &controller.ids(),
        &Vec::new(),
    )
}

/// Store with intermittent failures: the operation was not done, or its reply is lost.
struct Unreliable<S> {
    store: S,
    random: Mutex<Random>,
    percent: u32,
}

const INJECTED_DETAIL: &str = "injected reply loss";

fn is_injected(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { detail, .. } if detail == INJECTED_DETAIL)
}

impl<S: LedgerStore> Unreliable<S> {
    fn new(store: S, seed: u64) -> Self {
        Self {
            store,
            random: Mutex::new(Random::new(seed)),
            percent: 5,
        }
    }

    fn reliable(store: S) -> Self {
        Self {
            percent: 0,
            ..Self::new(store, 0)
        }
    }

    fn lose(&self, step: &'static str) -> Result<(), StoreError> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if !random.chance(self.percent) {
            return Ok(());
        }
        Err(StoreError::Unavailable {
            step,
            detail: INJECTED_DETAIL.into(),
        })
    }
}

#[async_trait]
impl<S: LedgerStore> LedgerStore for Unreliable<S> {
    async fn load(&self, newer_than: Option<&Revision>) -> Result<Option<Snapshot>, StoreError> {
        self.lose("read")?;
        self.store.load(newer_than).await
    }

    async fn commit(&self, basis: &Revision, changes: &[Change]) -> Result<Revision, StoreError> {
        self.lose("write")?;
        let revision = self.store.commit(basis, changes).await?;
        self.lose("write")?;
        Ok(revision)
    }

    async fn lock(&self) -> Result<WriteLock, StoreError> {
        self.store.lock().await
    }
}
