//! Random ledgers after legal moves, with matching controllers.

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

/// Time within which a call takes effect.
const SETTLE: Duration = Duration::from_secs(30);

/// Actual state of a controller: partitions and reachability.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerController {
    /// Its name.
    pub name: ControllerName,
    /// Hardware and its occupancy.
    pub inventory: Inventory,
    /// Spec of each partition.
    pub specs: BTreeMap<PartitionId, PartitionSpec>,
    /// Whether it accepts new partitions.
    pub service: ServiceState,
    /// Whether it is reachable.
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
                    format!("{} is unreachable", self.name),
                ))
            },
        }
    }

    /// Creates a partition and returns whether capacity was sufficient.
    fn make(&mut self, id: &PartitionId, spec: &PartitionSpec, places: &[IpuPlace]) -> bool {
        let request = PlacementRequest::of_size(spec.size).in_allocation(spec.allocation.clone());
        if self.inventory.block_of(id).is_none() {
            let topology = self.inventory.topology();
            let clusters = topology.clusters().iter();
            let chosen: Vec<Pinned> = clusters
                .filter_map(|cluster| {
                    let ipus = places.iter();
                    let ipus: Option<Vec<_>> = ipus.map(|ipu| topology.address(&cluster.id, *ipu)).collect();
                    Pinned::new(ipus?).ok()
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
        // A partition that does not exist is fine: removal is idempotent.
        let _ = self.inventory.vacate(id);
        self.specs.remove(id);
    }
}

/// Ledger that legal moves lead to, with its controllers, requests and time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LedgerCase {
    /// Ledger state.
    pub state: LedgerState,
    /// Controllers, in the order of the configuration.
    pub controllers: Vec<LedgerController>,
    /// Queue policy.
    pub rules: QueuePolicy,
    /// All requests, made or still to be made.
    pub requests: Vec<Request>,
    /// Current time.
    pub now: Timestamp,
}

impl LedgerCase {
    /// Returns the controllers as the ledger observes them.
    #[must_use]
    pub fn world(&self) -> ControllersSnapshot {
        ControllersSnapshot::new(self.controllers.iter().map(LedgerController::view).collect())
    }

    /// Returns the window of a call that is made now.
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

    /// Commits the transition if it is legal.
    fn take<T>(&mut self, step: Result<Transition<T>, TransitionError>) {
        if let Ok(step) = step {
            self.commit(&step.changes);
        }
    }
}

/// Move of a ledger or a controller.
#[derive(Clone, Debug)]
enum LedgerMove {
    Request(Index),
    RequestNextAttempt(Index),
    Execute(Index),
    Break(Index),
    Reset(Index),
    Release(Index),
    Remove(Index),
    Repair {
        dead: Vec<Index>,
        live: Vec<Index>,
    },
    CreateForeign {
        controller: Index,
        order: u32,
        number: u8,
    },
    Service(Index, ServiceState),
    SetReachable(Index, bool),
    Advance(u64),
}

/// Returns ledgers after up to 40 moves: entries of every state, with one or two controllers. Some
/// controllers are draining or unreachable.
pub fn ledgers() -> impl Strategy<Value = LedgerCase> {
    let one = any::<Index>;
    let some = || prop::collection::vec(any::<Index>(), 0..3);
    let next = prop_oneof![
        8 => one().prop_map(LedgerMove::Request),
        1 => one().prop_map(LedgerMove::RequestNextAttempt),
        8 => one().prop_map(LedgerMove::Execute),
        1 => one().prop_map(LedgerMove::Break),
        1 => one().prop_map(LedgerMove::Reset),
        3 => one().prop_map(LedgerMove::Release),
        2 => one().prop_map(LedgerMove::Remove),
        2 => (some(), some()).prop_map(|(dead, live)| LedgerMove::Repair { dead, live }),
        1 => (one(), 0_u32..=5, 0_u8..4)
            .prop_map(|(controller, order, number)| LedgerMove::CreateForeign { controller, order, number }),
        1 => (one(), select(vec![ServiceState::Open, ServiceState::Draining])).prop_map(|(at, service)| LedgerMove::Service(at, service)),
        1 => (one(), any::<bool>()).prop_map(|(at, reachable)| LedgerMove::SetReachable(at, reachable)),
        3 => (0_u64..90_000).prop_map(LedgerMove::Advance),
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
                name: ControllerName::new(format!("controller-{number}")).expect("a valid controller name"),
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
                case.apply(next);
            }
            case
        })
}

/// Returns 2 to 8 requests of different jobs.
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
                let size = IpuCount::from_order(order).expect("2^6 is an IPU count");
                let owner = owner(&format!("job-{number}"));
                let mut request = Request::of_instance(owner, 0, PartitionSpec::of_size(size));
                request.priority = priority;
                request.max_runtime = runtime.map(Duration::from_secs);
                request.on_no_capacity = if wait {
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
        job: JobKey::new("test", job, "1").expect("a valid job key"),
    }
}

impl LedgerCase {
    fn apply(&mut self, next: &LedgerMove) {
        match next {
            LedgerMove::Request(which) => self.request_partition(&which.get(&self.requests).clone()),
            LedgerMove::RequestNextAttempt(which) => {
                let which = which.index(self.requests.len());
                self.requests[which].attempt += 1;
                self.request_partition(&self.requests[which].clone());
            }
            LedgerMove::Execute(which) => self.execute(&which.get(&self.requests).id.clone()),
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
            LedgerMove::Remove(which) => self.remove_released(&which.get(&self.requests).id.clone()),
            LedgerMove::Repair { dead, live } => self.repair(dead, live),
            LedgerMove::CreateForeign {
                controller,
                order,
                number,
            } => {
                let id = owner(&format!("stranger-{number}")).job.partition_id(0);
                let size = IpuCount::from_order(*order).expect("2^5 is an IPU count");
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
            LedgerMove::SetReachable(at, reachable) => {
                let at = at.index(self.controllers.len());
                self.controllers[at].reachable = *reachable;
            }
            LedgerMove::Advance(millis) => self.now = self.now.plus(Duration::from_millis(*millis)),
        }
    }

    fn request_partition(&mut self, request: &Request) {
        let step = self
            .state
            .request(request, &self.world(), &self.rules, self.window());
        self.take(step);
    }

    /// Executes the intent on its controller, or rejects it for lack of capacity.
    fn execute(&mut self, id: &PartitionId) {
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
        let exists = controller.inventory.block_of(id).is_some();
        if exists || (operation == Operation::Create && controller.make(id, &entry.spec, &entry.places)) {
            let location = Location::default();
            let step = self
                .state
                .mark_active(id, entry.attempt, &location, Some(fence), now);
            self.take(step);
        } else if operation == Operation::Create {
            let view = controller.view();
            let refused = ControllerRejection {
                controller: controller.name.clone(),
                message: "insufficient capacity".into(),
                fingerprint: view.listing.map_or(0, |listing| listing.fingerprint()),
                at: now,
            };
            let step = self.state.reject_create(id, fence, refused, now);
            self.take(step);
        }
    }

    /// Removes the released partition from its controller.
    fn remove_released(&mut self, id: &PartitionId) {
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

    /// Repairs the ledger from the controllers and the liveness of these owners.
    fn repair(&mut self, dead: &[Index], live: &[Index]) {
        let with_liveness = |which: &[Index], liveness: OwnerLiveness| {
            let ids = which.iter().map(|which| which.get(&self.requests).id.clone());
            ids.map(|id| (id, liveness)).collect::<Vec<_>>()
        };
        let liveness = [
            with_liveness(dead, OwnerLiveness::Dead),
            with_liveness(live, OwnerLiveness::Live),
        ]
        .concat();
        let owners = Owners {
            liveness: liveness.into_iter().collect(),
            claims: BTreeMap::new(),
        };
        let world = self.world();
        let grace = Duration::from_secs(60);
        for action in self.state.diff(&world, &owners, grace, self.now) {
            let changes = self.state.changes_for(&action, &world, &owners, self.window());
            self.commit(&changes);
        }
    }
}
