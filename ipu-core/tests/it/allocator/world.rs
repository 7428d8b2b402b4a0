//! The loop around the core, its store, the network, controllers and owners, as one state with transitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipu_core::allocator::{
    Call, CallKind, CallTimes, Change, Claim, ControllerView, Cordon, CordonTarget, Entry, Event, Hardware,
    InFlight, OwnerLiveness, Owners, Phase, Policy, QuotaSubject, Release, Reply, Request, ServiceState,
    State, calls, step,
};
use ipu_core::hardware::{Partition, PartitionSpec, PartitionState};
use ipu_core::{
    AgentId, BootTime, CordonId, CordonOwner, JobKey, Owner, PartitionId, Reason, ReasonCode, Timestamp,
};

use super::controller::{BY_HAND, Controller, cordoned, mask};
use super::invariants::{Use, begin_use, check_uses};

/// The rules of the environment, which never change.
pub(super) struct Setup {
    pub(super) times: CallTimes,
    pub(super) policy: Policy,
    /// The request of each owner.
    pub(super) requests: Vec<Request>,
    /// Whether a process that has lost its lease remains, and tries to go on.
    pub(super) has_predecessor: bool,
    /// Whether replies arrive later than calls take effect.
    pub(super) delays_replies: bool,
    /// Whether clients doubt that their partitions exist.
    pub(super) has_doubts: bool,
    /// Whether used partitions under the ids of owners exist before they request them.
    pub(super) has_leftovers: bool,
    /// Whether a process compares record and controllers before it does anything else.
    pub(super) compares_first: bool,
    pub(super) bug: Option<Bug>,
}

/// A mistake of the loop, which a search has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Calls are made before the commit.
    CallsBeforeCommit,
    /// A commit does not compare the revision.
    NoCompareAndSwap,
    /// A process that takes over does not commit first.
    NoRevisionAtStart,
    /// A process that takes over does not wait for calls of its predecessor.
    NoSettle,
    /// A call without an answer is given up while it may still take effect.
    SettleTooShort,
    /// Every answer counts as settled.
    AlwaysSettled,
    /// An existing partition counts as created.
    ExistsIsFresh,
    /// A reset is repeated while the first one may still take effect.
    ResetRepeated,
    /// An answer is applied to whatever the entry does now.
    AnyOperation,
    /// A reply is taken for the reply to the present call for the partition.
    AnyReply,
    /// A process makes calls although it has lost the lease.
    CallsWithoutLease,
    /// A process answers from its memory although it has lost the lease.
    AnswersWithoutLease,
}

/// The index of the process that holds the lease, and of its predecessor.
pub(super) const LEADER: usize = 0;
const PREDECESSOR: usize = 1;

#[derive(Clone, Hash)]
pub(super) struct World {
    pub(super) now: BootTime,
    pub(super) wall: Timestamp,
    /// The durable record.
    pub(super) store: State,
    pub(super) processes: [Option<Process>; 2],
    pub(super) network: Vec<Message>,
    pub(super) controllers: Vec<Controller>,
    pub(super) workers: Vec<Worker>,
    /// Whether a process has lost its lease, and remained.
    had_predecessor: bool,
    /// Old copies of the record.
    copies: Vec<State>,
    /// The IPUs that were cordoned when the present operation of a partition was recorded.
    cordoned: BTreeMap<PartitionId, u64>,
    /// Partitions whose present operation may have created them, as far as the allocator knows.
    may_exist: BTreeSet<PartitionId>,
}

/// An allocator process.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) state: State,
    pub(super) in_flight: InFlight,
    pub(super) hardware: Hardware,
    /// Listed hardware, to compare states.
    listed: Vec<Vec<Partition>>,
    /// Listings and owners as observed a while ago.
    observed: Option<(BootTime, Hardware, Owners)>,
    /// Partitions that were removed: older listings still have them.
    removed: BTreeMap<PartitionId, BootTime>,
    is_compared: bool,
    /// Whether an entry has changed since the listings were requested. The wall clock of a search stands
    /// still.
    is_listing_old: bool,
    /// Whether another process has committed since.
    is_behind: bool,
}

impl std::hash::Hash for Process {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        // A process that is not behind has the record of the store in memory.
        let state = self.is_behind.then_some(&self.state);
        (state, &self.in_flight, &self.listed, self.is_listing_old).hash(hasher);
    }
}

/// A call under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Message {
    /// The process that waits for the reply.
    pub(super) sender: Option<usize>,
    pub(super) controller: usize,
    pub(super) id: PartitionId,
    pub(super) kind: CallKind,
    pub(super) begun: BootTime,
    /// IPUs that a new partition must not have.
    avoided: u64,
    /// Whether the controller has executed it. It may do so again.
    pub(super) is_executed: bool,
    /// The reply under way.
    pub(super) reply: Option<Reply>,
}

/// An owner and its processes.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) wish: Wish,
    pub(super) attempt: u32,
    /// Number of the run, from 1.
    run: u32,
    pub(super) runs_left: u32,
    pub(super) uses: Option<Use>,
    pub(super) priority: i32,
    /// Number of the evidence that it is alive.
    pub(super) holder: u32,
    /// Its run when an old copy of the record was last restored.
    last_run_in_copy: u32,
    /// A command without an answer, which may arrive late, and the time until which the owner waits for it.
    late: Option<(Event, Timestamp)>,
}

impl std::hash::Hash for Worker {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        (self.wish, self.attempt, self.run, self.runs_left, &self.uses).hash(hasher);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wish {
    /// It wants nothing.
    Nothing,
    /// It wants its partition, or uses it.
    Partition,
    /// It is gone, with its processes.
    Gone,
}

/// A transition. Owners and messages are indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// The owner begins a run: it requests its partition.
    Ask(usize),
    /// The owner stops its processes and requests the partition for its next attempt.
    AskAgain(usize),
    /// The owner repeats its request, to a process, and starts if its partition is active.
    Ensure(usize, usize),
    /// The owner stops its processes and releases, at a process.
    Release(usize, usize),
    /// The owner and its processes end.
    Die(usize),
    /// The controller executes the message.
    Execute(usize),
    /// The controller executes the message, and the reply arrives.
    Answer(usize),
    /// The reply of an earlier execution arrives.
    Deliver(usize),
    /// The sender gives the message up.
    Lose(usize),
    /// The sender learns that the message was not sent.
    DoNotSend(usize),
    /// A slow controller ends the operation on the partition of the owner.
    Finish(usize, usize),
    /// The leader lists all controllers, and compares them with the record and with owners, which are heard
    /// or not.
    Compare(bool),
    /// The leader ends, before or after it has lost the lease, and another process takes over.
    TakeOver,
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The leader queries the status of the owner's partition.
    Doubt(usize),
    /// The leader lists all controllers and observes owners.
    Observe(bool),
    /// The leader compares what it observed.
    CompareObserved,
    /// The owner stops its processes and has its partition reset for its next attempt.
    Reset(usize),
    /// The owner renews its evidence, and perhaps its priority.
    Renew(usize, i32),
    /// A dead owner starts again.
    Revive(usize),
    /// The owner sends its request, or its release, and hears no answer.
    SendLate(usize, bool),
    /// The late command arrives.
    Arrive(usize),
    /// An administrator cordons an IPU of a controller, or all.
    Cordon(usize, Option<u32>),
    /// An administrator lifts that cordon.
    Uncordon(usize, Option<u32>),
    /// An administrator releases the quarantined partition.
    ReleaseUnowned(usize),
    /// The owner, which wants nothing, or an administrator on its behalf, releases whatever it holds.
    ReleaseAll(usize),
    /// The controller restarts without its partitions.
    Empty(usize),
    /// The controller restarts with another number of IPUs.
    Resize(usize, u32),
    /// The controller refuses new partitions, or stops doing so.
    Refuse(usize, bool),
    /// The controller does not answer listings, or does again.
    Silence(usize, bool),
    /// The partition fails.
    Fail(usize, usize),
    /// Creation of a partition by hand: of the id of an owner, or of another one.
    MakeByHand(usize, Option<usize>, u32),
    /// Removal of a partition by hand.
    RemoveByHand(usize, usize),
    /// The record is copied.
    Copy,
    /// A copy of the record is restored.
    Restore(usize),
    /// The wall clock is set, forwards or backwards by milliseconds.
    SetClock(i64),
}

/// Returns the request of owner `number` for `size` IPUs. Owners 1 to 4 differ from owner 0 in one part each:
/// the uid, the namespace, the name, and the kind, which needs a chosen id because no id is derived from it.
pub(super) fn request(number: usize, size: u32) -> Request {
    let [kind, namespace, name, uid] = [4, 2, 3, 1].map(|part| usize::from(number == part));
    let owner = Owner {
        kind: format!("Test{kind}"),
        job: JobKey::new(format!("n{namespace}"), format!("j{name}"), uid.to_string()).unwrap(),
    };
    let spec = PartitionSpec::of_size(size.try_into().unwrap());
    if number == 4 {
        return Request::with_id(format!("chosen{size}").parse().unwrap(), owner, spec);
    }
    Request::of_instance(owner, 0, spec)
}

fn cordon_id(controller: usize, ipu: Option<u32>) -> CordonId {
    CordonId::new(format!("k{controller}-{}", ipu.unwrap_or(99))).unwrap()
}

fn administrator() -> CordonOwner {
    CordonOwner::new("administrator").unwrap()
}

fn target(ipu: Option<u32>) -> CordonTarget {
    let machine = |ipu: u32| AgentId::new(format!("m{}", ipu / 4)).unwrap();
    ipu.map_or(CordonTarget::Controller, |ipu| {
        CordonTarget::Ipu(machine(ipu), ipu % 4)
    })
}

impl World {
    pub(super) fn new(setup: &Setup, ipus: &[u32], runs: u32) -> Self {
        let worker = Worker {
            wish: Wish::Nothing,
            attempt: 0,
            run: 0,
            runs_left: runs,
            uses: None,
            priority: 0,
            holder: 0,
            last_run_in_copy: 0,
            late: None,
        };
        let mut world = Self {
            now: BootTime::from_millis(u64::try_from(setup.times.settle.as_millis()).unwrap()),
            wall: Timestamp::from_millis(1_000_000),
            store: State::default(),
            processes: [None, None],
            network: Vec::new(),
            controllers: (0..)
                .zip(ipus)
                .map(|(number, ipus)| Controller::new(number, *ipus))
                .collect(),
            workers: vec![worker; setup.requests.len()],
            had_predecessor: false,
            copies: Vec::new(),
            cordoned: BTreeMap::new(),
            may_exist: BTreeSet::new(),
        };
        world.take_over(setup);
        world.compare(setup, false).unwrap();
        world
    }

    pub(super) fn request(&self, setup: &Setup, number: usize) -> Request {
        let (mut request, worker) = (setup.requests[number].clone(), &self.workers[number]);
        request.attempt = worker.attempt;
        request.priority = worker.priority;
        if worker.holder > 0 {
            request.holder = worker.holder.to_string();
        }
        request
    }

    /// Returns the transitions from this state.
    pub(super) fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut actions = vec![Action::Compare(false), Action::Wait(1)];
        // One predecessor is enough to keep.
        if self.processes[PREDECESSOR].is_none() && !self.had_predecessor {
            actions.push(Action::TakeOver);
        }
        let processes = (LEADER..=PREDECESSOR).filter(|process| self.processes[*process].is_some());
        for (number, worker) in self.workers.iter().enumerate() {
            match worker.wish {
                Wish::Nothing if worker.runs_left > 0 => {
                    actions.push(Action::Ask(number));
                    if setup.has_leftovers {
                        actions.push(Action::MakeByHand(0, Some(number), 1));
                    }
                }
                Wish::Nothing | Wish::Gone => {}
                Wish::Partition => {
                    if worker.uses.is_none() {
                        actions.extend(processes.clone().map(|process| Action::Ensure(number, process)));
                    } else {
                        actions.push(Action::Compare(true));
                        if worker.runs_left > 0 {
                            actions.push(Action::AskAgain(number));
                        }
                    }
                    actions.extend(processes.clone().map(|process| Action::Release(number, process)));
                    if setup.has_doubts {
                        actions.push(Action::Doubt(number));
                    }
                }
            }
        }
        for (number, message) in self.network.iter().enumerate() {
            if setup.delays_replies || !matches!(message.kind, CallKind::Status { .. }) {
                actions.push(Action::Execute(number));
            }
            if message.sender.is_some() || setup.bug == Some(Bug::AnyReply) {
                actions.push(Action::Answer(number));
            }
            if message.reply.is_some() {
                actions.push(Action::Deliver(number));
            }
            if message.sender.is_some() {
                actions.extend([Action::Lose(number), Action::DoNotSend(number)]);
            }
        }
        for (number, controller) in self.controllers.iter().enumerate() {
            let busy = |state: &PartitionState| !matches!(state, PartitionState::Active);
            let slow = controller
                .partitions
                .values()
                .enumerate()
                .filter(|(_, truth)| busy(&truth.state));
            actions.extend(slow.map(|(index, _)| Action::Finish(number, index)));
        }
        actions
    }

    /// Makes a transition, if it is possible, and checks the invariants.
    pub(super) fn apply(&mut self, setup: &Setup, action: Action) -> Result<(), String> {
        match action {
            Action::Ask(number) => {
                let worker = &mut self.workers[number];
                if worker.wish == Wish::Nothing && worker.runs_left > 0 {
                    worker.wish = Wish::Partition;
                    worker.begin_run();
                    self.ensure(setup, number, LEADER)?;
                }
            }
            Action::AskAgain(number) => {
                let worker = &mut self.workers[number];
                if worker.uses.is_some() && worker.runs_left > 0 {
                    worker.begin_attempt();
                    self.ensure(setup, number, LEADER)?;
                }
            }
            Action::Ensure(number, process) => self.ensure(setup, number, process)?,
            Action::Release(number, process) => self.release(setup, number, process)?,
            Action::Die(number) => {
                let worker = &mut self.workers[number];
                (worker.wish, worker.uses) = (Wish::Gone, None);
            }
            Action::Execute(number) => {
                let reply = self.execute(number)?;
                if let Some(message) = self.network.get_mut(number).filter(|_| reply.is_some()) {
                    message.reply = reply.filter(|_| setup.delays_replies && message.sender.is_some());
                }
            }
            Action::Answer(number) => {
                if let Some(reply) = self.execute(number)? {
                    self.deliver(setup, number, reply)?;
                }
            }
            Action::Deliver(number) => {
                if let Some(reply) = self.network.get(number).and_then(|message| message.reply.clone()) {
                    self.deliver(setup, number, reply)?;
                }
            }
            Action::Lose(number) => self.deliver(setup, number, Reply::Lost)?,
            Action::DoNotSend(number) => {
                // A call that was sent looks the same as a call that was executed.
                if self
                    .network
                    .get(number)
                    .is_some_and(|message| !message.is_executed)
                {
                    self.deliver(setup, number, Reply::NotSent)?;
                }
            }
            Action::Finish(number, index) => {
                let controller = &mut self.controllers[number];
                if let Some(id) = controller.partitions.keys().nth(index).cloned() {
                    controller.finish(&id);
                }
            }
            Action::Compare(are_heard) => self.compare(setup, are_heard)?,
            Action::TakeOver => self.take_over(setup),
            Action::Wait(millis) => self.wait(setup, millis)?,
            Action::Doubt(number) => {
                let id = &setup.requests[number].id;
                if let Some(process) = &mut self.processes[LEADER] {
                    process.in_flight.doubt(id);
                }
                self.begin_calls(setup, LEADER);
            }
            other => self.apply_rare(setup, other)?,
        }
        let uses = self.workers.iter_mut().filter_map(|worker| worker.uses.as_mut());
        check_uses(&self.controllers, |id| self.store.get(id).is_some(), uses)
    }

    fn apply_rare(&mut self, setup: &Setup, action: Action) -> Result<(), String> {
        match action {
            Action::Observe(are_heard) => self.observe(setup, are_heard),
            Action::CompareObserved => self.compare_observed(setup)?,
            Action::Reset(number) => {
                let worker = &mut self.workers[number];
                if worker.uses.is_some() && worker.runs_left > 0 && !worker.waits(self.wall) {
                    worker.begin_attempt();
                    let Request {
                        id, owner, attempt, ..
                    } = self.request(setup, number);
                    self.handle(
                        setup,
                        LEADER,
                        Event::Reset {
                            id,
                            owner,
                            attempt,
                            not_after: None,
                        },
                    )?;
                }
            }
            Action::Renew(number, priority) => {
                let worker = &mut self.workers[number];
                worker.priority = priority;
                if worker.uses.is_some() && worker.holder > 0 && !worker.waits(self.wall) {
                    worker.holder += 1;
                    let Request {
                        id, owner, holder, ..
                    } = self.request(setup, number);
                    self.handle(setup, LEADER, Event::Renew { id, owner, holder })?;
                }
            }
            Action::Revive(number) => {
                let worker = &mut self.workers[number];
                if worker.wish == Wish::Gone && worker.runs_left > 0 {
                    worker.wish = Wish::Partition;
                    worker.holder += u32::from(worker.holder > 0);
                    worker.begin_attempt();
                    self.ensure(setup, number, LEADER)?;
                }
            }
            Action::SendLate(number, is_release) => {
                let until = self.wall.plus(std::time::Duration::from_secs(5));
                if self.workers[number].wish != Wish::Partition || self.workers[number].late.is_some() {
                    return Ok(());
                }
                let event = if is_release {
                    let mut release = self.release_of(setup, number);
                    release.not_after = Some(until);
                    Event::Release(release)
                } else {
                    let mut request = self.request(setup, number);
                    request.not_after = Some(until);
                    Event::Ensure(request)
                };
                let worker = &mut self.workers[number];
                if is_release {
                    worker.uses = None;
                }
                worker.late = Some((event, until));
            }
            Action::Arrive(number) => {
                if let Some((event, _)) = self.workers[number].late.clone() {
                    self.handle(setup, LEADER, event)?;
                    if !self.workers[number].waits(self.wall) {
                        self.workers[number].late = None;
                    }
                }
            }
            Action::Cordon(number, ipu) => {
                let name = self.controllers[number].name.clone();
                let cordon = Cordon::new(cordon_id(number, ipu), name, target(ipu), administrator(), "test");
                self.handle(setup, LEADER, Event::Cordon(cordon))?;
            }
            Action::Uncordon(number, ipu) => {
                let id = cordon_id(number, ipu);
                self.handle(
                    setup,
                    LEADER,
                    Event::Uncordon {
                        id,
                        owner: administrator(),
                    },
                )?;
            }
            Action::ReleaseUnowned(number) => {
                if self.workers[number].uses.is_none() {
                    let mut release = self.release_of(setup, number);
                    (release.owner, release.attempt) = (None, None);
                    self.handle(setup, LEADER, Event::Release(release))?;
                }
            }
            Action::ReleaseAll(number) => {
                if self.workers[number].uses.is_none() && self.workers[number].wish != Wish::Partition {
                    let mut release = self.release_of(setup, number);
                    release.attempt = None;
                    self.handle(setup, LEADER, Event::Release(release))?;
                }
            }
            Action::Copy => {
                self.copies.push(self.store.clone());
                let surplus = self.copies.len().saturating_sub(3);
                self.copies.drain(..surplus);
            }
            Action::Restore(number) => {
                // Nothing shows that a partition of an id in a copy was made by hand: a documented limit.
                let made_by_hand = |copy: &State| {
                    let mut partitions = self.controllers.iter().flat_map(|one| &one.partitions);
                    partitions.any(|(id, truth)| truth.used_by == Some(BY_HAND) && copy.get(id).is_some())
                };
                if let Some(copy) = self
                    .copies
                    .get(number)
                    .filter(|copy| !made_by_hand(copy))
                    .cloned()
                {
                    self.processes = [None, None];
                    // An administrator restores it, which takes longer than any call.
                    self.network.clear();
                    self.now = self.now.plus(setup.times.settle);
                    self.wall = self.wall.plus(setup.times.settle);
                    for controller in &mut self.controllers {
                        controller.finish_removals();
                    }
                    // An id that its owner chose does not show whose partition it is.
                    for controller in &mut self.controllers {
                        for (id, truth) in &mut controller.partitions {
                            let is_recorded = copy.get(id).is_some_and(|entry| {
                                entry.phase.holds() && entry.controller.as_ref() == Some(&controller.name)
                            });
                            truth.is_foreign |= !id.is_derived() && !is_recorded;
                        }
                    }
                    // It has no cordons that were made since.
                    self.cordoned.clear();
                    self.store = copy;
                    self.workers
                        .iter_mut()
                        .for_each(|worker| worker.last_run_in_copy = worker.run);
                    for change in self.store.as_copy() {
                        self.store.apply(&change);
                    }
                    self.take_over(setup);
                    self.compare(setup, true)?;
                }
            }
            Action::SetClock(millis) => {
                self.wall = Timestamp::from_millis(self.wall.as_millis().saturating_add_signed(millis));
                self.workers.iter_mut().for_each(|worker| worker.late = None);
            }
            other => self.disturb(setup, other),
        }
        Ok(())
    }

    /// Changes a controller behind the back of the allocator.
    fn disturb(&mut self, setup: &Setup, action: Action) {
        match action {
            Action::Empty(number) => {
                let controller = &mut self.controllers[number];
                let ids: Vec<_> = controller.partitions.keys().cloned().collect();
                ids.iter().for_each(|id| controller.lose(id));
            }
            Action::Resize(number, ipus) => {
                let controller = &mut self.controllers[number];
                let beyond = controller
                    .partitions
                    .iter()
                    .filter(|(_, truth)| truth.ipus >> (ipus - 1) > 1);
                let ids: Vec<_> = beyond.map(|(id, _)| id.clone()).collect();
                ids.iter().for_each(|id| controller.lose(id));
                controller.ipus = ipus;
            }
            Action::Refuse(number, refuses) => self.controllers[number].refuses = refuses,
            Action::Silence(number, is_silent) => self.controllers[number].is_silent = is_silent,
            Action::Fail(number, index) => self.controllers[number].fail(index),
            Action::MakeByHand(number, Some(owner), size) => {
                let id = setup.requests[owner].id.clone();
                if self.workers[owner].wish != Wish::Partition && self.store.get(&id).is_none() {
                    self.controllers[number].make_by_hand(&id, size, !setup.requests[owner].is_derived());
                }
            }
            Action::MakeByHand(number, None, size) => {
                let id = PartitionId::new(format!("chosen{size}")).unwrap();
                // The id does not show who made a partition that the allocator may have created too.
                let recorded = self.store.get(&id).map(|entry| &entry.phase);
                let may_exist = self
                    .network
                    .iter()
                    .any(|message| message.id == id && message.is_executed)
                    || self.may_exist.contains(&id);
                // A release removes one that was made while the request was created: a documented limit.
                if matches!(recorded, None | Some(Phase::Queued)) && !may_exist {
                    self.controllers[number].make_by_hand(&id, size, true);
                }
            }
            Action::RemoveByHand(number, index) => {
                let controller = &mut self.controllers[number];
                if let Some(id) = controller.partitions.keys().nth(index).cloned() {
                    controller.lose(&id);
                }
            }
            _ => unreachable!("{action:?}"),
        }
    }

    fn ensure(&mut self, setup: &Setup, number: usize, process: usize) -> Result<(), String> {
        let worker = &self.workers[number];
        if worker.wish != Wish::Partition || worker.waits(self.wall) {
            return Ok(());
        }
        let request = self.request(setup, number);
        let id = request.id.clone();
        if !self.handle(setup, process, Event::Ensure(request))? || self.workers[number].uses.is_some() {
            return Ok(());
        }
        let may_answer = process == LEADER || setup.bug == Some(Bug::AnswersWithoutLease);
        let recorded = self.processes[process].as_ref().filter(|_| may_answer);
        let worker = &self.workers[number];
        let is_ready = |entry: &&Arc<Entry>| {
            let is_owner = entry.owner.as_ref() == Some(&setup.requests[number].owner);
            is_owner && !entry.unconfirmed && entry.phase == Phase::Active && entry.attempt == worker.attempt
        };
        let Some(entry) = recorded
            .and_then(|process| process.state.get(&id))
            .filter(is_ready)
        else {
            return Ok(());
        };
        let controller = self.controller_of(entry);
        let user = (number, worker.run);
        let copied = worker.last_run_in_copy;
        let begun = begin_use(&mut self.controllers, controller, &id, user, copied)?;
        self.workers[number].uses = Some(begun);
        Ok(())
    }

    fn controller_of(&self, entry: &Entry) -> usize {
        let mut names = self.controllers.iter().map(|controller| Some(&controller.name));
        names.position(|name| name == entry.controller.as_ref()).unwrap()
    }

    fn release(&mut self, setup: &Setup, number: usize, process: usize) -> Result<(), String> {
        let worker = &mut self.workers[number];
        if worker.wish != Wish::Partition || worker.waits(self.wall) || self.processes[process].is_none() {
            return Ok(());
        }
        worker.uses = None;
        let release = self.release_of(setup, number);
        if self.handle(setup, process, Event::Release(release))? {
            self.workers[number].wish = Wish::Nothing;
        }
        Ok(())
    }

    fn release_of(&self, setup: &Setup, number: usize) -> Release {
        let request = &setup.requests[number];
        Release {
            id: request.id.clone(),
            owner: Some(request.owner.clone()),
            attempt: Some(self.workers[number].attempt),
            force: true,
            not_after: None,
        }
    }

    fn execute(&mut self, number: usize) -> Result<Option<Reply>, String> {
        let Some(message) = self.network.get_mut(number) else {
            return Ok(None);
        };
        // An id that the owner chose does not show that the first execution created what the second one
        // finds.
        let is_create = matches!(message.kind, CallKind::Create { .. });
        if is_create && message.is_executed && !message.id.is_derived() {
            return Ok(None);
        }
        let controller = &mut self.controllers[message.controller];
        let ipus = |controller: &Controller| controller.partitions.get(&message.id).map(|truth| truth.ipus);
        let before = controller.partitions.get(&message.id).cloned();
        let lost = controller.lost.get(&message.id).copied();
        let reply = controller.execute(&message.id, &message.kind);
        if is_create {
            self.may_exist.insert(message.id.clone());
        }
        if before.is_none() && ipus(controller).is_some_and(|ipus| ipus & message.avoided != 0) {
            return Err(format!("{} was created on cordoned IPUs", message.id));
        }
        let is_status = matches!(message.kind, CallKind::Status { .. } | CallKind::Create { .. });
        if before.is_some_and(|before| before.is_foreign) && !is_status {
            return Err(format!("{} is foreign, and was reset or removed", message.id));
        }
        // The record does not know that a late call has created again what was lost.
        if let Some(lost) = lost.filter(|_| message.sender.is_none()) {
            let ipus = ipus(controller).unwrap_or(lost);
            controller.lost.insert(message.id.clone(), ipus);
        }
        message.is_executed = true;
        Ok(Some(reply))
    }

    /// Delivers a reply to the process that waits for it. A call that was answered has no effect later.
    fn deliver(&mut self, setup: &Setup, number: usize, reply: Reply) -> Result<(), String> {
        let sender = match (self.network.get(number).map(|message| message.sender), setup.bug) {
            (Some(Some(sender)), _) => sender,
            (Some(None), Some(Bug::AnyReply)) => LEADER,
            _ => return Ok(()),
        };
        let message = self.network.remove(number);
        let reply = match (setup.bug, reply) {
            (Some(Bug::ExistsIsFresh), Reply::Exists(_)) => Reply::Accepted,
            (Some(Bug::ResetRepeated), Reply::Lost) if message.kind == CallKind::Reset => {
                self.orphan(message.clone());
                Reply::NotSent
            }
            (_, reply) => reply,
        };
        if reply == Reply::Lost {
            self.mark_ambiguous(&message.id, message.controller);
            self.orphan(message.clone());
        }
        let now = self.now;
        let Some(process) = &mut self.processes[sender] else {
            return Ok(());
        };
        match process.in_flight.finish(&message.id, reply, now) {
            Some(mut answer) => {
                answer.is_settled |= setup.bug == Some(Bug::AlwaysSettled);
                if setup.bug == Some(Bug::AnyOperation) {
                    let present = calls(&process.state, &InFlight::default(), now, self.wall);
                    let present = present.iter().find(|call| call.id == answer.id);
                    answer.operation = present.map_or(answer.operation, |call| call.operation);
                }
                self.handle(setup, sender, Event::Answered(answer))?;
            }
            None => self.begin_calls(setup, sender),
        }
        Ok(())
    }

    /// Adds a message without a sender. The later one of two equal ones has all effects of both.
    fn orphan(&mut self, mut message: Message) {
        (message.sender, message.reply, message.is_executed) = (None, None, false);
        if matches!(message.kind, CallKind::Status { .. }) {
            return;
        }
        let key = |one: &Message| (one.sender, one.controller, one.id.clone(), one.kind.clone());
        match self.network.iter_mut().find(|other| key(other) == key(&message)) {
            Some(other) => other.begun = other.begun.max(message.begun),
            None => self.network.push(message),
        }
    }

    fn compare(&mut self, setup: &Setup, are_heard: bool) -> Result<(), String> {
        self.observe(setup, are_heard);
        self.compare_observed(setup)
    }

    fn observe(&mut self, setup: &Setup, are_heard: bool) {
        let requested = if setup.compares_first {
            self.wall.as_millis()
        } else {
            self.wall.as_millis() + 1
        };
        let requested = Timestamp::from_millis(requested);
        let listing = |controller: &Controller| match controller.is_silent {
            true => Err(Reason::new(
                ReasonCode::ControllerUnavailable,
                "it does not answer",
            )),
            false => Ok(Arc::new(controller.listing(requested))),
        };
        let view = |controller: &Controller| ControllerView {
            name: controller.name.clone(),
            service: ServiceState::Open,
            alias_of: None,
            listing: listing(controller),
        };
        let hardware = Hardware::new(self.controllers.iter().map(view).collect());
        let Some(process) = &self.processes[LEADER] else {
            return;
        };
        let mut owners = Owners::default();
        for (number, worker) in self.workers.iter().enumerate() {
            let request = self.request(setup, number);
            if let Some(entry) = process.state.get(&request.id) {
                let liveness = match worker.wish {
                    Wish::Gone => OwnerLiveness::Dead,
                    Wish::Partition if are_heard => OwnerLiveness::Live,
                    Wish::Partition | Wish::Nothing => OwnerLiveness::Unknown,
                };
                owners.set_liveness(entry, liveness);
            }
            // After an old copy was restored, every owner that uses a partition has to be heard.
            if let Some(uses) = worker
                .uses
                .as_ref()
                .filter(|_| are_heard || worker.last_run_in_copy > 0)
            {
                let controller = self.controllers[uses.controller].name.clone();
                owners.claim(Claim::at(request, controller));
            }
        }
        if let Some(process) = &mut self.processes[LEADER] {
            process.observed = Some((self.now, hardware, owners));
        }
    }

    fn compare_observed(&mut self, setup: &Setup) -> Result<(), String> {
        let Some(process) = &mut self.processes[LEADER] else {
            return Ok(());
        };
        let Some((observed, hardware, owners)) = process.observed.take() else {
            return Ok(());
        };
        process.hardware = hardware;
        let removed = std::mem::take(&mut process.removed);
        for (id, _) in removed.iter().filter(|(_, at)| **at >= observed) {
            process.forget_listed(id);
        }
        process.removed = removed;
        process.is_compared = true;
        process.is_listing_old = false;
        if !setup.compares_first {
            process.listed = self.controllers.iter().map(Controller::snapshot).collect();
        }
        self.handle(setup, LEADER, Event::Compare(owners)).map(|_| ())
    }

    fn take_over(&mut self, setup: &Setup) {
        let remains = setup.has_predecessor;
        self.had_predecessor |= remains && self.processes[LEADER].is_some();
        let mut predecessor = self.processes[LEADER].take();
        if let Some(process) = &mut predecessor {
            process.is_behind |= setup.bug != Some(Bug::NoRevisionAtStart);
        }
        let network = std::mem::take(&mut self.network);
        for mut message in network {
            match message.sender {
                Some(LEADER) if remains => {
                    message.sender = Some(PREDECESSOR);
                    self.network.push(message);
                }
                Some(_) => self.orphan(message),
                None => self.network.push(message),
            }
        }
        let state = self.store.clone();
        for entry in state.entries().filter(|entry| entry.phase.holds()) {
            self.mark_ambiguous(&entry.id, self.controller_of(entry));
        }
        let inherited = match setup.bug {
            Some(Bug::NoSettle) => State::default(),
            _ => state.clone(),
        };
        let mut times = setup.times;
        if setup.bug == Some(Bug::SettleTooShort) {
            times.settle = times.deadline;
        }
        let unknown = |controller: &Controller| ControllerView {
            name: controller.name.clone(),
            service: ServiceState::Open,
            alias_of: None,
            listing: Err(Reason::new(ReasonCode::ControllerUnavailable, "not listed yet")),
        };
        self.processes = [
            Some(Process {
                in_flight: InFlight::inherited(times, &inherited, self.now),
                state,
                hardware: Hardware::new(self.controllers.iter().map(unknown).collect()),
                listed: Vec::new(),
                observed: None,
                removed: BTreeMap::new(),
                is_compared: !setup.compares_first,
                is_listing_old: false,
                is_behind: false,
            }),
            predecessor.filter(|_| remains),
        ];
        self.begin_calls(setup, LEADER);
    }

    /// Records that the allocator may have created this partition, as far as it knows.
    fn mark_ambiguous(&mut self, id: &PartitionId, controller: usize) {
        self.may_exist.insert(id.clone());
        if let Some(truth) = self.controllers[controller].partitions.get_mut(id) {
            truth.is_foreign = false;
        }
    }

    /// Lets time pass. The leader gives up calls at their deadlines.
    fn wait(&mut self, setup: &Setup, millis: u64) -> Result<(), String> {
        let duration = std::time::Duration::from_millis(millis);
        let later = self.now.plus(duration);
        let is_late = |message: &Message| {
            message.sender == Some(LEADER) && later > message.begun.plus(setup.times.deadline)
        };
        while let Some(number) = self.network.iter().position(is_late) {
            self.deliver(setup, number, Reply::Lost)?;
        }
        let woken = self.next_wake();
        self.now = later;
        if setup.compares_first {
            self.wall = self.wall.plus(duration);
        }
        let settle = setup.times.settle;
        self.network
            .retain(|message| message.sender == Some(LEADER) || later < message.begun.plus(settle));
        let before = self.network.len();
        self.begin_calls(setup, LEADER);
        // A refused removal is repeated by the wall clock.
        let is_refused = self
            .store
            .entries()
            .any(|entry| entry.removal_refusal().is_some());
        if self.network.len() > before && woken.is_none_or(|woken| woken > later) && !is_refused {
            return Err(String::from("a call is due, and the process would sleep"));
        }
        Ok(())
    }

    /// Returns the time at which the leader makes the next call by itself.
    fn next_wake(&self) -> Option<BootTime> {
        let process = self.processes[LEADER].as_ref()?;
        process.in_flight.wake(&process.state, self.now)
    }

    /// Handles an event in one batch. Returns whether the process did so, and goes on.
    fn handle(&mut self, setup: &Setup, number: usize, event: Event) -> Result<bool, String> {
        let Some(process) = self.processes[number]
            .as_ref()
            .filter(|process| process.is_compared)
        else {
            return Ok(false);
        };
        let mut working = process.state.clone();
        let mut changes: Vec<Change> = Vec::new();
        let mut doubted = Vec::new();
        let mut is_accepted = true;
        for event in [event, Event::Schedule] {
            match step(&working, &process.hardware, &setup.policy, self.wall, &event) {
                Ok(step) => {
                    step.changes.iter().for_each(|change| working.apply(change));
                    changes.extend(step.changes);
                    doubted.extend(step.doubted);
                }
                Err(_) => is_accepted = false,
            }
        }
        if setup.bug == Some(Bug::CallsBeforeCommit) {
            self.send_calls(number, &working);
        }
        if !changes.is_empty() {
            if !self.commit(setup, number, &changes) {
                let network = std::mem::take(&mut self.network);
                for message in network {
                    match message.sender {
                        Some(sender) if sender == number => self.orphan(message),
                        _ => self.network.push(message),
                    }
                }
                self.processes[number] = None;
                return Ok(false);
            }
            self.check_grants(setup, number, &working)?;
        }
        let now = self.now;
        if let Some(process) = &mut self.processes[number] {
            let ended = changes.iter().filter_map(|change| match change {
                Change::Remove(id) => Some(id),
                _ => None,
            });
            let was_released = |id: &&PartitionId| {
                let before = process.state.get(id);
                before.is_some_and(|before| matches!(before.phase, Phase::Releasing { .. }))
            };
            let removed: Vec<PartitionId> = ended.filter(was_released).cloned().collect();
            for id in removed.iter().filter(|_| setup.compares_first) {
                process.removed.insert(id.clone(), now);
                process.forget_listed(id);
            }
            if !setup.compares_first && !changes.is_empty() && !process.is_listing_old {
                process.age_listings(self.wall);
            }
            process.state = working;
            process.in_flight.retain(&process.state, now);
            doubted.iter().for_each(|id| process.in_flight.doubt(id));
        }
        self.begin_calls(setup, number);
        // An answer without a commit comes from memory.
        let may_answer =
            number == LEADER || !changes.is_empty() || setup.bug == Some(Bug::AnswersWithoutLease);
        Ok(is_accepted && may_answer)
    }

    /// Checks what a batch starts: quotas hold, and no new partition is on cordoned IPUs.
    fn check_grants(&mut self, setup: &Setup, number: usize, after: &State) -> Result<(), String> {
        let Some(before) = self.processes[number]
            .as_ref()
            .map(|process| process.state.clone())
        else {
            return Ok(());
        };
        self.cordoned.retain(|id, _| after.get(id).is_some());
        for entry in after.entries() {
            let recorded = before.get(&entry.id);
            let begins = recorded.is_none_or(|recorded| recorded.operations != entry.operations);
            if !begins || !matches!(entry.phase, Phase::Creating | Phase::Resetting) {
                continue;
            }
            let at = self.controller_of(entry);
            let controller = &self.controllers[at];
            let here = after
                .cordons()
                .filter(|cordon| cordon.controller == controller.name);
            let all = here.fold(0, |all, cordon| all | cordoned(&cordon.target, controller.ipus));
            self.may_exist.remove(&entry.id);
            // An existing partition is taken over, whatever the quota: its IPUs are in use already.
            let is_listed = |process: &Process| process.hardware.find(&entry.id).is_some();
            let exists = controller.partitions.contains_key(&entry.id)
                || self.processes[number].as_ref().is_some_and(is_listed);
            if entry.phase == Phase::Creating && mask(&entry.places) & all != 0 {
                return Err(format!("{} was granted cordoned IPUs", entry.id));
            }
            match all & !mask(&entry.places) {
                0 => self.cordoned.remove(&entry.id),
                avoided => self.cordoned.insert(entry.id.clone(), avoided),
            };
            let held_before = recorded.is_some_and(|recorded| recorded.phase.holds());
            if held_before || exists {
                continue;
            }
            for (subject, quota) in &setup.policy.quotas {
                let counts = |entry: &&Arc<Entry>| match (subject, &entry.owner) {
                    (QuotaSubject::Namespace(name), Some(owner)) => owner.job.namespace == *name,
                    _ => false,
                };
                // Takeovers in the same batch are counted after this request.
                let takes_over = |other: &&Arc<Entry>| {
                    let before = before.get(&other.id).is_some_and(|before| before.phase.holds());
                    other.phase == Phase::Resetting && !before
                };
                let held = after.entries().filter(counts).filter(|entry| entry.phase.holds());
                let held = held.filter(|other| !takes_over(other));
                let ipus: u32 = held.map(|entry| entry.spec.size.get()).sum();
                if counts(&entry) && quota.max_ipus.is_some_and(|limit| ipus > limit) {
                    return Err(format!("{} was granted over the quota of {subject}", entry.id));
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, setup: &Setup, number: usize, changes: &[Change]) -> bool {
        let is_behind = self.processes[number]
            .as_ref()
            .is_none_or(|process| process.is_behind);
        if is_behind && setup.bug != Some(Bug::NoCompareAndSwap) {
            return false;
        }
        changes.iter().for_each(|change| self.store.apply(change));
        if let Some(other) = &mut self.processes[1 - number] {
            other.is_behind = true;
        }
        true
    }

    fn begin_calls(&mut self, setup: &Setup, number: usize) {
        if number != LEADER && setup.bug != Some(Bug::CallsWithoutLease) {
            return;
        }
        if let Some(process) = self.processes[number]
            .as_ref()
            .filter(|process| process.is_compared)
        {
            let state = process.state.clone();
            self.send_calls(number, &state);
        }
    }

    fn send_calls(&mut self, number: usize, state: &State) {
        let Some(process) = &mut self.processes[number] else {
            return;
        };
        let due = calls(state, &process.in_flight, self.now, self.wall);
        for call in &due {
            process.in_flight.begin(call, self.now);
        }
        for call in due {
            self.send(number, call);
        }
    }

    fn send(&mut self, number: usize, call: Call) {
        let mut names = self.controllers.iter().map(|controller| &controller.name);
        let controller = names.position(|name| *name == call.controller).unwrap();
        self.network.push(Message {
            sender: Some(number),
            controller,
            avoided: match call.kind {
                CallKind::Create { .. } => self.cordoned.get(&call.id).copied().unwrap_or(0),
                _ => 0,
            },
            id: call.id,
            kind: call.kind,
            begun: self.now,
            is_executed: false,
            reply: None,
        });
    }

    /// Makes equal states equal: time counts from a fixed one, and the network has no order.
    pub(super) fn normalize(&mut self, setup: &Setup) {
        let base = BootTime::from_millis(u64::try_from(setup.times.settle.as_millis()).unwrap());
        let now = self.now;
        for process in self.processes.iter_mut().flatten() {
            process.in_flight = process.in_flight.rebased(now, base);
        }
        for message in &mut self.network {
            message.begun = BootTime::from_millis(
                (base.as_millis() + message.begun.as_millis()).saturating_sub(now.as_millis()),
            );
        }
        self.now = base;
        self.may_exist.clear();
        let kind = |kind: &CallKind| match kind {
            CallKind::Create { .. } => 0,
            CallKind::Reset => 1,
            CallKind::Remove { .. } => 2,
            CallKind::Status { .. } => 3,
        };
        self.network.sort_by_cached_key(|message| {
            (
                message.sender,
                message.controller,
                message.id.clone(),
                kind(&message.kind),
                message.begun,
            )
        });
    }

    /// Describes the state, for a trace.
    pub(super) fn describe(&self) -> String {
        let mut lines = vec![format!(
            "    {} ms, wall clock {} ms",
            self.now.as_millis(),
            self.wall.as_millis()
        )];
        for entry in self.store.entries() {
            let Entry {
                id,
                phase,
                attempt,
                operations,
                places,
                unconfirmed,
                ..
            } = &**entry;
            let ipus = mask(places);
            let copy = if *unconfirmed { ", unconfirmed" } else { "" };
            lines.push(format!(
                "    record: {id} {phase:?}, attempt {attempt}, operation {operations}, IPUs {ipus:b}{copy}"
            ));
        }
        for controller in &self.controllers {
            for (id, truth) in &controller.partitions {
                let (state, ipus, user) = (truth.state.label(), truth.ipus, truth.used_by);
                lines.push(format!(
                    "    {}: {id} {state}, IPUs {ipus:b}, used by {user:?}",
                    controller.name
                ));
            }
        }
        for message in &self.network {
            let Message {
                sender,
                id,
                kind,
                begun,
                reply,
                ..
            } = message;
            let kind = match kind {
                CallKind::Create { ipus, .. } => format!("create on {:b}", mask(ipus)),
                other => format!("{other:?}"),
            };
            lines.push(format!(
                "    call of {sender:?} since {} ms: {id} {kind}, reply {reply:?}",
                begun.as_millis()
            ));
        }
        for (number, worker) in self.workers.iter().enumerate() {
            let Worker {
                wish,
                attempt,
                run,
                uses,
                ..
            } = worker;
            let uses = uses
                .as_ref()
                .map(|one| format!("{:b}, lost {}", one.ipus, one.is_lost));
            lines.push(format!(
                "    owner {number}: {wish:?}, attempt {attempt}, run {run}, uses {uses:?}"
            ));
        }
        lines.join("\n")
    }

    /// Returns whether nothing can happen any more by itself.
    pub(super) fn is_over(&self) -> bool {
        let is_idle = |worker: &Worker| worker.wish != Wish::Partition && worker.runs_left == 0;
        self.workers.iter().all(is_idle) && self.network.is_empty() && self.store.entries().next().is_none()
    }
}

impl Process {
    /// Makes the listings older than all later changes.
    fn age_listings(&mut self, requested: Timestamp) {
        let none = PartitionId::new("none").unwrap();
        for view in &mut self.hardware.controllers {
            if let Ok(listing) = &view.listing {
                view.listing = Ok(Arc::new(listing.without(&none).requested_at(requested)));
            }
        }
        self.is_listing_old = true;
    }

    /// Removes a partition from the listings.
    fn forget_listed(&mut self, id: &PartitionId) {
        for view in &mut self.hardware.controllers {
            if let Ok(listing) = &view.listing
                && listing.partitions().contains_key(id)
            {
                view.listing = Ok(Arc::new(listing.without(id)));
            }
        }
    }
}

impl Worker {
    /// Returns whether the owner still waits for the answer to a command.
    fn waits(&self, wall: Timestamp) -> bool {
        self.late.as_ref().is_some_and(|(_, until)| *until >= wall)
    }

    fn begin_attempt(&mut self) {
        self.uses = None;
        self.attempt += 1;
        self.begin_run();
    }

    const fn begin_run(&mut self) {
        self.run += 1;
        self.runs_left = self.runs_left.saturating_sub(1);
    }
}
