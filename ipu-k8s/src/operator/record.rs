//! What is recorded of a pass: one write of the status, if anything has changed, and then an event.

use ipu_core::{JobKey, JobPhase, Plan, Timestamp};
use ipu_proxy_client::{HoldState, PartitionDocument};
use serde_json::{Map, Value, json};
use std::time::Duration;

use super::ends::Ends;
use super::mpirun::Told;
use super::news::Telling;
use super::observe::{Deleted, Seen};
use super::pods::{Count, KubePod, version};
use super::port::{JobEvent, PortError, Severity};
use super::reconcile::Operator;
use super::trouble::Trouble;
use crate::crd::{
    AttemptReport, Condition, FailureReport, InstanceReport, IpuJobStatus, PhaseSeconds, Time, WorkersStatus,
};
use crate::resources::{Blueprint, selector};

/// How often a status is written of which only the words have changed: with a thousand jobs in the line, each that goes
/// changes the words of all others.
const WORDS: Duration = Duration::from_secs(15);
/// How long a job may be on its way from its first look to running, or from its deletion to being gone, before that is told: one
/// that has got there has told it all.
const BRIEF: Duration = Duration::from_secs(2);
/// The most characters of a message.
const MESSAGE: usize = 1024;

/// What became of a status that was to be written.
#[derive(Debug)]
pub(super) enum Written {
    /// It was written: the object as it is now.
    Now(Value),
    /// It says so already.
    Before,
    /// Only words are new, and the last ones were written a moment ago, or there will be more to say in a moment: it is to be
    /// written after this time.
    Later(Duration),
}

/// What a status that is written leaves to be done, before anything else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    Nothing,
    /// Or it is not known.
    Something,
}

impl Operator {
    /// Records what a pass came to.
    pub(super) async fn record(
        &self,
        blueprint: &Blueprint<'_>,
        object: &Value,
        before: &IpuJobStatus,
        plan: &Plan,
        seen: &Seen,
        trouble: Option<&Trouble>,
    ) -> Result<Written, PortError> {
        let key = blueprint.spec.key();
        let begun = if before.phase.is_none() || is_ending(before, plan) {
            self.cache.begun(key, seen.now)
        } else {
            seen.now
        };
        let goes = is_on_its_way(plan) && seen.deleted == Deleted::No;
        self.cache.is_going(key, goes.then_some(begun));
        let mut after = report(blueprint, object, before, plan, seen, begun);
        if let Some(trouble) = trouble.filter(|trouble| trouble.is_worth_a_word(plan.status.phase)) {
            after.last_message = format!("{}; {trouble}", after.last_message);
        }
        let rest = BRIEF.saturating_sub(seen.now.since(begun));
        if !rest.is_zero() && trouble.is_none() && is_brief(before, plan, seen) {
            return Ok(Written::Later(rest));
        }
        let leaves =
            if after != *before && trouble.is_none() && is_settled(blueprint, object, &after, plan, seen) {
                Leaves::Nothing
            } else {
                Leaves::Something
            };
        let written = self
            .write_status(key, object, before, after.clone(), seen.now, leaves)
            .await?;
        if matches!(written, Written::Now(_)) {
            let in_the_way = trouble.and_then(|trouble| trouble.event(before, seen.now));
            let events = [event(before, &after, plan, seen.now), in_the_way];
            for event in events.into_iter().flatten() {
                self.put(object, event).await;
            }
        }
        Ok(written)
    }

    /// Has the users of a job told, when there is time.
    pub(super) async fn put(&self, object: &Value, event: JobEvent) {
        let text = |name: &str| object["metadata"][name].clone();
        let words = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
        let job = format!("{}/{}", words("namespace"), words("name"));
        tracing::info!(job, reason = event.reason, "{}", event.note);
        let about = json!({"metadata": {
            "namespace": text("namespace"), "name": text("name"), "uid": text("uid"),
        }});
        if let Some(telling) = self.news.put(Telling { job: about, event }) {
            self.tell(&telling).await;
        }
    }

    /// Tells users of a job. Whoever is not told finds it in the status.
    pub(super) async fn tell(&self, telling: &Telling) {
        if let Err(error) = self.api.tell(&telling.job, &telling.event).await {
            tracing::debug!(%error, "an event could not be written");
        }
    }

    /// Writes a status, unless nothing has changed, or nothing but words that were written a moment ago.
    pub(super) async fn write_status(
        &self,
        key: &JobKey,
        object: &Value,
        before: &IpuJobStatus,
        mut after: IpuJobStatus,
        now: Timestamp,
        leaves: Leaves,
    ) -> Result<Written, PortError> {
        if after.last_message.chars().count() > MESSAGE {
            after.last_message = after
                .last_message
                .chars()
                .take(MESSAGE - 1)
                .chain(['…'])
                .collect();
        }
        after.last_reconcile_time = before.last_reconcile_time;
        if after == *before {
            return Ok(Written::Before);
        }
        // A time to come is of a clock that was put back since.
        let last = before.last_reconcile_time.filter(|last| last.0 <= now);
        let passed = last.map(|last| now.since(last.0));
        if let Some(passed) = passed.filter(|passed| *passed < WORDS)
            && without_words(&after) == without_words(before)
        {
            return Ok(Written::Later(WORDS - passed));
        }
        after.last_reconcile_time = Some(Time(now));
        let old = serde_json::to_value(before).unwrap_or_default();
        let new = serde_json::to_value(&after).unwrap_or_default();
        // What is stored may have fields that this version does not know: they stay.
        let status = renewed(&object["status"], &old, &new);
        let written = self.api.write_status(object, &status).await?;
        self.cache.wrote(key, version(&written));
        if leaves == Leaves::Nothing {
            self.cache.settled(key, version(&written));
        }
        Ok(Written::Now(written))
    }
}

/// What a status says of a pass, with what was said `before`.
fn report(
    blueprint: &Blueprint<'_>,
    object: &Value,
    before: &IpuJobStatus,
    plan: &Plan,
    seen: &Seen,
    begun: Timestamp,
) -> IpuJobStatus {
    let mut after = before.clone();
    after.remember(&plan.status);
    after.start_time.get_or_insert(Time(begun));
    after.observed_generation = object["metadata"]["generation"].as_i64();
    after.selector = Some(selector(blueprint.spec.key().name.as_str()));
    after.workers_status = count(&seen.pods);
    report_instances(&mut after, blueprint, plan, seen);
    after.ipu_partition_created = all_granted(&after, blueprint, seen);
    report_failure(&mut after, before, blueprint, seen);
    if before.phase.is_none() && plan.status.phase == JobPhase::Running {
        // It was on its way until now, which nobody was told.
        report_condition(&mut after, blueprint, JobPhase::Pending, plan, begun);
    }
    report_condition(&mut after, blueprint, plan.status.phase, plan, seen.now);
    if plan.status.phase == JobPhase::Running && after.phase_seconds.is_none() {
        after.phase_seconds = Some(phase_seconds(seen));
    }
    if let Some(held_up) = held_up(plan.status.phase, seen) {
        after.last_message = format!("{}; {held_up}", after.last_message);
    }
    after
}

/// Whether a status leaves nothing to be done: what was seen, looked at with it, asks for nothing and would be told as it is.
/// Only of jobs that run: what ended is judged by more than what was seen.
fn is_settled(
    blueprint: &Blueprint<'_>,
    object: &Value,
    after: &IpuJobStatus,
    plan: &Plan,
    seen: &Seen,
) -> bool {
    if plan.status.phase != JobPhase::Running || seen.ends != Ends::default() {
        return false;
    }
    let again = ipu_core::plan(
        blueprint.spec,
        &seen.observation(blueprint.spec, after.remembered()),
    );
    again.effects.is_empty()
        && again.wake == plan.wake
        && report(blueprint, object, after, &again, seen, seen.now) == *after
}

/// Whether a job is on its way without waiting for anybody: one that nothing was recorded of runs in a moment, or is told of, and one
/// that was deleted is gone.
fn is_brief(before: &IpuJobStatus, plan: &Plan, seen: &Seen) -> bool {
    let verdict = plan.wake == Some(Duration::ZERO);
    let held_up = seen.pods.iter().any(|pod| pod.held_up.is_some());
    let goes = match seen.deleted {
        Deleted::No => before.phase.is_none() && is_on_its_way(plan),
        Deleted::Yes => is_ending(before, plan),
    };
    goes && !(verdict || held_up)
}

/// Whether a job is to go, which was not told yet.
fn is_ending(before: &IpuJobStatus, plan: &Plan) -> bool {
    plan.status.phase == JobPhase::Terminating && before.phase != Some(JobPhase::Terminating)
}

/// Whether a job gets on without waiting for anybody else.
fn is_on_its_way(plan: &Plan) -> bool {
    let steps = ["PreparingPartition", "StartingWorkers", "StartingLauncher"];
    plan.status.phase == JobPhase::Pending && plan.reasons.iter().all(|reason| steps.contains(&&*reason.code))
}

/// The status but for what is said of waiting.
fn without_words(status: &IpuJobStatus) -> IpuJobStatus {
    let mut status = status.clone();
    status.last_message.clear();
    for instance in &mut status.instances {
        instance.reason = None;
    }
    status
}

/// What is stored, with what differs between `old`, which was read from it, and `new`.
fn renewed(stored: &Value, old: &Value, new: &Value) -> Value {
    let (Value::Object(stored), Value::Object(old), Value::Object(new)) = (stored, old, new) else {
        return new.clone();
    };
    let mut renewed = stored.clone();
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(value)) {
        let field = |of: &Map<String, Value>| of.get(name).cloned().unwrap_or_default();
        renewed.insert(name.clone(), self::renewed(&field(stored), &field(old), value));
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        renewed.remove(name);
    }
    Value::Object(renewed)
}

fn count(pods: &[KubePod]) -> WorkersStatus {
    let of = |what: Count| {
        let counted = pods
            .iter()
            .filter(|pod| pod.worker.is_some() && pod.count() == what)
            .count();
        u32::try_from(counted).unwrap_or(u32::MAX)
    };
    WorkersStatus::new(of(Count::Active), of(Count::Succeeded), of(Count::Failed))
}

fn report_instances(after: &mut IpuJobStatus, blueprint: &Blueprint<'_>, plan: &Plan, seen: &Seen) {
    for report in &mut after.instances {
        let index = report.index;
        let document = seen.partitions.get(&index);
        report.partition = document
            .filter(|document| document.state.holds())
            .map(|document| blueprint.spec.partition_id(document.instance).to_string());
        let controller = document.and_then(|document| document.controller.as_ref());
        report.controller = controller.map(|controller| controller.name.to_string());
        report.node_label = controller.and_then(|controller| controller.node_label.clone());
        let workers = seen
            .pods
            .iter()
            .filter(|pod| pod.instance == index && pod.worker.is_some() && !pod.gone);
        report.workers = workers.map(|pod| pod.name.clone()).collect();
        let about = |reason: &&ipu_core::Reason| reason.numbers.get("instance") == Some(&u64::from(index));
        let reason = plan.reasons.iter().find(about).map(ToString::to_string);
        report.reason = reason.filter(|_| !report.has_ended());
        if !report.has_ended() {
            report.state = state_of(report, document).to_owned();
        }
    }
}

fn state_of(report: &InstanceReport, document: Option<&PartitionDocument>) -> &'static str {
    match document.map(|document| document.state) {
        Some(HoldState::Active) if report.running_time.is_some() => "Running",
        Some(HoldState::Active) => "Starting",
        Some(HoldState::Releasing) => "Releasing",
        Some(HoldState::Waiting | HoldState::Quarantined) => "Waiting",
        _ => "Preparing",
    }
}

/// Whether every instance has its partition, for its attempt.
fn all_granted(after: &IpuJobStatus, blueprint: &Blueprint<'_>, seen: &Seen) -> bool {
    let wanted = blueprint.spec.instances();
    let granted = |index: u32| {
        let report = after.instances.iter().find(|report| report.index == index);
        let document = seen.partitions.get(&index);
        report.zip(document).is_some_and(|(report, document)| {
            document.attempt == report.attempt && document.state == HoldState::Active
        })
    };
    wanted > 0 && (0..wanted).all(granted)
}

/// Says of a failure that is new whose it was and where it ran, while that is known.
fn report_failure(after: &mut IpuJobStatus, before: &IpuJobStatus, blueprint: &Blueprint<'_>, seen: &Seen) {
    let Some(failure) = after
        .first_failure
        .as_mut()
        .filter(|failure| failure.name.is_empty())
    else {
        return;
    };
    let spec = blueprint.spec;
    if let Some((worker, told)) = blamed_by_launcher(failure, blueprint, seen) {
        failure.worker = Some(worker);
        "Worker".clone_into(&mut failure.kind);
        failure.reason = format!("{} of rank {}, as the launcher tells", told.exit, told.rank);
    }
    failure.name = match (failure.worker, failure.kind.as_str()) {
        (Some(worker), _) => spec.worker_name(failure.instance, worker),
        (None, "Launcher") => spec.launcher_name(failure.instance),
        (None, _) => spec.partition_id(failure.instance).to_string(),
    };
    let pod = seen
        .pods
        .iter()
        .find(|pod| pod.name == failure.name && pod.attempt == failure.attempt);
    failure.node = pod.and_then(|pod| pod.node.clone());
    let attempt = attempt_of(failure);
    if before.attempts.last() != Some(&attempt) {
        after.attempts.push(attempt);
    }
    let surplus = after.attempts.len().saturating_sub(IpuJobStatus::MOST_ATTEMPTS);
    after.attempts.drain(..surplus);
}

/// The worker that a launcher, which failed, says was the first to, and what it says of it.
fn blamed_by_launcher(
    failure: &FailureReport,
    blueprint: &Blueprint<'_>,
    seen: &Seen,
) -> Option<(u32, Told)> {
    if failure.kind != "Launcher" {
        return None;
    }
    let mut launchers = seen.pods.iter().filter(|pod| {
        pod.worker.is_none() && pod.instance == failure.instance && pod.attempt == failure.attempt
    });
    let told = seen.ends.told(launchers.next()?)?;
    let worker = told.worker(blueprint.job, blueprint.spec, failure.instance)?;
    Some((worker, told))
}

fn attempt_of(failure: &FailureReport) -> AttemptReport {
    AttemptReport {
        instance: failure.instance,
        attempt: failure.attempt,
        name: failure.name.clone(),
        reason: failure.reason.clone(),
        time: failure.time,
    }
}

/// One condition for each phase that was reached; the one that the job is in is true (seed 000 §6.6).
fn report_condition(
    after: &mut IpuJobStatus,
    blueprint: &Blueprint<'_>,
    phase: JobPhase,
    plan: &Plan,
    now: Timestamp,
) {
    let kind = format!("{phase:?}");
    let key = blueprint.spec.key();
    let why = plan
        .status
        .conclusion
        .as_ref()
        .map(|why| format!(": {}", why.message));
    let what = match phase {
        JobPhase::Pending => "is waiting for resources to be ready.".to_owned(),
        JobPhase::Running => "is running.".to_owned(),
        JobPhase::Restarting => "is restarting.".to_owned(),
        JobPhase::Suspended => "is suspended.".to_owned(),
        JobPhase::Completed => "has completed.".to_owned(),
        JobPhase::Failed => format!("has failed{}.", why.unwrap_or_default()),
        JobPhase::Terminating => "is being deleted.".to_owned(),
        other => format!("is in phase {other:?}."),
    };
    let message = format!("IPUJob {}/{} {what}", key.namespace, key.name);
    let now = Some(Time(now));
    for condition in &mut after.conditions {
        if condition.kind != kind && condition.status != "False" {
            condition.status = "False".to_owned();
            condition.last_transition_time = now;
        }
    }
    if !after.conditions.iter().any(|condition| condition.kind == kind) {
        after.conditions.push(Condition {
            reason: format!("IPUJob{kind}"),
            kind: kind.clone(),
            ..Condition::default()
        });
    }
    let current = after
        .conditions
        .iter_mut()
        .find(|condition| condition.kind == kind);
    if let Some(condition) = current {
        if condition.status != "True" {
            condition.status = "True".to_owned();
            condition.last_transition_time = now;
        }
        if condition.message != message {
            condition.message = message;
            condition.last_update_time = now;
        }
    }
}

/// How long the job was in each part of its way: each begins where the one before it ended.
fn phase_seconds(seen: &Seen) -> PhaseSeconds {
    let documents = || seen.partitions.values();
    let granted = documents().filter_map(|document| document.held_since).max();
    let active = documents().map(|document| document.since).max();
    let placed = seen
        .pods
        .iter()
        .filter(|pod| pod.worker.is_some())
        .filter_map(|pod| pod.scheduled)
        .max();
    let mut from = seen.submitted;
    let mut until = |end: Option<Timestamp>| {
        let end = end.unwrap_or(from).max(from).min(seen.now.max(from));
        let millis = u32::try_from(end.since(from).as_millis()).unwrap_or(u32::MAX);
        from = end;
        f64::from(millis) / 1000.0
    };
    PhaseSeconds::new(
        until(granted),
        until(active),
        until(placed),
        until(Some(seen.now)),
    )
}

/// What is to be said of the first of the job's processes that does not go, does not start, or is not ready.
fn held_up(phase: JobPhase, seen: &Seen) -> Option<String> {
    let (starts, runs) = match phase {
        phase if phase.is_finished() => return None,
        JobPhase::Pending | JobPhase::Restarting => (true, false),
        JobPhase::Running => (true, true),
        _ => (false, false),
    };
    let said = |why: &dyn Fn(&KubePod) -> Option<String>| {
        let mut pods = seen.pods.iter();
        pods.find_map(|pod| Some(format!("{}: {}", pod.name, why(pod)?)))
    };
    said(&|pod| pod.overdue(seen.now))
        .or_else(|| said(&|pod| pod.held_up.clone().filter(|_| starts)))
        .or_else(|| said(&|pod| pod.not_ready(seen.now).filter(|_| runs)))
}

/// What the users of the job are told, if it is another phase than before, or waits for another reason.
fn event(before: &IpuJobStatus, after: &IpuJobStatus, plan: &Plan, at: Timestamp) -> Option<JobEvent> {
    let phase = plan.status.phase;
    let first = plan.reasons.first();
    let warning = |reason: &ipu_core::Reason| JobEvent {
        severity: Severity::Warning,
        reason: reason.code.clone(),
        note: reason.to_string(),
        at,
    };
    // Told once: in the pass that closes the attempt.
    if let Some(gone) = plan.reasons.iter().find(|reason| reason.code == "WorkerGone") {
        return Some(warning(gone));
    }
    // And so is what becomes of one instance while the job goes on: it has failed for good, or gave its partition back.
    let is_news = |reason: &&ipu_core::Reason| {
        let of = |status: &IpuJobStatus| {
            let index = reason.numbers.get("instance").copied();
            let mut all = status.instances.iter();
            let known = all.find(|known| index == Some(u64::from(known.index)));
            known.map_or((false, 0), |known| (known.state == "Failed", known.given_back))
        };
        let ((had_failed, before), (has_failed, now)) = (of(before), of(after));
        (has_failed && !had_failed) || now > before
    };
    if let Some(news) = plan.reasons.iter().find(is_news).filter(|_| !phase.is_finished()) {
        return Some(warning(news));
    }
    if before.phase == Some(phase) || phase == JobPhase::Pending {
        // Making and starting things is what a job does; waiting for others is worth a word.
        let waits = |status: &IpuJobStatus| {
            let waiting = status
                .instances
                .iter()
                .find(|instance| instance.state == "Waiting")?;
            let reason = waiting.reason.as_deref()?;
            Some(reason.split(':').next().unwrap_or_default().to_owned())
        };
        let code = waits(after).filter(|code| waits(before).as_ref() != Some(code))?;
        return Some(JobEvent {
            severity: Severity::Normal,
            reason: code,
            note: after.last_message.clone(),
            at,
        });
    }
    let after_success = first.is_some_and(|reason| reason.code == "RestartAfterSuccess");
    let severity = match phase {
        JobPhase::Restarting if after_success => Severity::Normal,
        JobPhase::Failed | JobPhase::Restarting => Severity::Warning,
        _ => Severity::Normal,
    };
    let told = match phase {
        JobPhase::Failed | JobPhase::Completed => plan.status.conclusion.as_ref(),
        _ => first,
    };
    Some(JobEvent {
        severity,
        reason: format!("IPUJob{phase:?}"),
        note: told.map_or_else(|| after.last_message.clone(), ToString::to_string),
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_stored_in_a_status_stays() {
        let old = json!({"a": 1, "b": {"c": 2, "d": 3}, "e": [1, 2]});
        let new = json!({"a": 1, "b": {"c": 4}, "e": [1], "f": true});
        let stored = json!({"a": 1, "b": {"c": 2, "d": 3, "theirs": 5}, "e": [1, 2], "newer": {"x": 6}});
        assert_eq!(
            renewed(&stored, &old, &new),
            json!({"a": 1, "b": {"c": 4, "theirs": 5}, "e": [1], "f": true, "newer": {"x": 6}})
        );
        assert_eq!(renewed(&Value::Null, &old, &new), new);
    }
}
