//! The ledger over the controller under test: what all of the above is for.

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

use super::crashes::die_after;
use super::fault_injection::{Faulty, Strike};
use super::harness::{Harness, listed, size};
use super::{CallKind, Setup, cases};
use crate::conformance::{CaseOutcome, broken, ok, same};
use crate::random::Random;

cases![owners_over_a_ledger_share_nothing_and_leak_nothing_whatever_fails,];

type Partitions = Ledger<Faulty, MemoryStore>;

/// What each of the owners wants: more in all than the sixteen IPUs of the Pod, so that some wait.
const WANTED: [u32; 6] = [2, 4, 8, 4, 2, 8];

/// How long a call of one who died may be under way: his requests are not held up by anything but this machine.
const SETTLE: Duration = Duration::from_millis(200);

/// Far longer than all of them need one after another.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The promise of `ipu-ledger`: "no partition is handed to two owners, whatever dies when", and "none is lost".
async fn owners_over_a_ledger_share_nothing_and_leak_nothing_whatever_fails(lab: Harness) -> CaseOutcome {
    let topology = Topology::pod16();
    let pod = lab.pod(Setup::quick(topology.clone())).await;
    let controller = Arc::new(Faulty::new(&pod.controller, now_and_then(11)));
    let (store, options) = (MemoryStore::new(), options(topology));
    // Each has a ledger of its own, as in a process of its own: only the store and the controller are shared.
    let ledger = || -> Partitions {
        let pool = ControllerPool::single(name(), Arc::clone(&controller));
        Ledger::new(pool, store.clone(), options.clone())
    };
    let used = Used::default();
    let mut owners = JoinSet::new();
    for number in 0..WANTED.len() {
        let life = Tenant {
            number,
            ledger: ledger(),
            controller: Arc::clone(&pod.controller),
            used: used.clone(),
        };
        owners.spawn(life.run());
    }
    let Ok(ended) = tokio::time::timeout(TIMEOUT, owners.join_all()).await else {
        let rule = "whoever waits gets a partition, and can give it back";
        let seen = format!("some were still at it after {TIMEOUT:?}");
        return Err(broken(rule, "all owners end", seen));
    };
    ended.into_iter().collect::<CaseOutcome>()?;

    let last = ledger();
    for _ in 0..10 {
        ok("a ledger can be repaired", last.repair(&all_dead).await)?;
        if ok("the store answers", last.list().await)?.is_empty() {
            break;
        }
        tokio::time::sleep(SETTLE).await;
    }
    let left: Vec<_> = ok("the store answers", last.list().await)?
        .iter()
        .map(|entry| format!("{} is {}", entry.id, entry.state.label()))
        .collect();
    same("the ledger ends with nothing", &left, &Vec::new())?;
    pod.is_all_free(16).await
}

/// Faults in one call of six, never in two in a row, which would count as a controller that is down.
fn now_and_then(seed: u64) -> impl FnMut(CallKind, u32) -> Option<Strike> + Send + 'static {
    let strikes = [
        Strike::LostRequest,
        Strike::LostReply,
        Strike::Failed,
        Strike::TwiceFirst,
        Strike::TwiceSecond,
    ];
    let mut random = Random::new(seed);
    let mut rests = false;
    move |_, _| {
        let strike = random.chance(17) && !rests;
        rests = strike;
        strike.then(|| *random.pick(&strikes))
    }
}

fn name() -> ControllerName {
    ControllerName::new("under-test").expect("a name")
}

fn options(topology: Topology) -> LedgerOptions {
    let start = Instant::now();
    let mut options = LedgerOptions::default();
    // Of tokio, so that paused time moves it.
    options.clock = Arc::new(move || Timestamp::from_millis(1_000_000).plus(start.elapsed()));
    options.settle = SETTLE;
    options.first_poll = Duration::from_millis(1);
    options.longest_poll = Duration::from_millis(50);
    options.queue_poll_interval = Duration::from_millis(25);
    options.topologies.insert(name(), topology);
    options
}

fn all_dead(_: &Entry) -> OwnerLiveness {
    OwnerLiveness::Dead
}

/// Which IPUs are in use, and by whom.
#[derive(Clone, Default)]
struct Used(Arc<Mutex<BTreeMap<IpuPlace, usize>>>);

impl Used {
    fn enter(&self, owner: usize, places: &[IpuPlace]) -> CaseOutcome {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for place in places {
            if let Some(other) = used.insert(*place, owner) {
                let seen = format!("{place:?} is used by owners {other} and {owner}");
                return Err(broken("no IPU is used by two owners", "one at most", seen));
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
    /// The same controller, without faults, to look at it.
    controller: Arc<dyn VipuController>,
    used: Used,
}

impl Tenant {
    /// Gets a partition, uses it, has it reset, uses it again, gives it back; and dies before every step, once.
    async fn run(self) -> CaseOutcome {
        let owner = Owner {
            kind: "Suite".to_owned(),
            job: ok(
                "a key of a job",
                JobKey::new("suite", format!("owner{}", self.number), "1"),
            )?,
        };
        let spec = PartitionSpec::of_size(size(WANTED[self.number]));
        let mut request = Request::of_instance(owner.clone(), 0, spec);
        for attempt in 0..3 {
            request.attempt = attempt;
            let steps = 3 * (attempt + 1) + u32::try_from(self.number).unwrap_or(0);
            die_after(steps, self.ledger.ensure(request.clone())).await;
            let granted = self.ledger.ensure_active(request.clone(), &mut |_| {}).await;
            let granted = ok("whoever waits gets a partition", granted)?;
            self.work(&granted.id).await?;
        }
        die_after(4, self.ledger.release(&request.id, &owner, Some(request.attempt))).await;
        loop {
            match ok(
                "a partition is given back",
                self.ledger
                    .release(&request.id, &owner, Some(request.attempt))
                    .await,
            )? {
                Released::InProgress { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                _ => return Ok(()),
            }
        }
    }

    /// The partition is there, active, and no IPU of it is another owner's.
    async fn work(&self, id: &ipu_core::PartitionId) -> CaseOutcome {
        let seen = listed(&*self.controller).await?;
        let mine = seen.into_iter().find(|partition| partition.id == *id);
        let state = mine.as_ref().map(|partition| partition.state.label());
        let rule = "a partition that is granted is there and active";
        same(rule, &(id, state), &(id, Some(PartitionState::Active.label())))?;
        let places = mine.map(|partition| partition.ipus).unwrap_or_default();
        self.used.enter(self.number, &places)?;
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        self.used.leave(&places);
        Ok(())
    }
}
