//! Preemption: no job is stopped for nothing, and a request starts once the owners obey.
//!
//! `PROPTEST_CASES=1000000 cargo test --release -p ipu-core --test it allocator::preemption` runs that many
//! cases of each property.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipu_core::allocator::{
    CallTimes, Change, Entry, Event, Hardware, InFlight, Phase, Policy, Quota, QuotaSubject, Release,
    Request, State, calls, step,
};
use ipu_core::hardware::{PartitionSpec, PartitionState};
use ipu_core::{BootTime, JobKey, Namespace, Owner, PartitionId, Timestamp};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::controller::Controller;

/// A job. Numbers of namespaces and controllers count from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    /// Size as a power of two.
    pub(super) order: u32,
    pub(super) namespace: usize,
    pub(super) priority: i32,
    pub(super) is_preemptible: bool,
    /// The only controller that it may use.
    pub(super) pin: Option<usize>,
}

/// Returns a job of `1 << order` IPUs.
pub(super) const fn job(order: u32, namespace: usize, pin: Option<usize>) -> Job {
    Job {
        order,
        namespace,
        priority: 0,
        is_preemptible: false,
        pin,
    }
}

impl Job {
    pub(super) const fn preemptible(mut self) -> Self {
        self.is_preemptible = true;
        self
    }

    pub(super) const fn urgent(mut self) -> Self {
        (self.priority, self.is_preemptible) = (9, false);
        self
    }
}

pub(super) fn jobs() -> impl Strategy<Value = Job> {
    let pin = prop::option::weighted(0.2, 0_usize..2);
    let parts = (0_u32..4, 0_usize..3, 0_i32..4, prop::bool::weighted(0.7), pin);
    parts.prop_map(|(order, namespace, priority, is_preemptible, pin)| Job {
        order,
        namespace,
        priority,
        is_preemptible,
        pin,
    })
}

/// Returns controllers of 4 to 16 IPUs, some of them with slow removals, and a policy with preemption.
pub(super) fn beds() -> impl Strategy<Value = Bed> {
    let controllers = prop::collection::vec(select(vec![4_u32, 8, 16]), 1..3);
    let quota = prop::option::weighted(0.3, select(vec![4_u32, 8]));
    (controllers, quota, select(vec![0_u32, 2, 16])).prop_map(|(sizes, quota, overtake_limit)| {
        let mut policy = Policy::default();
        policy.preemption = true;
        policy.overtake_limit = overtake_limit;
        if let Some(ipus) = quota {
            let subject = QuotaSubject::Namespace(namespace(0));
            let (max_ipus, max_partitions) = (Some(ipus), None);
            policy.quotas.insert(
                subject,
                Quota {
                    max_ipus,
                    max_partitions,
                },
            );
        }
        Bed::new(&sizes, policy)
    })
}

fn namespace(number: usize) -> Namespace {
    Namespace::new(format!("n{number}")).unwrap()
}

/// An allocator with simulated controllers, which reply at once.
#[derive(Clone, Debug)]
pub(super) struct Bed {
    pub(super) state: State,
    in_flight: InFlight,
    pub(super) controllers: Vec<Controller>,
    pub(super) policy: Policy,
    pub(super) now: u64,
}

impl Bed {
    /// Creates an allocator with controllers of these numbers of IPUs.
    pub(super) fn new(sizes: &[u32], policy: Policy) -> Self {
        let mut times = CallTimes::default();
        (times.settle, times.min_pause, times.max_poll_pause) = Default::default();
        let controllers = sizes.iter().enumerate();
        Self {
            state: State::default(),
            in_flight: InFlight::inherited(times, &State::default(), BootTime::default()),
            controllers: controllers
                .map(|(number, ipus)| Controller::new(number, *ipus))
                .collect(),
            policy,
            now: 1_000_000,
        }
    }

    pub(super) fn request(&self, name: &str, job: Job) -> Request {
        let key = JobKey::new(namespace(job.namespace).as_str(), name, "1").unwrap();
        let spec = PartitionSpec::of_size((1_u32 << job.order).try_into().unwrap());
        let mut request = Request::of_instance(Owner::new("Test", key), 0, spec);
        request.priority = job.priority;
        request.preemptible = job.is_preemptible;
        let pinned = job
            .pin
            .map(|number| &self.controllers[number % self.controllers.len()]);
        request.pin.controller = pinned.map(|controller| controller.name.clone());
        request
    }

    pub(super) fn submit(&mut self, request: &Request) {
        self.now += 1;
        self.apply(&Event::Ensure(request.clone()));
        self.settle();
    }

    /// Releases a partition. Its controller is slow to remove it if `is_slow` is set.
    fn release(&mut self, request: &Request, is_slow: bool) {
        self.now += 1;
        self.controllers
            .iter_mut()
            .for_each(|controller| controller.is_slow = is_slow);
        self.apply(&Event::Release(Release::of(request)));
        self.settle();
        for controller in &mut self.controllers {
            controller.is_slow = false;
            controller.finish_creations();
        }
        self.settle();
    }

    pub(super) fn hardware(&self) -> Hardware {
        let requested = Timestamp::from_millis(self.now + 1);
        let views = self
            .controllers
            .iter()
            .map(|controller| controller.view(requested));
        Hardware::new(views.collect())
    }

    pub(super) fn apply(&mut self, event: &Event) -> bool {
        let now = Timestamp::from_millis(self.now);
        let Ok(step) = step(&self.state, &self.hardware(), &self.policy, now, event) else {
            return false;
        };
        step.changes.iter().for_each(|change| self.state.apply(change));
        !step.changes.is_empty()
    }

    /// Schedules and makes calls until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..1_000 {
            if !(self.apply(&Event::Schedule) | self.make_calls()) {
                return;
            }
        }
        panic!("the state does not settle");
    }

    /// Makes the calls that follow from the state, except those for partitions with an operation under way.
    fn make_calls(&mut self) -> bool {
        let boot = BootTime::default();
        let due = calls(
            &self.state,
            &self.in_flight,
            boot,
            Timestamp::from_millis(self.now),
        );
        let mut has_called = false;
        for call in due {
            let mut names = self.controllers.iter().map(|controller| &controller.name);
            let at = names.position(|name| *name == call.controller).unwrap();
            let truth = self.controllers[at].partitions.get(&call.id);
            let is_under_way = truth.is_some_and(|truth| {
                !matches!(
                    truth.state,
                    PartitionState::Active | PartitionState::Failed { .. }
                )
            });
            if is_under_way {
                continue;
            }
            has_called = true;
            self.in_flight.begin(&call, boot);
            let reply = self.controllers[at].execute(&call.id, &call.kind);
            if let Some(answer) = self.in_flight.finish(&call.id, reply, boot) {
                self.apply(&Event::Answered(answer));
            }
        }
        self.in_flight.retain(&self.state, boot);
        has_called
    }

    pub(super) fn holds(&self, request: &Request) -> bool {
        let entry = self.state.get(&request.id);
        entry.is_some_and(|entry| matches!(entry.phase, Phase::Creating | Phase::Active))
    }

    /// Returns the holders that are asked to release their partitions, and the request that asks.
    pub(super) fn asked(&self) -> (BTreeSet<PartitionId>, Option<&Arc<Entry>>) {
        let entries = self.state.entries();
        let asked: Vec<_> = entries.filter(|entry| entry.preemption.is_some()).collect();
        let mut by = asked
            .iter()
            .filter_map(|entry| self.state.get(&entry.preemption.as_ref()?.by));
        (
            asked.iter().map(|entry| entry.id.clone()).collect(),
            by.next_back(),
        )
    }

    /// Returns whether the queued entry `id` starts once the partitions of `released`, and those that are
    /// being released, are gone.
    fn starts_without(&self, released: &BTreeSet<PartitionId>, id: &PartitionId) -> bool {
        let mut copy = self.clone();
        let is_ending = |entry: &&Arc<Entry>| {
            released.contains(&entry.id) || matches!(entry.phase, Phase::Releasing { .. })
        };
        for entry in self.state.entries().filter(is_ending) {
            copy.state.apply(&Change::Remove(entry.id.clone()));
            let controllers = copy.controllers.iter_mut();
            controllers.for_each(|controller| drop(controller.partitions.remove(&entry.id)));
        }
        copy.apply(&Event::Schedule);
        copy.state.get(id).is_some_and(|entry| entry.phase.holds())
    }

    /// Returns the first request in the queue that may preempt: it is neither preemptible nor over quota.
    fn first_that_may_preempt(&self) -> Option<&Arc<Entry>> {
        let usage = self.state.quota_usage(&self.policy);
        let is_over_quota = |entry: &Entry| {
            let namespace = entry.owner.as_ref().unwrap().job.namespace.clone();
            let subject = QuotaSubject::Namespace(namespace);
            let mut usage = usage.iter().filter(|usage| usage.subject == subject);
            usage.any(|usage| Some(usage.ipus + entry.spec.size.get()) > usage.quota.max_ipus)
        };
        let mut queue = self.state.queue();
        queue.find(|entry| !entry.preemptible && !is_over_quota(entry))
    }

    /// Returns the holders that `request` may ask to release their partitions.
    fn may_be_asked_by(&self, request: &Entry) -> BTreeSet<PartitionId> {
        let now = Timestamp::from_millis(self.now);
        let has_time = |id: &PartitionId| {
            let asked = request.asked.iter().find(|asked| asked.id == *id);
            asked.is_none_or(|asked| now.since(asked.at) < self.policy.preemption_grace)
        };
        let holders = self.state.entries().filter(|entry| {
            let is_held = matches!(entry.phase, Phase::Active | Phase::Failed { .. });
            is_held && entry.preemptible && entry.priority < request.priority && has_time(&entry.id)
        });
        holders.map(|entry| entry.id.clone()).collect()
    }

    /// Checks that the first request that may preempt asks if that helps, that it may ask each of the
    /// holders, that it starts if they obey, and that it needs each of them.
    fn check_demands(&self) -> Result<(), TestCaseError> {
        let first = self.first_that_may_preempt();
        let (asked, by) = self.asked();
        let Some(by) = by else {
            prop_assert!(
                asked.is_empty(),
                "{:?} are asked by a request that is gone",
                asked
            );
            let is_helped = first.is_some_and(|first| {
                !self.starts_without(&BTreeSet::new(), &first.id)
                    && self.starts_without(&self.may_be_asked_by(first), &first.id)
            });
            prop_assert!(!is_helped, "{:?} asks no holder", first);
            return Ok(());
        };
        prop_assert_eq!(Some(&by.id), first.map(|first| &first.id));
        let may_be_asked = self.may_be_asked_by(by);
        for id in &asked {
            let entry = self.state.get(id).unwrap();
            prop_assert!(may_be_asked.contains(id), "{:?}", entry);
            prop_assert_eq!(&entry.preemption.as_ref().unwrap().by, &by.id);
            let others = asked.iter().filter(|other| *other != id).cloned().collect();
            prop_assert!(
                !self.starts_without(&others, &by.id),
                "{} is stopped for nothing",
                id
            );
        }
        prop_assert!(self.starts_without(&asked, &by.id), "{} does not start", by.id);
        Ok(())
    }
}

/// An event in a history of jobs, which are chosen among the submitted ones.
#[derive(Clone, Debug)]
enum Happening {
    Submit(Job),
    Release(Index, bool),
    FinishRemovals,
    Wait(u64),
}

fn happenings() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => jobs().prop_map(Happening::Submit),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(which, is_slow)| Happening::Release(which, is_slow)),
        1 => Just(Happening::FinishRemovals),
        1 => select(vec![1_u64, 300, 600]).prop_map(Happening::Wait),
    ]
}

proptest! {
    #[test]
    fn no_job_is_stopped_for_nothing(
        mut bed in beds(),
        history in prop::collection::vec(happenings(), 1..16),
    ) {
        let mut requests: Vec<Request> = Vec::new();
        for (number, happening) in history.into_iter().enumerate() {
            match happening {
                Happening::Submit(job) => {
                    requests.push(bed.request(&format!("j{number}"), job));
                    bed.submit(&requests[requests.len() - 1]);
                }
                Happening::Release(which, is_slow) if !requests.is_empty() => {
                    bed.release(which.get(&requests), is_slow);
                }
                Happening::Release(..) => {}
                Happening::FinishRemovals => {
                    bed.controllers.iter_mut().for_each(Controller::finish_removals);
                    bed.settle();
                }
                Happening::Wait(seconds) => {
                    bed.now += 1_000 * seconds;
                    bed.settle();
                }
            }
            bed.check_demands()?;
        }
    }

    #[test]
    fn a_request_starts_once_the_owners_obey_despite_later_requests(
        mut bed in beds(),
        held in prop::collection::vec(jobs(), 1..12),
        urgent in jobs(),
        obeying in prop::collection::vec((any::<Index>(), any::<bool>(), prop::option::of(jobs())), 12),
    ) {
        let held = held.into_iter().enumerate();
        let held: Vec<Request> =
            held.map(|(number, job)| bed.request(&format!("j{number}"), job)).collect();
        held.iter().for_each(|request| bed.submit(request));
        let urgent = bed.request("urgent", urgent.urgent());
        bed.submit(&urgent);
        let (asked, by) = bed.asked();
        if by.is_none_or(|by| by.id != urgent.id) {
            return Ok(());
        }
        let mut stopped = 0;
        for (number, (which, is_slow, newcomer)) in obeying.into_iter().enumerate() {
            let (now_asked, _) = bed.asked();
            if now_asked.is_empty() || bed.holds(&urgent) {
                break;
            }
            let id = which.get(&Vec::from_iter(&now_asked)).to_owned();
            let request = held.iter().find(|request| request.id == *id);
            let request = request.ok_or_else(|| TestCaseError::fail("a later job is asked"))?;
            stopped += 1;
            bed.release(request, is_slow);
            if let Some(job) = newcomer {
                bed.submit(&bed.request(&format!("later{number}"), job));
            }
            bed.controllers.iter_mut().for_each(Controller::finish_removals);
            bed.settle();
            // The stopped job requests again.
            bed.submit(request);
        }
        prop_assert_eq!(stopped, asked.len(), "stopped jobs");
        prop_assert!(bed.holds(&urgent));
    }
}

#[test]
fn a_holder_at_the_first_controller_is_asked_once_and_then_one_at_the_next() {
    let mut bed = Bed::new(&[4, 4], Policy::default());
    bed.policy.preemption = true;
    let held = ["a", "b"].map(|name| bed.request(name, job(2, 0, None).preemptible()));
    held.iter().for_each(|request| bed.submit(request));
    bed.submit(&bed.request("urgent", job(2, 0, None).urgent()));
    for (passed, number, asked) in [(0, 0, 0), (599_999, 0, 599_999), (1, 1, 0)] {
        bed.now += passed;
        bed.settle();
        let preemption = &bed.state.get(&held[number].id).unwrap().preemption;
        let at = preemption.as_ref().unwrap().at.as_millis();
        assert_eq!((bed.asked().0.len(), at), (1, bed.now - asked));
    }
}

#[test]
fn a_refused_request_asks_no_holder_until_the_grace_period_is_over() {
    let mut bed = Bed::new(&[8], Policy::default());
    bed.policy.preemption = true;
    bed.submit(&bed.request("held", job(2, 0, None).preemptible()));
    bed.controllers[0].refuses = true;
    bed.submit(&bed.request("refused", job(2, 0, None).urgent()));
    bed.controllers[0].refuses = false;
    // It takes IPUs that were free, so that the request needs those of a holder.
    bed.submit(&bed.request("small", job(0, 0, None).preemptible()));
    for (passed, is_asked) in [(0, false), (599_998, false), (1, true)] {
        bed.now += passed;
        bed.settle();
        assert_eq!(!bed.asked().0.is_empty(), is_asked, "{passed}");
    }
}
