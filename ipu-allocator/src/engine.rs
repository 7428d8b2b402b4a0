//! The loop that owns the state: one batch of events, one commit, then the calls that follow from the state.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use ipu_core::allocator::{
    Call, Change, ControllerView, Ended, Entry, Event, Hardware, InFlight, Listing, Outcome, Phase, Policy,
    Reply, ServiceState, State, Step, UsageRecord, calls, step,
};
use ipu_core::{ControllerName, Owner, PartitionId, Reason, ReasonCode, Timestamp};
use ipu_vipu_client::{ControllerPool, boot_time};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::AllocatorError;
use crate::listings::Listings;
use crate::message::{Actions, Answer, Done, ListingResult, Message};
use crate::options::Options;
use crate::runner;
use crate::shared::{Shared, Undo};
use crate::store::{Record, Revision, Store, StoreError};

/// Maximum number of messages in one batch: a commit of this many changes takes about as long as the
/// synchronisation of the disk.
const MAX_BATCH: usize = 256;

/// Longest pause between two batches, after which refused requests and lapsed times are checked.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// Time after which an attempt to open the record has met no error, but waits for another process.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) pool: ControllerPool,
    pub(crate) options: Arc<Options>,
    pub(crate) listings: Arc<Listings>,
    pub(crate) inbox: mpsc::Receiver<Message>,
    state: State,
    hardware: Hardware,
    listed: BTreeMap<ControllerName, ListingResult>,
    policy: Arc<Policy>,
    in_flight: InFlight,
    running: JoinSet<(PartitionId, Reply)>,
    verifying: BTreeMap<PartitionId, Vec<oneshot::Sender<()>>>,
    /// Partitions that were removed from a controller, until no listing of it can have them any more.
    removed: BTreeMap<PartitionId, (ControllerName, Instant)>,
    /// Partitions that accepted commands have named since the last comparison began, with the last time.
    named: BTreeMap<PartitionId, Instant>,
    revision: Revision,
    /// Set if queued requests may start, although no entry has changed.
    is_due: bool,
    /// Set if the hardware or the policy has changed since the last batch.
    has_news: bool,
    last_schedule: Instant,
    /// Set after a failed commit: each kind of message is committed by itself then, so that a message that
    /// the store refuses does not undo the others.
    is_cautious: bool,
}

/// The answers of a batch, which are sent after the commit.
#[derive(Default)]
struct Answers {
    commands: Vec<(Result<Done, AllocatorError>, Answer<Done>)>,
    comparisons: Vec<(Actions, Answer<Actions>)>,
    ended: Vec<(PartitionId, Owner, Ended)>,
    doubted: BTreeSet<PartitionId>,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<Shared>,
        store: Arc<dyn Store>,
        pool: ControllerPool,
        options: Arc<Options>,
        listings: Arc<Listings>,
        inbox: mpsc::Receiver<Message>,
    ) -> Self {
        Self {
            shared,
            store,
            pool,
            policy: Arc::new(options.policy.clone()),
            options,
            listings,
            inbox,
            state: State::default(),
            hardware: Hardware::default(),
            listed: BTreeMap::new(),
            in_flight: InFlight::default(),
            running: JoinSet::new(),
            verifying: BTreeMap::new(),
            removed: BTreeMap::new(),
            named: BTreeMap::new(),
            revision: Revision::new(""),
            is_due: true,
            has_news: true,
            last_schedule: Instant::now(),
            is_cautious: false,
        }
    }

    /// Runs until the handles are dropped, or another process has taken over.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        let Some(record) = self.take_over().await else {
            return Ok(());
        };
        self.begin(record);
        let result = self.serve().await;
        self.shared.set_leading(false);
        result
    }

    /// Waits for the record. Commands are refused meanwhile. Returns none if the handles are dropped.
    async fn take_over(&mut self) -> Option<Record> {
        loop {
            let store = Arc::clone(&self.store);
            let opening = async move { store.open().await };
            tokio::pin!(opening);
            let waiting = tokio::time::sleep(OPEN_TIMEOUT);
            tokio::pin!(waiting);
            loop {
                tokio::select! {
                    () = &mut waiting, if !waiting.is_elapsed() => self.shared.set_open_error(None),
                    opened = &mut opening => match opened {
                        Ok(record) => return Some(record),
                        Err(error) => {
                            match &error {
                                // A server that answers late is asked again.
                                StoreError::Unavailable { .. } => tracing::warn!(%error, "cannot open the record"),
                                _ => tracing::error!(%error, "cannot open the record"),
                            }
                            self.shared.set_open_error(Some(error));
                            break;
                        }
                    },
                    message = self.inbox.recv() => match message? {
                        Message::Stop => return None,
                        message => self.refuse(message),
                    },
                }
            }
            tokio::time::sleep(MAX_PAUSE).await;
        }
    }

    /// Answers a message before this process has the record.
    fn refuse(&mut self, message: Message) {
        match message {
            Message::Command(_, answer) => {
                let _ = answer.send(Err(self.shared.not_leading()));
            }
            Message::Compare(.., answer) => {
                let _ = answer.send(Err(self.shared.not_leading()));
            }
            Message::Listed(name, listed, begun) => self.update_listing(name, listed, begun),
            Message::Verify(..) | Message::Barrier(_) | Message::Stop => {}
            Message::SetPolicy(policy) => self.policy = policy,
        }
    }

    /// Starts with `record`, the record of a predecessor.
    fn begin(&mut self, record: Record) {
        self.revision = record.revision;
        self.state = record.state;
        self.in_flight = InFlight::inherited(self.options.times, &self.state, boot_time());
        self.shared.publish_all(&self.state, &self.hardware, &self.policy);
        self.shared.set_leading(true);
        tracing::info!(
            entries = self.state.entries().count(),
            "this process has the record"
        );
    }

    async fn serve(&mut self) -> Result<(), StoreError> {
        let mut messages = Vec::new();
        loop {
            let wake = self.wake();
            tokio::select! {
                count = self.inbox.recv_many(&mut messages, MAX_BATCH) => {
                    if count == 0 || messages.iter().any(|message| matches!(message, Message::Stop)) {
                        return Ok(());
                    }
                }
                Some(finished) = self.running.join_next() => self.finish(finished, &mut messages),
                () = tokio::time::sleep_until(wake) => {}
            }
            while messages.len() < MAX_BATCH
                && let Some(finished) = self.running.try_join_next()
            {
                self.finish(finished, &mut messages);
            }
            if !self.shared.may_act(boot_time()) {
                // Another process may have the record by now.
                let basis = self.revision.clone();
                return Err(StoreError::Conflict { basis });
            }
            let messages = std::mem::take(&mut messages);
            if std::mem::take(&mut self.is_cautious) {
                for kind in by_kind(messages) {
                    self.batch(kind, false).await?;
                }
                self.batch(Vec::new(), true).await?;
            } else {
                self.batch(messages, true).await?;
            }
        }
    }

    /// Records the end of a call. Its answer is handled with `messages`.
    fn finish(
        &mut self,
        finished: Result<(PartitionId, Reply), tokio::task::JoinError>,
        messages: &mut Vec<Message>,
    ) {
        // A task that panicked in its own call ends with a reply, and no task is aborted while the loop runs.
        let Ok((id, reply)) = finished else { return };
        if let Reply::Refused { .. } = reply
            && let Some(controller) = self.state.get(&id).and_then(|entry| entry.controller.as_ref())
        {
            self.listings.refresh(controller);
        }
        if let Some(answer) = self.in_flight.finish(&id, reply, boot_time()) {
            let (send, _) = oneshot::channel();
            messages.push(Message::Command(Event::Answered(answer), send));
        }
        for waiter in self.verifying.remove(&id).into_iter().flatten() {
            self.shared.after_batch(waiter);
        }
    }

    /// Handles one batch of messages: steps, one commit, answers, calls. Queued requests may start if
    /// `schedules` is set.
    async fn batch(&mut self, messages: Vec<Message>, schedules: bool) -> Result<(), StoreError> {
        let now = (self.options.clock)();
        let mut answers = Answers::default();
        let mut undo = Undo::new();
        let mut changes = Vec::new();
        for message in messages {
            self.handle(message, now, &mut answers, &mut changes, &mut undo);
        }
        let is_late = self.last_schedule.elapsed() >= MAX_PAUSE;
        self.is_due |= !changes.is_empty();
        if schedules && self.shared.is_compared() && (self.is_due || is_late) {
            self.last_schedule = Instant::now();
            self.is_due = false;
            if let Ok(step) = step(&self.state, &self.hardware, &self.policy, now, &Event::Schedule) {
                self.apply(step.changes, &mut changes, &mut undo);
            }
        }
        if !changes.is_empty()
            && let Err(error) = self.commit(&changes, &undo, now).await
        {
            return self.roll_back(error, undo, answers);
        }
        for (id, _) in undo.iter().filter(|(_, before)| before.is_none()) {
            if let Some(owner) = self.state.get(id).and_then(|entry| entry.owner.as_ref()) {
                self.shared.forget_end(id, owner);
            }
        }
        for (id, owner, ended) in std::mem::take(&mut answers.ended) {
            self.shared.note_end(&id, owner, ended);
        }
        self.publish(&changes, &undo, now);
        self.answer(answers);
        self.shared.wake(&undo);
        self.make_calls(now);
        Ok(())
    }

    fn handle(
        &mut self,
        message: Message,
        now: Timestamp,
        answers: &mut Answers,
        changes: &mut Vec<Change>,
        undo: &mut Undo,
    ) {
        match message {
            Message::Command(event, answer) => {
                let is_internal = matches!(event, Event::Answered(_));
                // A client that has gone may have sent the request elsewhere, and released it since.
                if answer.is_closed() && !is_internal {
                    let owner = match &event {
                        Event::Renew { id, owner, .. } => Some((id, owner)),
                        Event::Ensure(request) => Some((&request.id, &request.owner)),
                        _ => None,
                    };
                    let is_recorded = |id, owner| {
                        let entry: Option<&Arc<Entry>> = self.state.get(id);
                        entry.is_some_and(|entry| entry.owner.as_ref() == Some(owner))
                    };
                    // It is alive, and did not wait.
                    if let Some((id, owner)) = owner
                        && is_recorded(id, owner)
                    {
                        self.options.liveness.forget_silence(&[id]);
                    }
                    return;
                }
                match step(&self.state, &self.hardware, &self.policy, now, &event) {
                    Ok(step) => {
                        if let Some(id) = id_of(&event) {
                            self.named.insert(id, Instant::now());
                        }
                        let outcome = self.absorb(step, answers, changes, undo).0;
                        let entry = id_of(&event).and_then(|id| self.state.get(&id).cloned());
                        answers.commands.push((Ok(Done { outcome, entry }), answer));
                    }
                    // It may rest on changes of this batch.
                    Err(error) => answers.commands.push((Err(error.into()), answer)),
                }
            }
            Message::Compare(mut owners, begun, answer) => {
                // An owner that was found dead may have started again since.
                self.named.retain(|_, at| *at >= begun);
                self.named.keys().for_each(|id| owners.forget_liveness(id));
                let compared = step(
                    &self.state,
                    &self.hardware,
                    &self.policy,
                    now,
                    &Event::Compare(owners),
                );
                let Ok(compared) = compared else { return };
                let actions = self.absorb(compared, answers, changes, undo).1;
                answers.comparisons.push((actions, answer));
            }
            Message::Listed(name, listed, begun) => {
                self.update_listing(name, listed, begun);
                self.is_due = true;
                self.has_news = true;
            }
            Message::Verify(id, answer) => {
                self.in_flight.doubt(&id);
                self.verifying.entry(id).or_default().push(answer);
            }
            Message::SetPolicy(policy) => {
                self.policy = policy;
                self.is_due = true;
                self.has_news = true;
            }
            Message::Barrier(answer) => self.shared.after_batch(answer),
            Message::Stop => {}
        }
    }

    fn absorb(
        &mut self,
        step: Step,
        answers: &mut Answers,
        changes: &mut Vec<Change>,
        undo: &mut Undo,
    ) -> (Outcome, Actions) {
        for (id, ended) in step.ended {
            if let Some(owner) = self.state.get(&id).and_then(|entry| entry.owner.clone()) {
                answers.ended.push((id, owner, ended));
            }
        }
        answers.doubted.extend(step.doubted);
        self.apply(step.changes, changes, undo);
        (step.outcome, step.actions)
    }

    /// Applies changes to the state that are committed at the end of the batch.
    fn apply(&mut self, step: Vec<Change>, changes: &mut Vec<Change>, undo: &mut Undo) {
        for change in step {
            let id = match &change {
                Change::Put(entry) => Some(&entry.id),
                Change::Remove(id) => Some(id),
                Change::Cordon(_) | Change::Uncordon(_) => None,
            };
            if let Some(id) = id {
                undo.entry(id.clone())
                    .or_insert_with(|| self.state.get(id).cloned());
            }
            self.state.apply(&change);
            changes.push(change);
        }
    }

    /// Commits the last change of each entry.
    async fn commit(&mut self, changes: &[Change], undo: &Undo, now: Timestamp) -> Result<(), StoreError> {
        let cordons = changes
            .iter()
            .filter(|change| matches!(change, Change::Cordon(_) | Change::Uncordon(_)));
        let mut last: Vec<Change> = cordons.cloned().collect();
        let mut usage = Vec::new();
        for (id, before) in undo {
            let after = self.state.get(id);
            if let Some(before) = before {
                usage.extend(UsageRecord::from_transition(
                    before,
                    after.map(|entry| &**entry),
                    now,
                ));
            }
            match after {
                Some(after) if before.as_ref() == Some(after) => {}
                Some(after) => last.push(Change::Put(Arc::clone(after))),
                None if before.is_some() => last.push(Change::Remove(id.clone())),
                None => {}
            }
        }
        if last.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        self.revision = self.store.commit(&self.revision, &last, &usage).await?;
        self.shared.record_commit(last.len(), begun.elapsed());
        Ok(())
    }

    /// Undoes a batch that was not committed. Returns the error if this process must end.
    fn roll_back(&mut self, error: StoreError, undo: Undo, answers: Answers) -> Result<(), StoreError> {
        tracing::error!(%error, "cannot write the record");
        let must_end = matches!(error, StoreError::Conflict { .. });
        let error = Arc::new(error);
        for (_, answer) in answers.commands {
            let _ = answer.send(Err(AllocatorError::Store(Arc::clone(&error))));
        }
        for (_, answer) in answers.comparisons {
            let _ = answer.send(Err(AllocatorError::Store(Arc::clone(&error))));
        }
        // New requests do not show that a holder is alive.
        let repeated = undo.iter().filter(|(_, before)| before.is_some());
        let repeated: Vec<&PartitionId> = repeated.map(|(id, _)| id).collect();
        self.options.liveness.forget_silence(&repeated);
        for (id, before) in undo {
            self.state.apply(&match before {
                Some(entry) => Change::Put(entry),
                None => Change::Remove(id),
            });
        }
        // Cordons are few: those of the batch are read from the published state again.
        self.shared.restore_cordons(&mut self.state);
        self.shared.end_batch();
        self.is_cautious = true;
        if must_end {
            return Err(Arc::try_unwrap(error).unwrap_or_else(|_| StoreError::Conflict {
                basis: self.revision.clone(),
            }));
        }
        Ok(())
    }

    fn publish(&mut self, changes: &[Change], undo: &Undo, now: Timestamp) {
        for (id, before) in undo {
            if let (Some(before), None) = (before, self.state.get(id))
                && let Some(name) = before.controller.clone()
                && before.phase.holds()
            {
                self.removed.insert(id.clone(), (name.clone(), Instant::now()));
                if let Some(Ok(listing)) = self.listed.get_mut(&name)
                    && listing.partitions().contains_key(id)
                {
                    *listing = Arc::new(listing.without(id));
                }
            }
        }
        let hardware = self.observed_hardware();
        let service_states_of = |hardware: &Hardware| -> Vec<_> {
            let views = hardware.controllers.iter();
            views
                .map(|view| (view.name.clone(), view.service, view.alias_of.clone()))
                .collect()
        };
        self.has_news |= service_states_of(&hardware) != service_states_of(&self.hardware);
        self.hardware = hardware;
        // Views are computed once for all readers, until something changes.
        if changes.is_empty() && !self.has_news {
            return;
        }
        self.has_news = false;
        self.shared
            .publish(changes, undo, &self.state, &self.hardware, &self.policy, now);
    }

    fn answer(&mut self, answers: Answers) {
        for id in answers.doubted {
            self.in_flight.doubt(&id);
        }
        for (mut done, answer) in answers.commands {
            if let Ok(Done {
                entry: Some(entry), ..
            }) = &mut done
                && let Some(newest) = self.state.get(&entry.id)
                && is_same_request(newest, entry)
            {
                *entry = Arc::clone(newest);
            }
            // An error means that the client has gone.
            let _ = answer.send(done);
        }
        for (actions, answer) in answers.comparisons {
            self.shared.set_compared();
            self.is_due = true;
            let _ = answer.send(Ok(actions));
        }
        self.shared.end_batch();
    }

    /// Makes the calls that follow from the state.
    fn make_calls(&mut self, wall: Timestamp) {
        if !self.shared.is_compared() {
            return;
        }
        let now = boot_time();
        if !self.shared.may_act(now) {
            return;
        }
        self.in_flight.retain(&self.state, now);
        for call in calls(&self.state, &self.in_flight, now, wall) {
            self.in_flight.begin(&call, now);
            self.spawn(call);
        }
        // A partition that needs no call, or is gone, needs no verification either.
        let (state, in_flight) = (&self.state, &self.in_flight);
        // Their senders are dropped, which ends the wait.
        self.verifying
            .retain(|id, _| state.get(id).is_some() && in_flight.is_running(id));
    }

    fn spawn(&mut self, call: Call) {
        let (pool, deadline) = (self.pool.clone(), self.options.times.deadline);
        let (id, latest) = (call.id.clone(), boot_time().plus(deadline));
        let call = runner::run(pool, call, deadline, latest);
        self.running.spawn(async move {
            let reply = AssertUnwindSafe(call).catch_unwind().await;
            (id, reply.unwrap_or(Reply::Lost))
        });
    }

    /// Returns the time of the next batch, if nothing happens before.
    fn wake(&self) -> Instant {
        let now = boot_time();
        let latest = if self.is_due && self.shared.is_compared() {
            Duration::from_millis(1)
        } else {
            MAX_PAUSE
        };
        let next = self.in_flight.wake(&self.state, now).map(|at| at.since(now));
        let next = next.filter(|_| self.shared.is_compared());
        Instant::now() + next.unwrap_or(latest).min(latest)
    }

    fn update_listing(&mut self, name: ControllerName, listed: ListingResult, begun: Instant) {
        let listed = listed.map(|listing| self.without_removed(listing, begun));
        // Listings of a controller are requested one after the other.
        self.removed.retain(|_, (at, when)| *at != name || *when >= begun);
        self.listed.insert(name, listed);
        // A controller that is added again is listed anew first.
        let pool = &self.pool;
        self.listed.retain(|name, _| pool.member(name).is_some());
        self.hardware = self.observed_hardware();
    }

    /// Returns the listing without the partitions that were removed after it was requested.
    fn without_removed(&self, listing: Arc<Listing>, begun: Instant) -> Arc<Listing> {
        let is_removed = |id: &&PartitionId| self.removed.get(*id).is_some_and(|(_, at)| begun <= *at);
        let removed: Vec<PartitionId> = listing.partitions().keys().filter(is_removed).cloned().collect();
        removed
            .iter()
            .fold(listing, |listing, id| Arc::new(listing.without(id)))
    }

    /// Returns the controllers of the pool with their last listings. A second name of a controller takes no
    /// partitions.
    fn observed_hardware(&self) -> Hardware {
        let open = self
            .pool
            .members()
            .into_iter()
            .map(|member| (member, ServiceState::Open));
        let draining = self
            .pool
            .draining()
            .into_iter()
            .map(|member| (member, ServiceState::Draining));
        let mut views = Vec::new();
        for (member, service) in open.chain(draining) {
            let listing = match (&member.same_as, self.listed.get(&member.name)) {
                (Some(first), _) => Err(same_controller(&member.name, first)),
                (None, Some(listed)) => listed.clone(),
                (None, None) => {
                    let message = format!("controller {} has not been listed yet", member.name);
                    Err(Reason::new(ReasonCode::ControllerUnavailable, message))
                }
            };
            views.push(ControllerView {
                name: member.name,
                service,
                listing,
                alias_of: member.same_as,
            });
        }
        Hardware::new(views)
    }
}

fn same_controller(name: &ControllerName, first: &ControllerName) -> Reason {
    let message = format!(
        "controller {name} is {first} under a second name: remove one of them from the list of controllers"
    );
    Reason::new(ReasonCode::SameController, message)
}

/// Returns the messages by kind: commands, new work by which the record grows, replies of controllers.
fn by_kind(messages: Vec<Message>) -> [Vec<Message>; 3] {
    let mut kinds = [Vec::new(), Vec::new(), Vec::new()];
    for message in messages {
        let kind = match &message {
            Message::Command(Event::Ensure(_) | Event::Cordon(_), _) => 1,
            Message::Command(Event::Answered(_), _) => 2,
            _ => 0,
        };
        kinds[kind].push(message);
    }
    kinds
}

fn id_of(event: &Event) -> Option<PartitionId> {
    match event {
        Event::Ensure(request) => Some(request.id.clone()),
        Event::Reset { id, .. } | Event::Renew { id, .. } => Some(id.clone()),
        Event::Release(release) => Some(release.id.clone()),
        Event::RemoveForeign { partition, .. } => Some(partition.id.clone()),
        Event::Cordon(_)
        | Event::Uncordon { .. }
        | Event::Answered(_)
        | Event::Compare(_)
        | Event::Schedule => None,
    }
}

/// Returns whether both are of one request. A ticket is used again once its entry is gone.
pub(crate) fn is_same_request(one: &Entry, other: &Entry) -> bool {
    (one.ticket, &one.owner) == (other.ticket, &other.owner)
}

/// Returns whether the entry may change without a command: it is queued, or the controller works on it.
pub(crate) const fn is_in_progress(phase: &Phase) -> bool {
    matches!(phase, Phase::Queued) || phase.needs_calls()
}
