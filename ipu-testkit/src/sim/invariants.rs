//! Invariants that must hold after every step: each is a function of the state, with a message for
//! violations.

use std::collections::BTreeMap;

use ipu_core::{
    BrokenPlan, Change, ControllerName, Entry, EntryState, PartitionId, PartitionState, Plan, QueuePolicy,
    QuotaSubject, Reason,
};

use super::cordons::{forget_left, invariant_cordons_name_every_holder};
use super::late::invariant_partitions_are_created_only_on_request;
use super::order::invariant_equal_requests_start_in_order;
use super::owners::{invariant_no_ipu_has_two_owners, invariant_recorded_ipus_are_correct};
use super::processes::Processes;
use super::profile::primary;
use super::report::SimReport;
use super::store::Entries;
use super::world::{SimWorld, SimWorldState, User};
use crate::fake::HeldPartition;

/// Violated invariant.
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
    /// Checks all invariants of a state.
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
                    .and_then(|()| invariant_recorded_ipus_are_correct(&entries, &held, &state.lost))
            };
            invariant_a_partition_has_one_holder(&processes, now)
                .and_then(|()| invariant_no_ipu_has_two_owners(&state.grants, &processes, now))
                .and(recorded)
        };
        let mut state = self.state();
        state.report.checks += 1;
        // A lost partition stays marked until it is released or created again.
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
            .and(invariant_no_partition_is_disturbed_under_workers(&disturbed))
            .and(invariant_ledger_and_controllers_agree(&entries, &held, &state))
            .and(invariant_quotas_are_kept(
                &entries,
                self.profile.queue_policy(),
                &state,
            ));
        drop(state);
        self.expect(found);
    }

    /// Checks a commit: entry transitions and the queue order.
    pub(super) fn committed(&self, before: &Entries, after: &Entries, changes: &[Change], began: u64) {
        self.state().holds.observe(after, began);
        let mut found = Ok(());
        let mut summary = String::new();
        self.state().report.commits += 1;
        {
            for change in changes {
                let Some(id) = change.partition() else { continue };
                let (old, new) = (before.get(id), after.get(id));
                let (from, to) = (label(old.map(|e| &**e)), label(new.map(|e| &**e)));
                let partitions = |name: &ControllerName| {
                    let held = self.controller(name)?.held();
                    held.into_iter()
                        .find(|held| held.id == *id)
                        .map(|held| held.masks)
                };
                let (old, new) = (old.map(|entry| &**entry), new.map(|entry| &**entry));
                self.state().grants.follow(id, old, new, partitions);
                let wanted =
                    invariant_partitions_are_created_only_on_request(id, old, new, &self.state().wanted);
                found = found.and(wanted);
                if (from, to) == ("intent", "active") {
                    // It may be lost between the controller's reply and the commit of that reply.
                    let is_lost = |name: &ControllerName| {
                        self.controller(name)
                            .is_some_and(|fake| fake.held().iter().all(|held| held.id != *id))
                    };
                    self.state()
                        .lost
                        .retain(|(name, lost)| lost != id || is_lost(name));
                }
                if from != to {
                    *self.state().report.transitions.entry((from, to)).or_default() += 1;
                    summary = format!(
                        "{summary}{}{id}: {from} to {to}{}",
                        if summary.is_empty() { "" } else { ", " },
                        new.map_or_else(String::new, location_text)
                    );
                }
                found = found.and(invariant_entries_move_legally(id, from, to)).and(
                    invariant_equal_requests_start_in_order(
                        id,
                        before,
                        after,
                        &self.reachable_sets(before),
                        |entries, reachable| self.evaluate_queue_with(entries, reachable),
                    ),
                );
            }
        }
        if !summary.is_empty() {
            self.log("ledger", summary);
        }
        self.expect(found);
        self.check();
    }

    /// Checks a partition that a driver is granted, or starts a process on.
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
            if state.jobs[job].removed {
                // A driver that was suspended may have an old answer. It starts nothing for a deleted job.
                return;
            }
            let key = (controller.clone(), id.clone());
            // An old copy of the ledger may list partitions that were deleted since.
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

/// Returns the recorded location of an entry, for the log.
fn location_text(entry: &Entry) -> String {
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
        _ => "IPUs unknown".into(),
    };
    format!(" at {controller} ({ipus})")
}

fn label(entry: Option<&Entry>) -> &'static str {
    entry.map_or("absent", |entry| entry.state.label())
}

/// Checks that no IPU is in two partitions of a controller.
fn invariant_no_ipu_is_in_two_partitions(
    held: &[(&ControllerName, Vec<HeldPartition>)],
) -> Result<(), BrokenInvariant> {
    for (controller, partitions) in held {
        let mut used: BTreeMap<u32, u64> = BTreeMap::new();
        for partition in partitions {
            for (domain, mask) in &partition.masks {
                let before = used.entry(*domain).or_default();
                if *before & mask != 0 {
                    return broken(
                        "no_ipu_is_in_two_partitions",
                        format!("{} at {controller} has IPUs of another partition", partition.id),
                    );
                }
                *before |= mask;
            }
        }
    }
    Ok(())
}

/// Checks that the processes on a partition belong to one job and one attempt.
fn invariant_a_partition_has_one_holder(processes: &Processes, now: u64) -> Result<(), BrokenInvariant> {
    let mut holders: BTreeMap<(&ControllerName, &PartitionId), (usize, u32)> = BTreeMap::new();
    for ((job, _, _), attempt, id, controller) in processes.running(now) {
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

/// Checks that nothing is reset or removed under running workers.
fn invariant_no_partition_is_disturbed_under_workers(disturbed: &[String]) -> Result<(), BrokenInvariant> {
    match disturbed.first() {
        None => Ok(()),
        Some(disturbance) => broken("no_partition_is_disturbed_under_workers", disturbance.clone()),
    }
}

/// Checks that the ledger contains the scheduler's own partitions on each controller, and that active entries
/// exist there.
fn invariant_ledger_and_controllers_agree(
    entries: &Entries,
    held: &[(&ControllerName, Vec<HeldPartition>)],
    state: &SimWorldState,
) -> Result<(), BrokenInvariant> {
    const NAME: &str = "ledger_and_controllers_agree";
    for (controller, partitions) in held {
        for partition in partitions.iter().filter(|partition| partition.id.is_derived()) {
            let entry = entries.get(&partition.id);
            let recorded_there = entry
                .is_some_and(|entry| entry.state.holds() && entry.controller.as_ref() == Some(*controller));
            if !recorded_there && !state.restored {
                let recorded = label(entry.map(|entry| &**entry));
                return broken(
                    NAME,
                    format!(
                        "{} is at {controller}, but {recorded} in the ledger",
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
        let partitions = held.iter().find(|(name, _)| *name == controller);
        let found = partitions.and_then(|(_, partitions)| partitions.iter().find(|held| held.id == entry.id));
        let lost = state.lost.contains(&(controller.clone(), entry.id.clone()));
        match found.map(|held| &held.state) {
            Some(PartitionState::Active | PartitionState::Failed { .. }) => {}
            _ if lost || state.restored => {}
            other => {
                let actual = other.map_or("missing", PartitionState::label);
                return broken(
                    NAME,
                    format!(
                        "{} is active in the ledger but {actual} at {controller}",
                        entry.id
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Checks that no subject exceeds its quota.
fn invariant_quotas_are_kept(
    entries: &Entries,
    queue: &QueuePolicy,
    state: &SimWorldState,
) -> Result<(), BrokenInvariant> {
    // Partitions unknown to an old copy of the ledger are recorded where they are found, regardless of
    // quotas.
    if state.restored {
        return Ok(());
    }
    for (subject, quota) in &queue.quotas {
        let own = entries.values().filter(|entry| {
            entry.state.holds()
                && match subject {
                    QuotaSubject::Namespace(name) => entry
                        .owner
                        .as_ref()
                        .is_some_and(|owner| owner.job.namespace == *name),
                    QuotaSubject::Account(name) => entry.account.as_ref() == Some(name),
                }
        });
        let sizes: Vec<u32> = own.map(|entry| entry.spec.size.get()).collect();
        let (ipus, partitions) = (sizes.iter().sum::<u32>(), sizes.len());
        let exceeded = quota.max_ipus.is_some_and(|max| ipus > max)
            || quota.max_partitions.is_some_and(|max| partitions > max as usize);
        if exceeded {
            return broken(
                "quotas_are_kept",
                format!("{subject} holds {ipus} IPUs in {partitions} partitions, of {quota:?}"),
            );
        }
    }
    Ok(())
}

/// Checks that an entry makes a legal transition.
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

/// Checks that a granted partition exists, is active, and is fresh for its attempt. Exceptions: it has just
/// failed or was lost by its controller, which its owner observes next. A lost partition may exist again,
/// because a repeated create arrived late: it is unused.
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
            broken(NAME, format!("{id} was granted but does not exist"))
        };
    };
    match &held.state {
        PartitionState::Active | PartitionState::Failed { .. } => {}
        PartitionState::Creating if lost => {}
        other => return broken(NAME, format!("{id} was granted but is {}", other.label())),
    }
    match user {
        Some(user) if user.generation == held.generation && (user.job, user.attempt) != (job, attempt) => {
            broken(
                NAME,
                format!(
                    "{id} was granted for attempt {attempt} without a reset after attempt {}",
                    user.attempt
                ),
            )
        }
        _ => Ok(()),
    }
}

/// Checks that every plan has a reason with code and message.
pub(super) fn invariant_every_plan_has_a_reason(job: usize, plan: &Plan) -> Result<(), BrokenInvariant> {
    if plan.reasons.is_empty() {
        return broken(
            "every_plan_and_wait_has_a_reason",
            format!("the plan for job {job} has no reason"),
        );
    }
    plan.reasons
        .iter()
        .try_for_each(|reason| invariant_a_reason_is_complete(job, reason))
}

/// Checks that a reason has a code and a message.
pub(super) fn invariant_a_reason_is_complete(job: usize, reason: &Reason) -> Result<(), BrokenInvariant> {
    let code = reason
        .code
        .chars()
        .next()
        .is_some_and(|first| first.is_ascii_uppercase())
        && reason.code.chars().all(|c| c.is_ascii_alphanumeric());
    if code && !reason.message.is_empty() {
        return Ok(());
    }
    broken(
        "every_plan_and_wait_has_a_reason",
        format!("job {job} has the incomplete reason {reason:?}"),
    )
}

/// Checks the invariants of a plan.
pub(super) fn invariant_plans_are_legal(job: usize, found: &[BrokenPlan]) -> Result<(), BrokenInvariant> {
    match found.first() {
        None => Ok(()),
        Some(first) => broken("plans_are_legal", format!("job {job}: {first}")),
    }
}

/// Checks that every job finishes or waits with a reason once faults have stopped.
pub(super) fn invariant_every_job_settles(unsettled: &[String]) -> Result<(), BrokenInvariant> {
    match unsettled.first() {
        None => Ok(()),
        Some(first) => broken("every_job_settles", first.clone()),
    }
}

/// Checks that no request waits although it could start.
pub(super) fn invariant_no_request_waits_needlessly(
    startable: &[PartitionId],
) -> Result<(), BrokenInvariant> {
    match startable.first() {
        None => Ok(()),
        Some(id) => broken(
            "no_request_waits_needlessly",
            format!("{id} waits although it could start"),
        ),
    }
}

/// Checks that nothing is left on either side when all owners are deleted.
pub(super) fn invariant_nothing_is_leaked(
    entries: &Entries,
    partitions: &[PartitionId],
) -> Result<(), BrokenInvariant> {
    if let Some(entry) = entries.values().next() {
        return broken(
            "nothing_is_leaked",
            format!("{} is still {} in the ledger", entry.id, entry.state),
        );
    }
    match partitions.first() {
        None => Ok(()),
        Some(id) => broken("nothing_is_leaked", format!("{id} is still on a controller")),
    }
}
