//! The case of whole ledgers on the store: several drivers, a controller with faults, a store that loses replies, and
//! callers that crash.

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

use super::crashes::polled;
use super::harness::{Bench, CaseResult};
use crate::conformance::{broken, ok, same, told_by_panic};
use crate::fake::{FakeController, Fault};
use crate::random::Random;

/// How many ledgers there are, each with a store of its own as in a process of its own.
const DRIVERS: usize = 3;

/// The sizes that jobs ask for, of 16 IPUs: they do not fit side by side.
const SIZES: [u32; 5] = [16, 8, 4, 4, 2];

/// How often each job gets its partition, has it reset or gives it back.
const ROUNDS: u32 = 5;

/// How often a job asks, or gives back, until it should have come through: many times what crashes and faults cost.
const TRIES: u32 = 400;

/// How many calls to the controller have faults at most.
const FAULTS: usize = 60;

/// How often all is repaired in the end until nothing may be left: one repair finishes what was begun, and one drops what
/// is done with; the others are for replies that were lost.
const REPAIRS: u32 = 20;

type SharedLedger<S> = Ledger<FakeController, Unreliable<S>>;

pub(super) async fn drivers_that_share_the_store_hold_nothing_twice_and_leak_nothing<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    controller.operation(Duration::from_millis(1));
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
    for (seed, store) in (2..).zip(bench.open_all(DRIVERS).await) {
        ledgers.push(ledger(&options, &controller, Unreliable::new(store, seed)));
    }
    let mut jobs = JoinSet::new();
    for (number, size) in (100..).zip(SIZES) {
        let (ledgers, controller) = (ledgers.clone(), controller.clone());
        jobs.spawn(async move { live(number, size, &ledgers, &controller).await });
    }
    while let Some(job) = jobs.join_next().await {
        job.unwrap_or_else(|error| {
            let rule = "whoever is granted a partition finds it active and unused";
            Err(broken(rule, "it", told_by_panic(error)))
        })?;
    }
    let rule = "no partition is reset or removed under the workers of somebody who was granted it";
    same(rule, &controller.disturbed(), &Vec::new())?;
    drop(ledgers);
    controller.script([]);
    let store = Unreliable::reliable(bench.open().await);
    nothing_is_left(&ledger(&options, &controller, store), &controller).await
}

pub(super) async fn a_driver_with_an_old_record_takes_nothing_from_a_newer_attempt<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let options = options(&topology);
    let store = Unreliable::reliable(bench.open().await);
    let old = ledger(&options, &controller, store);
    let store = Unreliable::reliable(bench.open().await);
    let new = ledger(&options, &controller, store);

    let mut request = request_of(0, 4);
    let (id, owner) = (request.id.clone(), request.owner.clone());
    ok(
        "whoever asks alone gets a partition",
        old.ensure_active(request.clone(), &mut |_| {}).await,
    )?;
    request.attempt = 1;
    let rule = "a newer attempt gets the partition anew";
    let granted = ok(rule, new.ensure_active(request, &mut |_| {}).await)?;
    same(rule, &granted.attempt, &1)?;
    controller.use_it(&id);
    let rule =
        "a release by a driver whose record is older than the attempt that uses the partition is refused";
    match old.release(&id, &owner, Some(0)).await {
        Err(LedgerError::Illegal(TransitionError::StaleAttempt {
            asked: 0,
            recorded: 1,
            ..
        })) => {}
        other => return Err(broken(rule, "StaleAttempt that names both", format!("{other:?}"))),
    }
    same(rule, &controller.disturbed(), &Vec::new())?;
    controller.leave(&id);
    let rule = "whoever knows of the newest attempt gives the partition back";
    same(
        rule,
        &ok(rule, new.release(&id, &owner, Some(1)).await)?,
        &Released::Gone,
    )
}

pub(super) async fn nothing_new_is_placed_on_what_another_process_cordoned<S: LedgerStore>(
    bench: &Bench<'_, S>,
) -> CaseResult {
    let topology = Topology::pod16();
    let controller = FakeController::new(&topology, 1);
    let options = options(&topology);
    let store = Unreliable::reliable(bench.open().await);
    let admin = ledger(&options, &controller, store);
    let store = Unreliable::reliable(bench.open().await);
    let scheduler = ledger(&options, &controller, store);

    let (agent, _) = topology.agents().next().expect("a Pod16 has machines");
    let cordon = Cordon::new(
        CordonId::new("maintenance").expect("an id"),
        name(),
        CordonTarget::Machine(agent.clone()),
        CordonOwner::new("admin").expect("a name"),
        "a cable",
    );
    let rule = "what is excluded gets nothing new, whichever process places it";
    ok(rule, admin.cordon(cordon.clone()).await)?;
    for number in 0..3 {
        let request = request_of(number, 4);
        let granted = ok(rule, scheduler.ensure_active(request, &mut |_| {}).await)?;
        let cordoned = topology
            .agent_ipus(agent)
            .into_iter()
            .flatten()
            .collect::<Vec<_>>();
        let on: Vec<_> = controller.ipus(&granted.id);
        same(rule, &on.iter().any(|ipu| cordoned.contains(ipu)), &false)?;
    }
    let mut last = request_of(3, 4);
    last.line = OnNoCapacity::Reject;
    match ok(rule, scheduler.ensure(last.clone()).await)? {
        EnsureOutcome::Refused(waiting) => same(rule, &&*waiting.reason.code, &"Excluded")?,
        other => {
            return Err(broken(
                rule,
                "a refusal because of the exclusion",
                format!("{other:?}"),
            ));
        }
    }
    let rule = "what is lifted is placed on again";
    ok(rule, admin.uncordon(&cordon.id, &cordon.owner).await)?;
    ok(rule, scheduler.ensure_active(last, &mut |_| {}).await).map(drop)
}

fn options(topology: &Topology) -> LedgerOptions {
    let mut options = LedgerOptions::default();
    options.topologies.insert(name(), topology.clone());
    options.first_poll = Duration::from_millis(1);
    options.longest_poll = Duration::from_millis(5);
    options.queue_poll_interval = Duration::from_millis(5);
    options.timeout = Duration::from_millis(50);
    // A call of this controller ends with the caller, and every job is looked after by one caller at a time.
    options.settle = Duration::ZERO;
    // The clock of the timers, so that the two go on together also if they are paused.
    let start = tokio::time::Instant::now();
    options.clock = Arc::new(move || Timestamp::from_millis(1_000_000).plus(start.elapsed()));
    options
}

fn name() -> ControllerName {
    ControllerName::new("fake").expect("a name of a controller")
}

fn ledger<S: LedgerStore>(
    options: &LedgerOptions,
    controller: &FakeController,
    store: Unreliable<S>,
) -> SharedLedger<S> {
    let pool = ControllerPool::single(name(), Arc::new(controller.clone()));
    Ledger::new(pool, store, options.clone())
}

/// One job: gets its partition from one driver or another, again and again, crashing in between, and gives it back.
async fn live<S: LedgerStore>(
    number: u32,
    size: u32,
    ledgers: &[SharedLedger<S>],
    controller: &FakeController,
) -> CaseResult {
    let mut random = Random::new(u64::from(number));
    let mut request = request_of(number, size);
    let id = request.id.clone();
    let mut rounds = 0;
    for _ in 0..TRIES {
        if rounds == ROUNDS {
            return give_back(&id, &request.owner, &mut random, ledgers).await;
        }
        let ledger = random.pick(ledgers);
        let polls = crash_after(&mut random);
        let granted = polled(ledger.ensure_active(request.clone(), &mut |_| {}), polls).await;
        if let Some(Ok(_)) = granted {
            controller.use_it(&id);
            tokio::task::yield_now().await;
            controller.leave(&id);
            rounds += 1;
        }
        if let Some(Err(error)) = granted {
            expected(error)?;
        }
        // Whoever does not know what became of his request asks for a newer attempt, which is a reset.
        request.attempt += 1;
        if random.chance(40) {
            let ledger = random.pick(ledgers);
            let polls = crash_after(&mut random);
            if let Some(Err(error)) =
                polled(ledger.release(&id, &request.owner, Some(request.attempt)), polls).await
            {
                expected(error)?;
            }
        }
    }
    let seen = format!("{rounds} grants in {TRIES} tries");
    Err(broken(
        "whoever asks again gets a partition in the end",
        format!("{ROUNDS} grants"),
        seen,
    ))
}

fn request_of(number: u32, size: u32) -> Request {
    let job = JobKey::new("suite", format!("job{number}"), "uid").expect("a key of a job");
    let owner = Owner {
        kind: "Suite".into(),
        job,
    };
    let size = size.try_into().expect("a size of a partition");
    Request::of_instance(owner, 0, PartitionSpec::of_size(size))
}

/// As long as it is not known to be gone, somebody may wait for its place.
async fn give_back<S: LedgerStore>(
    id: &PartitionId,
    owner: &Owner,
    random: &mut Random,
    ledgers: &[SharedLedger<S>],
) -> CaseResult {
    for _ in 0..TRIES {
        match random.pick(ledgers).release(id, owner, None).await {
            Ok(Released::Gone | Released::Nothing | Released::LeftLine) => return Ok(()),
            Ok(_) => {}
            Err(error) => expected(error)?,
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Err(broken(
        "what is given back is gone in the end",
        "gone",
        format!("{id} was not in {TRIES} tries"),
    ))
}

/// After how many polls a call is dropped, as in a crash: one of four.
fn crash_after(random: &mut Random) -> u32 {
    if random.chance(25) {
        random.below(30)
    } else {
        u32::MAX
    }
}

/// What a caller has to reckon with.
fn expected(error: LedgerError) -> CaseResult {
    match error {
        LedgerError::Store(error) if is_injected(&error) => Ok(()),
        LedgerError::Illegal(_) | LedgerError::PartitionFailed { .. } => Ok(()),
        other => Err(broken(
            "a ledger on the store gets on",
            "a grant, or an error that the suite made",
            format!("the error \"{other}\""),
        )),
    }
}

async fn nothing_is_left<S: LedgerStore>(
    ledger: &SharedLedger<S>,
    controller: &FakeController,
) -> CaseResult {
    let rule = "when all owners are gone and what was begun is repaired, nothing is left";
    for _ in 0..REPAIRS {
        ok(rule, ledger.repair(&|_: &Entry| OwnerLiveness::Dead).await)?;
        if ok(rule, ledger.list().await)?.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let left: Vec<_> = ok(rule, ledger.list().await)?
        .into_iter()
        .map(|entry| format!("{} ({})", entry.id, entry.state))
        .collect();
    same(
        "no entry is left in the ledger when all owners are gone",
        &left,
        &Vec::new(),
    )?;
    same(
        "no partition is left at the controller when all owners are gone",
        &controller.ids(),
        &Vec::new(),
    )
}

/// A store that does not answer now and then: nothing was done, or it was and the reply is lost.
struct Unreliable<S> {
    store: S,
    random: Mutex<Random>,
    percent: u32,
}

const INJECTED: &str = "the suite lost the answer";

fn is_injected(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { detail, .. } if detail == INJECTED)
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
            detail: INJECTED.into(),
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

    async fn turn(&self) -> Result<WriteLock, StoreError> {
        self.store.turn().await
    }
}
