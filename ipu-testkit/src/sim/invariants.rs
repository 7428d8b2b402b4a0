//! What has to be true after every step: each invariant a function of what is there, with a message that says what is not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipu_core::{
    BrokenPlan, Change, ControllerName, ControllerView, Entry, EntryState, InventoryCapacity, LedgerState,
    Listing, Operation, PartitionId, PartitionState, Plan, QueueDecision, QueuePolicy, QuotaSubject, Reason,
    ServiceState,
};

use super::cordons::{forget_left, invariant_cordons_name_every_holder};
use super::late::invariant_what_is_made_is_wanted;
use super::owners::{invariant_no_ipu_has_two_owners, invariant_recorded_ipus_are_true};
use super::processes::Processes;
use super::profile::primary;
use super::report::SimReport;
use super::store::{Entries, by_primary};
use super::world::{SimWorld, SimWorldState, User};
use crate::fake::HeldPartition;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokenInvariant {
    pub(super) invariant: &'static str,
    pub(super) message: String,
}

pub(super) fn broken(invariant: &'static str, message: impl Into<String>) -> Result<(), BrokenInvariant> {
    Err(BrokenInvariant {
        invariant,
        message: message.into(),
    })
}

impl SimWorld {
    /// Checks everything that can be seen at one moment.
    pub(super) fn check(&self) {
        let now = self.millis();
        let held: Vec<(&ControllerName, Vec<HeldPartition>)> = self
            .controllers
            .iter()
            .map(|(name, controller)| (name, controller.held()))
            .collect();
        let disturbed = self
            .controllers
            .iter()
            .flat_map(|(_, controller)| controller.disturbed());
        let disturbed: Vec<String> = disturbed.collect();
        let entries = self.store.entries();
        let single = {
            let processes = self.processes();
            let mut state = self.state();
            forget_left(&mut state.cordons, &entries);
            let recorded = if state.restored {
                // An old copy of the ledger has old records.
                Ok(())
            } else {
                invariant_cordons_name_every_holder(&state.cordons, &held, &processes, now)
                    .and_then(|()| invariant_recorded_ipus_are_true(&entries, &held))
            };
            invariant_a_partition_has_one_holder(&processes, now)
                .and_then(|()| invariant_no_ipu_has_two_owners(&state.grants, &processes, now))
                .and(recorded)
        };
        let mut state = self.state();
        state.report.checks += 1;
        // What was lost is known to be so once it is given back, or made again.
        state.lost.retain(|(controller, id)| {
            entries.get(id).is_some_and(|entry| {
                entry.controller.as_ref() == Some(controller)
                    && matches!(
                        entry.state,
                        EntryState::Active
                            | EntryState::Failed { .. }
                            | EntryState::Intent { .. }
                            | EntryState::Orphaned
                    )
            })
        });
        let found = invariant_no_ipu_is_in_two_partitions(&held)
            .and(single)
            .and(invariant_nothing_is_taken_from_under_workers(&disturbed))
            .and(invariant_ledger_and_controllers_agree(&entries, &held, &state))
            .and(invariant_quotas_are_kept(&entries, self.profile.line(), &state));
        drop(state);
        self.expect(found);
    }

    /// Looks at a commit: what moved, and who went before whom.
    pub(super) fn committed(&self, before: &Entries, after: &Entries, changes: &[Change], began: u64) {
        self.state().holds.see(after, began);
        let mut found = Ok(());
        let mut told = String::new();
        self.state().report.commits += 1;
        {
            for change in changes {
                let Some(id) = change.partition() else { continue };
                let (old, new) = (before.get(id), after.get(id));
                let (from, to) = (label(old.map(|e| &**e)), label(new.map(|e| &**e)));
                let there = |name: &ControllerName| {
                    let held = self.controller(name)?.held();
                    held.into_iter()
                        .find(|held| held.id == *id)
                        .map(|held| held.masks)
                };
                let (old, new) = (old.map(|entry| &**entry), new.map(|entry| &**entry));
                self.state().grants.follow(id, old, new, there);
                let wanted = invariant_what_is_made_is_wanted(id, old, new, &self.state().wanted);
                found = found.and(wanted);
                if (from, to) == ("intent", "active") {
                    // It may be lost between the answer that it is there and the commit of that.
                    let gone = |name: &ControllerName| {
                        self.controller(name)
                            .is_some_and(|fake| fake.held().iter().all(|held| held.id != *id))
                    };
                    self.state().lost.retain(|(name, lost)| lost != id || gone(name));
                }
                if from != to {
                    *self.state().report.transitions.entry((from, to)).or_default() += 1;
                    told = format!(
                        "{told}{}{id}: {from} to {to}{}",
                        if told.is_empty() { "" } else { ", " },
                        new.map_or_else(String::new, where_it_is)
                    );
                }
                found = found.and(invariant_entries_move_legally(id, from, to)).and(
                    invariant_nobody_is_overtaken(id, before, after, &self.eyes(), |entries, heard| {
                        self.judge_line(entries, heard)
                    }),
                );
            }
        }
        if !told.is_empty() {
            self.say("ledger", told);
        }
        self.expect(found);
        self.check();
    }

    /// The controllers that a driver may have heard, all of them first: any of them may not have answered him.
    fn eyes(&self) -> Vec<BTreeSet<ControllerName>> {
        let mut eyes = vec![BTreeSet::new()];
        for (name, _) in &self.controllers {
            let with =
                |heard: &BTreeSet<ControllerName>| heard.iter().cloned().chain([name.clone()]).collect();
            let with: Vec<_> = eyes.iter().map(with).collect();
            eyes.splice(..0, with);
        }
        eyes
    }

    /// What everybody in the line of `entries` would be told by the controllers in `heard`.
    fn judge_line(
        &self,
        entries: &Entries,
        heard: &BTreeSet<ControllerName>,
    ) -> Vec<(PartitionId, QueueDecision)> {
        let answering = self.controllers.iter().filter(|(name, _)| heard.contains(name));
        let views = answering.map(|(name, controller)| {
            let (listed, inventory) = controller.look();
            ControllerView {
                name: name.clone(),
                service: ServiceState::Open,
                listing: Ok(Arc::new(Listing::new(
                    listed,
                    Box::new(InventoryCapacity::new(inventory)),
                ))),
            }
        });
        let world = ipu_core::ControllersSnapshot::of(views.collect());
        let state = LedgerState::of(by_primary(entries).values().map(|entry| Entry::clone(entry)))
            .with_cordons(self.store.cordons());
        state.evaluate_queue(&world, self.profile.line(), self.now())
    }

    /// Checks what a driver is granted, or starts a process on.
    pub(super) fn check_grant(
        &self,
        controller: &ControllerName,
        id: &PartitionId,
        job: usize,
        attempt: u32,
    ) {
        let Some(fake) = self.controller(controller) else {
            return;
        };
        let controller = &primary(controller);
        let held = fake.held().into_iter().find(|held| held.id == *id);
        let found = {
            let state = self.state();
            if state.jobs[job].gone {
                // A driver that was suspended has an old answer. It starts nothing for a job that is gone.
                return;
            }
            let key = (controller.clone(), id.clone());
            // An old copy of the ledger may tell of what has gone since.
            let lost = state.restored || state.lost.contains(&key);
            invariant_granted_partitions_are_fresh(
                id,
                held.as_ref(),
                state.users.get(&key),
                lost,
                job,
                attempt,
            )
        };
        self.expect(found);
    }
}

/// Where the ledger believes that an entry is, for the log.
fn where_it_is(entry: &Entry) -> String {
    let Some(controller) = &entry.controller else {
        return String::new();
    };
    let ipus = match (entry.places.first(), entry.places.last()) {
        (Some(first), Some(last)) => {
            format!(
                "{}.{} to {}.{}",
                first.link_domain, first.ipu, last.link_domain, last.ipu
            )
        }
        _ => "IPUs not known".into(),
    };
    format!(" at {controller} ({ipus})")
}

fn label(entry: Option<&Entry>) -> &'static str {
    entry.map_or("absent", |entry| entry.state.label())
}

/// No IPU is in two partitions of a controller.
fn invariant_no_ipu_is_in_two_partitions(
    held: &[(&ControllerName, Vec<HeldPartition>)],
) -> Result<(), BrokenInvariant> {
    for (controller, there) in held {
        let mut taken: BTreeMap<u32, u64> = BTreeMap::new();
        for partition in there {
            for (domain, mask) in &partition.masks {
                let before = taken.entry(*domain).or_default();
                if *before & mask != 0 {
                    return broken(
                        "no_ipu_is_in_two_partitions",
                        format!("{} at {controller} has IPUs of another", partition.id),
                    );
                }
                *before |= mask;
            }
        }
    }
    Ok(())
}

/// The processes that live on a partition are of one job and one attempt.
fn invariant_a_partition_has_one_holder(processes: &Processes, now: u64) -> Result<(), BrokenInvariant> {
    let mut holders: BTreeMap<(&ControllerName, &PartitionId), (usize, u32)> = BTreeMap::new();
    for ((job, _, _), attempt, id, controller) in processes.living(now) {
        let holder = *holders.entry((controller, id)).or_insert((job, attempt));
        if holder != (job, attempt) {
            return broken(
                "a_partition_has_one_holder",
                format!(
                    "{id} is used by job {job}, attempt {attempt}, and by job {}, attempt {}",
                    holder.0, holder.1
                ),
            );
        }
    }
    Ok(())
}

/// Nothing is reset or removed under live workers.
fn invariant_nothing_is_taken_from_under_workers(disturbed: &[String]) -> Result<(), BrokenInvariant> {
    match disturbed.first() {
        None => Ok(()),
        Some(what) => broken("nothing_is_taken_from_under_workers", what.clone()),
    }
}

/// What a controller has of ours is in the ledger, and what is active in the ledger is there.
fn invariant_ledger_and_controllers_agree(
    entries: &Entries,
    held: &[(&ControllerName, Vec<HeldPartition>)],
    state: &SimWorldState,
) -> Result<(), BrokenInvariant> {
    const NAME: &str = "ledger_and_controllers_agree";
    for (controller, there) in held {
        for partition in there.iter().filter(|partition| partition.id.is_derived()) {
            let entry = entries.get(&partition.id);
            let known = entry
                .is_some_and(|entry| entry.state.holds() && entry.controller.as_ref() == Some(*controller));
            if !known && !state.restored {
                let recorded = label(entry.map(|entry| &**entry));
                return broken(
                    NAME,
                    format!(
                        "{} is at {controller}, and in the ledger it is {recorded}",
                        partition.id
                    ),
                );
            }
        }
    }
    for entry in entries.values().filter(|entry| entry.state == EntryState::Active) {
        let Some(controller) = &entry.controller else {
            return broken(NAME, format!("{} is active nowhere", entry.id));
        };
        let there = held.iter().find(|(name, _)| *name == controller);
        let found = there.and_then(|(_, there)| there.iter().find(|held| held.id == entry.id));
        let lost = state.lost.contains(&(controller.clone(), entry.id.clone()));
        match found.map(|held| &held.state) {
            Some(PartitionState::Active | PartitionState::Failed { .. }) => {}
            _ if lost || state.restored => {}
            other => {
                let there = other.map_or("not there", PartitionState::label);
                return broken(
                    NAME,
                    format!("{} is active in the ledger and {there} at {controller}", entry.id),
                );
            }
        }
    }
    Ok(())
}

/// No subject holds more than its quota.
fn invariant_quotas_are_kept(
    entries: &Entries,
    line: &QueuePolicy,
    state: &SimWorldState,
) -> Result<(), BrokenInvariant> {
    // What an old copy of the ledger did not know of is recorded where it is found, whatever it comes to.
    if state.restored {
        return Ok(());
    }
    for (subject, quota) in &line.quotas {
        let own = entries.values().filter(|entry| {
            entry.state.holds()
                && match subject {
                    QuotaSubject::Namespace(name) => entry
                        .owner
                        .as_ref()
                        .is_some_and(|owner| owner.job.namespace == *name),
                    QuotaSubject::Account(name) => entry.account.as_ref() == Some(name),
                    _ => false,
                }
        });
        let sizes: Vec<u32> = own.map(|entry| entry.spec.size.get()).collect();
        let (ipus, partitions) = (sizes.iter().sum::<u32>(), sizes.len());
        let over = quota.max_ipus.is_some_and(|most| ipus > most)
            || quota
                .max_partitions
                .is_some_and(|most| partitions > most as usize);
        if over {
            return broken(
                "quotas_are_kept",
                format!("{subject} holds {ipus} IPUs in {partitions} partitions, of {quota:?}"),
            );
        }
    }
    Ok(())
}

/// An entry makes one of the moves that it may make.
fn invariant_entries_move_legally(
    id: &PartitionId,
    from: &'static str,
    to: &'static str,
) -> Result<(), BrokenInvariant> {
    if from == to || SimReport::TRANSITIONS.contains(&(from, to)) {
        return Ok(());
    }
    broken("entries_move_legally", format!("{id} went from {from} to {to}"))
}

/// Whoever goes takes nothing from somebody who came earlier, is as urgent, wants the same size in the same place, and is
/// charged to the same, and could have gone: such a one still can. By the same eyes: a driver who could not hear all
/// controllers may have seen room, or a place in a quota, that others could not use. So it is broken only if it is with
/// whatever he heard, and he heard the controller that it went to.
fn invariant_nobody_is_overtaken(
    id: &PartitionId,
    before: &Entries,
    after: &Entries,
    eyes: &[BTreeSet<ControllerName>],
    judge: impl Fn(&Entries, &BTreeSet<ControllerName>) -> Vec<(PartitionId, QueueDecision)>,
) -> Result<(), BrokenInvariant> {
    let waits = |entry: &Entry| matches!(entry.state, EntryState::Waiting { .. });
    let Some(going) = after.get(id) else { return Ok(()) };
    // A partition that was found is taken over by its owner whenever he asks.
    let EntryState::Intent {
        operation: Operation::Create,
        ..
    } = going.state
    else {
        return Ok(());
    };
    if before.get(id).is_some_and(|entry| !waits(entry)) {
        return Ok(());
    }
    let namespace = |entry: &Entry| entry.owner.as_ref().map(|owner| owner.job.namespace.clone());
    let left_behind = before.values().filter(|other| {
        waits(other)
            && after.get(&other.id).is_some_and(|other| waits(other))
            && other.id != *id
            && other.ticket < going.ticket
            && other.priority == going.priority
            && other.spec.size == going.spec.size
            && other.spec.allocation == going.spec.allocation
            && other.pin == going.pin
            && other.account == going.account
            && namespace(other) == namespace(going)
    });
    let left_behind: Vec<&PartitionId> = left_behind.map(|other| &other.id).collect();
    if left_behind.is_empty() {
        return Ok(());
    }
    let robbed_of = |heard: &BTreeSet<ControllerName>| {
        let could: Vec<PartitionId> = judge(before, heard)
            .into_iter()
            .filter(|(other, verdict)| {
                left_behind.contains(&other) && matches!(verdict, QueueDecision::Start { .. })
            })
            .map(|(other, _)| other)
            .collect();
        if could.is_empty() {
            return None;
        }
        let robbed = |(other, verdict): &(PartitionId, QueueDecision)| {
            could.contains(other) && matches!(verdict, QueueDecision::Wait(_))
        };
        judge(after, heard)
            .into_iter()
            .find(robbed)
            .map(|(other, _)| other)
    };
    let may_be = |heard: &&BTreeSet<ControllerName>| {
        let there = going.controller.as_ref();
        there.is_none_or(|controller| heard.contains(controller))
    };
    // Stops at the first eyes that see nobody robbed: mostly those that see everything.
    let robbed: Option<Vec<PartitionId>> = eyes.iter().filter(may_be).map(robbed_of).collect();
    match robbed.and_then(|robbed| robbed.into_iter().next()) {
        None => Ok(()),
        Some(other) => broken("nobody_is_overtaken", format!("{id} took the place of {other}")),
    }
}

/// A partition that is granted is there, active, and fresh for its attempt; or it has just come into error or was lost by
/// its controller, which its owner sees next. What was lost may also be there anew, because a create that its owner had
/// repeated came late: nobody has used it.
fn invariant_granted_partitions_are_fresh(
    id: &PartitionId,
    held: Option<&HeldPartition>,
    user: Option<&User>,
    lost: bool,
    job: usize,
    attempt: u32,
) -> Result<(), BrokenInvariant> {
    const NAME: &str = "granted_partitions_are_active_and_fresh";
    let Some(held) = held else {
        return if lost {
            Ok(())
        } else {
            broken(NAME, format!("{id} was granted and is not there"))
        };
    };
    match &held.state {
        PartitionState::Active | PartitionState::Failed { .. } => {}
        PartitionState::Creating if lost => {}
        other => return broken(NAME, format!("{id} was granted and is {}", other.label())),
    }
    match user {
        Some(user) if user.generation == held.generation && (user.job, user.attempt) != (job, attempt) => {
            broken(
                NAME,
                format!(
                    "{id} was granted for attempt {attempt} as attempt {} left it",
                    user.attempt
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Every plan says why, with code and message.
pub(super) fn invariant_every_plan_says_why(job: usize, plan: &Plan) -> Result<(), BrokenInvariant> {
    if plan.reasons.is_empty() {
        return broken(
            "everybody_is_told_why",
            format!("the plan for job {job} gives no reason"),
        );
    }
    plan.reasons
        .iter()
        .try_for_each(|reason| invariant_a_reason_is_whole(job, reason))
}

/// A reason has a code and a message.
pub(super) fn invariant_a_reason_is_whole(job: usize, reason: &Reason) -> Result<(), BrokenInvariant> {
    let code = reason
        .code
        .chars()
        .next()
        .is_some_and(|first| first.is_ascii_uppercase())
        && reason.code.chars().all(|c| c.is_ascii_alphanumeric());
    if code && !reason.message.is_empty() {
        return Ok(());
    }
    broken("everybody_is_told_why", format!("job {job} is told {reason:?}"))
}

/// A plan keeps its own invariants.
pub(super) fn invariant_plans_are_legal(job: usize, found: &[BrokenPlan]) -> Result<(), BrokenInvariant> {
    match found.first() {
        None => Ok(()),
        Some(first) => broken("plans_are_legal", format!("job {job}: {first}")),
    }
}

/// Once faults have stopped, every job finishes or waits with a reason.
pub(super) fn invariant_every_job_settles(restless: &[String]) -> Result<(), BrokenInvariant> {
    match restless.first() {
        None => Ok(()),
        Some(first) => broken("every_job_settles", first.clone()),
    }
}

/// Nobody waits for what he could have.
pub(super) fn invariant_nobody_waits_for_nothing(could: &[PartitionId]) -> Result<(), BrokenInvariant> {
    match could.first() {
        None => Ok(()),
        Some(id) => broken(
            "nobody_waits_for_nothing",
            format!("{id} waits although it could go"),
        ),
    }
}

/// When all owners are gone, nothing is left on either side.
pub(super) fn invariant_nothing_is_leaked(
    entries: &Entries,
    there: &[PartitionId],
) -> Result<(), BrokenInvariant> {
    if let Some(entry) = entries.values().next() {
        return broken(
            "nothing_is_leaked",
            format!("{} is still {} in the ledger", entry.id, entry.state),
        );
    }
    match there.first() {
        None => Ok(()),
        Some(id) => broken("nothing_is_leaked", format!("{id} is still at a controller")),
    }
}
