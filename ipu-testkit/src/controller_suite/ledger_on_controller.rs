//! The ledger on the controller under test, which combines the requirements of all other cases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipu_core::{ControllerName, IpuPlace, JobKey, PartitionState, Timestamp, Topology};
use ipu_ledger::{
    Entry, Ledger, LedgerOptions, MemoryStore, Owner, OwnerLiveness, PartitionSpec, Released, Request,
};
use ipu_vipu_client::{ControllerPool, VipuController};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::crashes::crash_after;
use super::fault_injection::{FaultyController, InjectedFault};
use super::harness::{Harness, listed, size};
use super::{CallKind, Setup, cases};
use crate::conformance::{CaseOutcome, broken, check_eq, check_ok};
use crate::random::Random;

cases![owners_on_a_ledger_never_double_book_or_leak,];

type Partitions = Ledger<FaultyController, MemoryStore>;

/// Partition sizes of the owners: more than the sixteen IPUs in all, so that some requests are queued.
const WANTED: [u32; 6] = [2, 4, 8, 4, 2, 8];

/// Maximum time in flight of a call whose caller crashed: only this machine delays its requests.
const SETTLE: Duration = Duration::from_millis(200);

/// Far longer than all owners need in sequence.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The promise of `ipu-ledger`: "no partition is handed to two owners, whatever dies when", and "none is
/// lost".
async fn owners_on_a_ledger_never_double_book_or_leak(harness: Harness) -> CaseOutcome {
    let topology = Topology::pod16();
    let fixture = harness.start(Setup::quick(topology.clone())).await;
    let controller = Arc::new(FaultyController::new(
        &fixture.controller,
        intermittent_faults(11),
    ));
    let (store, options) = (MemoryStore::new(), options(topology));
    // Each owner has its own ledger, as in its own process: only the store and the controller are shared.
    let ledger = || -> Partitions {
        let pool = ControllerPool::single(name(), Arc::clone(&controller));
        Ledger::new(pool, store.clone(), options.clone())
    };
    let used = UsedIpus::default();
    let mut owners = JoinSet::new();
    for number in 0..WANTED.len() {
        let tenant = Tenant {
            number,
            ledger: ledger(),
            controller: Arc::clone(&fixture.controller),
            used: used.clone(),
        };
        owners.spawn(tenant.run());
    }
    let Ok(ended) = tokio::time::timeout(TIMEOUT, owners.join_all()).await else {
        let rule = "every queued owner gets a partition and can release it";
        let actual = format!("some were still running after {TIMEOUT:?}");
        return Err(broken(rule, "all owners end", actual));
    };
    ended.into_iter().collect::<CaseOutcome>()?;

    let last = ledger();
    for _ in 0..10 {
        check_ok("a ledger can be repaired", last.repair(&all_dead).await)?;
        if check_ok("the store answers", last.list().await)?.is_empty() {
            break;
        }
        tokio::time::sleep(SETTLE).await;
    }
    let left: Vec<_> = check_ok("the store answers", last.list().await)?
        .iter()
        .map(|entry| format!("{} is {}", entry.id, entry.state.label()))
        .collect();
    check_eq("the ledger ends empty", &left, &Vec::new())?;
    fixture.check_all_free(16).await
}

/// Injects faults into one call of six, never two in a row, which would count as a controller outage.
fn intermittent_faults(seed: u64) -> impl FnMut(CallKind, u32) -> Option<InjectedFault> + Send + 'static {
    let strikes = [
        InjectedFault::LostRequest,
        InjectedFault::LostReply,
        InjectedFault::Failed,
        InjectedFault::TwiceFirst,
        InjectedFault::TwiceSecond,
    ];
    let mut random = Random::new(seed);
    let mut rests = false;
    move |_, _| {
        let fault = random.chance(17) && !rests;
        rests = fault;
        fault.then(|| *random.pick(&strikes))
    }
}

fn name() -> ControllerName {
    ControllerName::new("under-test").expect("a valid name")
}

fn options(topology: Topology) -> LedgerOptions {
    let start = Instant::now();
    let mut options = LedgerOptions::default();
    // Tokio's clock, so that paused time advances it.
    options.clock = Arc::new(move || Timestamp::from_millis(1_000_000).plus(start.elapsed()));
    options.settle = SETTLE;
    options.min_poll_interval = Duration::from_millis(1);
    options.max_poll_interval = Duration::from_millis(50);
    options.queue_poll_interval = Duration::from_millis(25);
    options.topologies.insert(name(), topology);
    options
}

fn all_dead(_: &Entry) -> OwnerLiveness {
    OwnerLiveness::Dead
}

/// IPUs in use and their owners.
#[derive(Clone, Default)]
struct UsedIpus(Arc<Mutex<BTreeMap<IpuPlace, usize>>>);

impl UsedIpus {
    fn enter(&self, owner: usize, places: &[IpuPlace]) -> CaseOutcome {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            if let Some(other) = used.insert(*place, owner) {
                let actual = format!("{place:?} is used by owners {other} and {owner}");
                return Err(broken(
                    "no IPU is used by two owners",
                    "at most one owner",
                    actual,
                ));
            }
        }
        Ok(())
    }

    fn leave(&self, places: &[IpuPlace]) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            used.remove(place);
        }
    }
}

/// One owner.
struct Tenant {
    number: usize,
    ledger: Partitions,
    /// Controller without faults, for checks.
    controller: Arc<dyn VipuController>,
    used: UsedIpus,
}

impl Tenant {
    /// Requests a partition, uses it, has it reset, uses it again and releases it; crashes once before every
    /// step.
    async fn run(self) -> CaseOutcome {
        let owner = Owner {
            kind: "Suite".to_owned(),
            job: check_ok(
                "a valid job key",
                JobKey::new("suite", format!("owner{}", self.number), "1"),
            )?,
        };
        let spec = PartitionSpec::of_size(size(WANTED[self.number]));
        let mut request = Request::of_instance(owner.clone(), 0, spec);
        for attempt in 0..3 {
            request.attempt = attempt;
            let steps = 3 * (attempt + 1) + u32::try_from(self.number).unwrap_or(0);
            crash_after(steps, self.ledger.ensure(request.clone())).await;
            let granted = self.ledger.ensure_active(request.clone(), &mut |_| {}).await;
            let granted = check_ok("every queued owner gets a partition", granted)?;
            self.work(&granted.id).await?;
        }
        crash_after(4, self.ledger.release(&request.id, &owner, Some(request.attempt))).await;
        loop {
            match check_ok(
                "a partition is released",
                self.ledger
                    .release(&request.id, &owner, Some(request.attempt))
                    .await,
            )? {
                Released::InProgress { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                _ => return Ok(()),
            }
        }
    }

    /// Checks that the partition exists, is active and shares no IPU with another owner.
    async fn work(&self, id: &ipu_core::PartitionId) -> CaseOutcome {
        let actual = listed(&*self.controller).await?;
        let mine = actual.into_iter().find(|partition| partition.id == *id);
        let state = mine.as_ref().map(|partition| partition.state.label());
        let rule = "a granted partition exists and is active";
        check_eq(rule, &(id, state), &(id, Some(PartitionState::Active.label())))?;
        let places = mine.map(|partition| partition.ipus).unwrap_or_default();
        self.used.enter(self.number, &places)?;
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        self.used.leave(&places);
        Ok(())
    }
}
