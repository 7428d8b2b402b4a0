//! Sequences of events through the transitions of the allocator.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::allocator::{
    CallTimes, ControllerView, Cordon, CordonTarget, Entry, Event, Hardware, InFlight, InventoryCapacity,
    Listing, OnNoCapacity, OwnerLiveness, Owners, Policy, Release, Reply, Request, ServiceState, State,
    calls, evaluate_queue, step,
};
use ipu_core::hardware::{Inventory, PartitionSpec, PartitionState, Topology};
use ipu_core::{BootTime, ControllerName, JobKey, Owner, Reason, ReasonCode, Timestamp};

/// Maximum number of events per input: several lives of a partition.
const MAX_EVENTS: usize = 64;

/// Input: three bytes per event, its kind and two arguments. Two controllers of 8 IPUs list no partitions,
/// and reply to every call with any reply.
///
/// # Panics
///
/// If two entries hold an IPU, the state differs from the one of its entries and cordons, a change replaces
/// an entry by itself, a request that does not fit has no status, or an entry does not round-trip.
pub fn allocator(bytes: &[u8]) {
    let mut system = System::new();
    for event in bytes.chunks_exact(3).take(MAX_EVENTS) {
        system.happen(event[0], event[1], event[2]);
        system.check();
    }
}

struct System {
    state: State,
    hardware: Hardware,
    in_flight: InFlight,
    policy: Policy,
    /// Seconds since the start.
    now: u64,
}

impl System {
    fn new() -> Self {
        let topology: Topology = "1x2".parse().expect("a topology");
        let view = |name: &str| {
            let capacity = InventoryCapacity::new(Inventory::new(&topology));
            ControllerView {
                name: ControllerName::new(name).expect("a name"),
                service: ServiceState::Open,
                alias_of: None,
                listing: Ok(Arc::new(Listing::new([], Box::new(capacity)))),
            }
        };
        let mut policy = Policy::default();
        policy.overtake_limit = 2;
        policy.length_limit = 8;
        policy.preemption = true;
        let state = State::default();
        Self {
            in_flight: InFlight::inherited(CallTimes::default(), &state, BootTime::default()),
            hardware: Hardware::new(vec![view("a"), view("b")]),
            state,
            policy,
            now: 0,
        }
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(1_000_000 + 1_000 * self.now)
    }

    fn boot(&self) -> BootTime {
        BootTime::default().plus(Duration::from_secs(self.now))
    }

    fn happen(&mut self, kind: u8, which: u8, how: u8) {
        let owner = owner(which);
        let id = owner.job.partition_id(0);
        let event = match kind % 12 {
            0..=2 => Event::Ensure(request(owner, which, how)),
            3 => Event::Reset {
                id,
                owner,
                attempt: u32::from(how % 4),
                not_after: None,
            },
            4 => Event::Release(Release {
                id,
                owner: (how & 1 == 0).then_some(owner),
                attempt: (how & 2 == 0).then_some(u32::from(how >> 6)),
                force: how & 4 == 0,
                not_after: None,
            }),
            5 => Event::Renew {
                id,
                owner,
                holder: how.to_string(),
            },
            6 => cordon_event(which, how),
            7 => Event::Compare(self.owners(which, how)),
            8 => {
                self.now += u64::from(how);
                return;
            }
            9 => {
                self.toggle(which);
                return;
            }
            10 => {
                // A new process: only the state is left.
                let (times, now) = (CallTimes::default(), self.boot());
                self.in_flight = InFlight::inherited(times, &self.state, now);
                return;
            }
            _ => {
                self.answer(which, how);
                return;
            }
        };
        self.apply(&event);
        self.apply(&Event::Schedule);
    }

    fn apply(&mut self, event: &Event) {
        let Ok(step) = step(&self.state, &self.hardware, &self.policy, self.wall(), event) else {
            return;
        };
        for change in &step.changes {
            self.state.apply(change);
        }
        step.doubted.iter().for_each(|id| self.in_flight.doubt(id));
    }

    /// Makes one of the calls that follow from the state, and answers it.
    fn answer(&mut self, which: u8, how: u8) {
        let calls = calls(&self.state, &self.in_flight, self.boot(), self.wall());
        let Some(call) = calls.get(usize::from(which) % calls.len().max(1)) else {
            return;
        };
        self.in_flight.begin(call, self.boot());
        let status = |state| Reply::Status { state, listed: None };
        let message = "no".to_owned();
        let reply = match how % 10 {
            0 | 1 => Reply::Accepted,
            2 => Reply::Exists(None),
            3 => Reply::Absent,
            4 => status(PartitionState::Active),
            5 => status(PartitionState::Failed {
                errors: vec![message],
            }),
            6 => Reply::Refused { message },
            7 => Reply::NeedsForce { message },
            8 => Reply::Lost,
            _ => Reply::NotSent,
        };
        if let Some(answer) = self.in_flight.finish(&call.id, reply, self.boot()) {
            self.apply(&Event::Answered(answer));
            self.apply(&Event::Schedule);
        }
    }

    /// Each owner is live, dead or unknown by two bits.
    fn owners(&self, which: u8, how: u8) -> Owners {
        let mut owners = Owners::default();
        let bits = u16::from_le_bytes([which, how]);
        for (number, entry) in self.state.entries().enumerate().take(8) {
            let liveness = match bits >> (2 * number) & 3 {
                0 => OwnerLiveness::Dead,
                1 => OwnerLiveness::Live,
                _ => OwnerLiveness::Unknown,
            };
            owners.set_liveness(entry, liveness);
        }
        owners
    }

    /// A controller stops answering, or answers again.
    fn toggle(&mut self, which: u8) {
        let fresh = Self::new().hardware;
        let number = usize::from(which % 2);
        self.hardware.controllers[number].listing = match self.hardware.controllers[number].listing {
            Ok(_) => Err(Reason::new(ReasonCode::ControllerUnavailable, "no reply")),
            Err(_) => fresh.controllers[number].listing.clone(),
        };
    }

    fn check(&self) {
        let entries: Vec<Entry> = self.state.entries().map(|entry| Entry::clone(entry)).collect();
        let mut held = BTreeSet::new();
        for entry in entries.iter().filter(|entry| entry.phase.holds()) {
            for place in &entry.places {
                let is_free = held.insert((entry.controller.clone(), *place));
                assert!(is_free, "{place:?} of {} is held twice", entry.id);
            }
        }
        for entry in &entries {
            let text = serde_json::to_string(entry).expect("an entry is written");
            let read: Entry = serde_json::from_str(&text).expect("a written entry is read");
            assert_eq!(read, *entry);
        }
        let cordons = self.state.cordons().map(|cordon| Cordon::clone(cordon));
        assert_eq!(State::new(entries, cordons), self.state, "the indexes differ");
        let queue = evaluate_queue(&self.state, &self.hardware, &self.policy, self.wall());
        assert_eq!(queue.len(), self.state.queue().len());
    }
}

fn owner(which: u8) -> Owner {
    let name = format!("j{}", which % 8);
    Owner {
        kind: "Fuzz".into(),
        job: JobKey::new("fuzz", name, "1").expect("a job"),
    }
}

fn request(owner: Owner, which: u8, how: u8) -> Request {
    let size = 1_u32 << (how % 4);
    let spec = PartitionSpec::of_size(size.try_into().expect("a power of two"));
    let mut request = Request::of_instance(owner, 0, spec);
    request.attempt = u32::from(how >> 6);
    request.priority = i32::from(which >> 6);
    request.preemptible = how & 4 != 0;
    if how & 8 != 0 {
        request.on_no_capacity = OnNoCapacity::Reject;
    }
    if how & 16 != 0 {
        request.holder = "alive".into();
    }
    if how & 32 != 0 {
        request.max_runtime = Some(Duration::from_secs(60));
    }
    request
}

fn cordon_event(which: u8, how: u8) -> Event {
    let id = format!("c{}", which % 4).parse().expect("an id");
    let owner = "admin".parse().expect("a name");
    if how & 1 != 0 {
        return Event::Uncordon { id, owner };
    }
    let controller = if which & 4 == 0 { "a" } else { "b" }.parse().expect("a name");
    let target = CordonTarget::Controller;
    Event::Cordon(Cordon::new(id, controller, target, owner, "tested"))
}
