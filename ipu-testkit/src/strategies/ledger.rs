//! Random ledgers: what is recorded after any legal moves, and the controllers that go with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{
    BestFit, CallWindow, Change, ControllerName, ControllerRejection, ControllerView, ControllersSnapshot,
    EntryState, Inventory, InventoryCapacity, IpuCount, IpuPlace, JobKey, LedgerState, Listing, Location,
    OnNoCapacity, Operation, Owner, OwnerLiveness, Owners, Partition, PartitionId, PartitionSpec,
    PartitionState, Pinned, Placement, PlacementPolicy, PlacementRequest, QueuePolicy, Reason, Request,
    ServiceState, Timestamp, Transition, TransitionError, place,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::topologies;

/// How long a call may take to have its effect.
const SETTLE: Duration = Duration::from_secs(30);

/// A controller as it is: what it has, and whether it answers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerController {
    /// Its name.
    pub name: ControllerName,
    /// Its hardware and what partitions hold of it.
    pub inventory: Inventory,
    /// What each of its partitions is made of.
    pub specs: BTreeMap<PartitionId, PartitionSpec>,
    /// Whether it gets new partitions.
    pub service: ServiceState,
    /// Whether it can be asked.
    pub reachable: bool,
}

impl LedgerController {
    fn view(&self) -> ControllerView {
        let partitions = self.inventory.holders().filter_map(|(id, block)| {
            let (cluster, ipus) = block.places(self.inventory.topology())?;
            Some(Partition {
                id: id.clone(),
                spec: self.specs.get(id)?.clone(),
                cluster: Some(cluster),
                ipus,
                state: PartitionState::Active,
            })
        });
        let listing = Listing::new(
            partitions,
            Box::new(InventoryCapacity::new(self.inventory.clone())),
        );
        ControllerView {
            name: self.name.clone(),
            service: self.service,
            listing: if self.reachable {
                Ok(Arc::new(listing))
            } else {
                Err(Reason::new(
                    "ControllerUnavailable",
                    format!("{} does not answer", self.name),
                ))
            },
        }
    }

    /// Makes a partition; whether there was room.
    fn make(&mut self, id: &PartitionId, spec: &PartitionSpec, places: &[IpuPlace]) -> bool {
        let request = PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone());
        if self.inventory.block_of(id).is_none() {
            let topology = self.inventory.topology();
            let clusters = topology.clusters().iter();
            let chosen: Vec<Pinned> = clusters
                .filter_map(|cluster| {
                    let ipus = places.iter();
                    let ipus: Option<Vec<_>> = ipus.map(|ipu| topology.address(&cluster.id, *ipu)).collect();
                    Pinned::to(ipus?).ok()
                })
                .collect();
            let policy: &dyn PlacementPolicy = match chosen.last() {
                Some(pinned) => pinned,
                None => &BestFit,
            };
            let Placement::Fits(block) = place(&self.inventory, &request, policy) else {
                return false;
            };
            if self.inventory.occupy(id.clone(), block).is_err() {
                return false;
            }
        }
        self.specs.insert(id.clone(), spec.clone());
        true
    }

    fn remove(&mut self, id: &PartitionId) {
        // That it has nothing is fine: to remove is safe to repeat.
        let _ = self.inventory.vacate(id);
        self.specs.remove(id);
    }
}

/// A ledger that legal moves lead to, with the controllers, the requests that were made, and the time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerCase {
    /// What is recorded.
    pub state: LedgerState,
    /// The controllers, in the order of the configuration.
    pub controllers: Vec<LedgerController>,
    /// The rules of the line.
    pub rules: QueuePolicy,
    /// Every request that was or will be made.
    pub requests: Vec<Request>,
    /// Now.
    pub now: Timestamp,
}

impl LedgerCase {
    /// The controllers as the ledger sees them.
    #[must_use]
    pub fn world(&self) -> ControllersSnapshot {
        ControllersSnapshot::of(self.controllers.iter().map(LedgerController::view).collect())
    }

    /// When a call is made now.
    #[must_use]
    pub const fn window(&self) -> CallWindow {
        CallWindow {
            now: self.now,
            settle: SETTLE,
        }
    }

    fn controller(&mut self, name: Option<&ControllerName>) -> Option<&mut LedgerController> {
        let name = name?;
        self.controllers
            .iter_mut()
            .find(|controller| controller.name == *name)
    }

    fn commit(&mut self, changes: &[Change]) {
        for change in changes {
            self.state.apply(change);
        }
    }

    /// Commits a step if it is legal.
    fn take<T>(&mut self, step: Result<Transition<T>, TransitionError>) {
        if let Ok(step) = step {
            self.commit(&step.changes);
        }
    }
}

/// One thing that happens to a ledger or to a controller.
#[derive(Clone, Debug)]
enum LedgerMove {
    Ask(Index),
    AskAgainForNextAttempt(Index),
    Answer(Index),
    Break(Index),
    Reset(Index),
    Release(Index),
    Removed(Index),
    Repair {
        dead: Vec<Index>,
        live: Vec<Index>,
    },
    Stranger {
        controller: Index,
        order: u32,
        number: u8,
    },
    Service(Index, ServiceState),
    Reachable(Index, bool),
    Time(u64),
}

/// Ledgers after up to 40 moves: entries of every state, with one or two controllers of which some may be draining or may
/// not answer.
pub fn ledgers() -> impl Strategy<Value = LedgerCase> {
    let one = any::<Index>;
    let some = || prop::collection::vec(any::<Index>(), 0..3);
    let next = prop_oneof![
        8 => one().prop_map(LedgerMove::Ask),
        1 => one().prop_map(LedgerMove::AskAgainForNextAttempt),
        8 => one().prop_map(LedgerMove::Answer),
        1 => one().prop_map(LedgerMove::Break),
        1 => one().prop_map(LedgerMove::Reset),
        3 => one().prop_map(LedgerMove::Release),
        2 => one().prop_map(LedgerMove::Removed),
        2 => (some(), some()).prop_map(|(dead, live)| LedgerMove::Repair { dead, live }),
        1 => (one(), 0_u32..=5, 0_u8..4)
            .prop_map(|(controller, order, number)| LedgerMove::Stranger { controller, order, number }),
        1 => (one(), select(vec![ServiceState::Open, ServiceState::Draining])).prop_map(|(at, service)| LedgerMove::Service(at, service)),
        1 => (one(), any::<bool>()).prop_map(|(at, reachable)| LedgerMove::Reachable(at, reachable)),
        3 => (0_u64..90_000).prop_map(LedgerMove::Time),
    ];
    let controllers = prop::collection::vec(topologies(), 1..=2);
    (
        controllers,
        requests(),
        1_u32..6,
        prop::collection::vec(next, 0..40),
    )
        .prop_map(|(topologies, requests, overtake_limit, moves)| {
            let mut rules = QueuePolicy::default();
            rules.overtake_limit = overtake_limit;
            let controllers = (1..).zip(topologies).map(|(number, topology)| LedgerController {
                name: ControllerName::new(format!("controller-{number}")).expect("letters are a name"),
                inventory: Inventory::new(&topology),
                specs: BTreeMap::new(),
                service: ServiceState::Open,
                reachable: true,
            });
            let mut case = LedgerCase {
                state: LedgerState::default(),
                controllers: controllers.collect(),
                rules,
                requests,
                now: Timestamp::from_millis(1_000_000),
            };
            for next in &moves {
                case.moved(next);
            }
            case
        })
}

/// 2 to 8 requests of different jobs.
fn requests() -> impl Strategy<Value = Vec<Request>> {
    let one = (
        0_u32..=6,
        -1_i32..=1,
        prop::option::of(1_u64..3_600),
        any::<bool>(),
    );
    prop::collection::vec(one, 2..=8).prop_map(|all| {
        let made = all
            .into_iter()
            .enumerate()
            .map(|(number, (order, priority, runtime, wait))| {
                let size = IpuCount::from_order(order).expect("2^6 is a number of IPUs");
                let owner = owner(&format!("job-{number}"));
                let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(size));
                request.priority = priority;
                request.max_runtime = runtime.map(Duration::from_secs);
                request.line = if wait {
                    OnNoCapacity::Queue
                } else {
                    OnNoCapacity::Reject
                };
                request
            });
        made.collect()
    })
}

fn owner(job: &str) -> Owner {
    Owner {
        kind: "Test".into(),
        job: JobKey::new("test", job, "1").expect("letters, dashes and digits are names"),
    }
}

impl LedgerCase {
    fn moved(&mut self, next: &LedgerMove) {
        match next {
            LedgerMove::Ask(which) => self.ask(&which.get(&self.requests).clone()),
            LedgerMove::AskAgainForNextAttempt(which) => {
                let which = which.index(self.requests.len());
                self.requests[which].attempt += 1;
                self.ask(&self.requests[which].clone());
            }
            LedgerMove::Answer(which) => self.answer(&which.get(&self.requests).id.clone()),
            LedgerMove::Break(which) => {
                let Request { id, attempt, .. } = which.get(&self.requests);
                let step = self
                    .state
                    .mark_failed(id, *attempt, None, vec!["link down".into()], self.now);
                self.take(step);
            }
            LedgerMove::Reset(which) => {
                let request = which.get(&self.requests);
                let window = self.window();
                let step = self
                    .state
                    .reset(&request.id, &request.owner, request.attempt, window);
                self.take(step);
            }
            LedgerMove::Release(which) => {
                let request = which.get(&self.requests);
                let step = self.state.release(
                    &request.id,
                    &request.owner,
                    Some(request.attempt),
                    None,
                    self.window(),
                );
                self.take(step);
            }
            LedgerMove::Removed(which) => self.removed(&which.get(&self.requests).id.clone()),
            LedgerMove::Repair { dead, live } => self.repair(dead, live),
            LedgerMove::Stranger {
                controller,
                order,
                number,
            } => {
                let id = owner(&format!("stranger-{number}")).job.partition_id(0);
                let size = IpuCount::from_order(*order).expect("2^5 is a number of IPUs");
                let at = controller.index(self.controllers.len());
                let unknown = |controller: &LedgerController| controller.inventory.block_of(&id).is_none();
                if self.controllers.iter().all(unknown) {
                    self.controllers[at].make(&id, &PartitionSpec::of_size(size), &[]);
                }
            }
            LedgerMove::Service(at, service) => {
                let at = at.index(self.controllers.len());
                self.controllers[at].service = *service;
            }
            LedgerMove::Reachable(at, reachable) => {
                let at = at.index(self.controllers.len());
                self.controllers[at].reachable = *reachable;
            }
            LedgerMove::Time(millis) => self.now = self.now.plus(Duration::from_millis(*millis)),
        }
    }

    fn ask(&mut self, request: &Request) {
        let step = self
            .state
            .request(request, &self.world(), &self.rules, self.window());
        self.take(step);
    }

    /// The controller of an intent does what it was asked for, or says that it has no room.
    fn answer(&mut self, id: &PartitionId) {
        let Some(entry) = self.state.get(id).cloned() else {
            return;
        };
        let EntryState::Intent { operation, fence } = entry.state else {
            return;
        };
        let now = self.now;
        let Some(controller) = self.controller(entry.controller.as_ref()) else {
            return;
        };
        if !controller.reachable {
            return;
        }
        let there = controller.inventory.block_of(id).is_some();
        if there || (operation == Operation::Create && controller.make(id, &entry.spec, &entry.places)) {
            let location = Location::default();
            let step = self
                .state
                .mark_active(id, entry.attempt, &location, Some(fence), now);
            self.take(step);
        } else if operation == Operation::Create {
            let view = controller.view();
            let refused = ControllerRejection {
                controller: controller.name.clone(),
                message: "no room".into(),
                fingerprint: view.listing.map_or(0, |listing| listing.fingerprint()),
                at: now,
            };
            let step = self.state.reject_create(id, fence, refused, now);
            self.take(step);
        }
    }

    /// The controller of a release has removed the partition.
    fn removed(&mut self, id: &PartitionId) {
        let Some(entry) = self.state.get(id).cloned() else {
            return;
        };
        let EntryState::Releasing { fence } = entry.state else {
            return;
        };
        if let Some(controller) = self.controller(entry.controller.as_ref())
            && controller.reachable
        {
            controller.remove(id);
            let step = self.state.remove_released(id, Some(fence), self.now);
            self.take(step);
        }
    }

    /// The ledger is compared with the controllers and with what is known of these owners.
    fn repair(&mut self, dead: &[Index], live: &[Index]) {
        let known = |which: &[Index], life: OwnerLiveness| {
            let ids = which.iter().map(|which| which.get(&self.requests).id.clone());
            ids.map(|id| (id, life)).collect::<Vec<_>>()
        };
        let lives = [known(dead, OwnerLiveness::Dead), known(live, OwnerLiveness::Live)].concat();
        let owners = Owners {
            liveness: lives.into_iter().collect(),
            claims: BTreeMap::new(),
        };
        let world = self.world();
        let grace = Duration::from_secs(60);
        for action in self.state.diff(&world, &owners, grace, self.now) {
            let changes = self.state.act(&action, &world, &owners, self.window());
            self.commit(&changes);
        }
    }
}
