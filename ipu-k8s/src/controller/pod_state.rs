//! Compact state of one pod: only what decisions need, so that thousands of pods use little memory.

use std::time::Duration;

use ipu_core::{Exit, JobKey, MissingProcess, ProcessFacts, ProcessPhase, Timestamp};
use serde_json::Value;

use crate::crd::Time;
use crate::resources::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, PodRole, ROLE, WORKER};

/// Maximum size of a stored log excerpt, in bytes.
const MAX_LOG_BYTES: usize = 2048;
/// Time after which an overdue deletion or missing readiness is reported. The kubelet rounds times, and
/// reports the exit of a container a moment after the lost readiness.
const REPORT_DELAY: Duration = Duration::from_secs(5);
/// Maximum length of a stored Kubernetes message, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// One pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubePod {
    /// Name of the pod.
    pub name: String,
    /// Uid, which distinguishes it from an earlier pod of the same name.
    pub uid: String,
    /// Owning job according to the labels, in the pod's namespace (unverified).
    pub job: JobKey,
    /// True if the job is its controller, or was at an earlier observation. Other pods are ignored.
    pub(super) owned: bool,
    /// Numeric `resourceVersion`.
    pub version: u64,
    /// Index of its instance.
    pub instance: u32,
    /// Index of the worker within the instance; `None` for a launcher.
    pub worker: Option<u32>,
    /// Attempt that it was created for.
    pub attempt: u32,
    /// Node that it is scheduled to.
    pub node: Option<String>,
    /// Time at which it was scheduled.
    pub scheduled: Option<Timestamp>,
    /// True if its deletion was requested: another request changes nothing.
    pub terminating: bool,
    /// True if it is deleted, and kept only because its outcome is still to be judged.
    pub(super) deleted: bool,
    /// Reason why it does not run yet, as Kubernetes reports it.
    pub start_blocker: Option<String>,
    /// Deadline of its deletion, if one was requested.
    deletion_deadline: Option<Timestamp>,
    /// Time since which it is running but not ready.
    unready_since: Option<Timestamp>,
    /// Loss of its process, if it was deleted while it ran: the exit of a process after a stop request shows
    /// nothing about its work.
    pub(super) deleted_while_running: Option<ProcessPhase>,
    /// Name of its first container that failed.
    pub(super) failed: Option<String>,
    /// True if the operator requested its deletion, which is then no disruption.
    stop_requested: bool,
    /// Start time of its first container, init containers aside.
    started: Option<Timestamp>,
    state: PodState,
}

/// State of a pod, independent of the time of observation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PodState {
    /// Starting since this time.
    Starting(Timestamp),
    /// Pulling images, which does not count as starting time.
    Pulling,
    /// A phase that does not depend on the time of observation.
    Known(ProcessPhase),
}

impl KubePod {
    /// Reads an object of the API server. Returns `None` unless its name matches its labels: a copy of a
    /// worker has its labels too.
    #[must_use]
    pub fn read(pod: &Value) -> Option<Self> {
        let metadata = &pod["metadata"];
        let label = |name: &str| metadata["labels"][name].as_str();
        let parse_label = |name: &str| label(name).and_then(|text| text.parse().ok());
        let worker = match label(ROLE)? {
            role if role == PodRole::Worker.label() => Some(parse_label(WORKER)?),
            role if role == PodRole::Launcher.label() => None,
            _ => return None,
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let job = JobKey::new(text(&metadata["namespace"])?, label(JOB_NAME)?, label(JOB_UID)?).ok()?;
        let (name, instance) = (text(&metadata["name"])?, parse_label(INSTANCE)?);
        if !is_name_of(&name, job.name.as_str(), instance, worker) {
            return None;
        }
        let mut owners = metadata["ownerReferences"].as_array().into_iter().flatten();
        let placed = condition(pod, "PodScheduled").filter(|placed| placed["status"] == "True");
        Some(Self {
            name,
            uid: text(&metadata["uid"])?,
            owned: owners.any(|owner| owner["controller"] == true && owner["uid"] == job.uid.as_str()),
            job,
            version: version(pod),
            instance,
            worker,
            attempt: parse_label(ATTEMPT)?,
            node: text(&pod["spec"]["nodeName"]).filter(|node| !node.is_empty()),
            scheduled: placed.and_then(|placed| parse_time(&placed["lastTransitionTime"])),
            terminating: !metadata["deletionTimestamp"].is_null(),
            deleted: false,
            start_blocker: start_blocker(pod),
            deletion_deadline: parse_time(&metadata["deletionTimestamp"]),
            unready_since: unready_since(pod),
            deleted_while_running: deleted_while_running(pod),
            failed: failed_container(pod).and_then(|status| text(&status["name"])),
            stop_requested: false,
            started: started(pod),
            state: state(pod),
        })
    }

    /// Returns a message if the deletion is overdue at `now`.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<String> {
        let by = self
            .deletion_deadline
            .filter(|by| self.outcome().is_none() && is_past(*by, now))?;
        Some(format!(
            "DeletionOverdue: its deletion was due by {}, and its exit is not reported{}: if the node is lost for good, delete it \
             from Kubernetes too",
            Time(by),
            self.node_suffix()
        ))
    }

    /// Returns a message if the pod runs and has not been ready for a while at `now`.
    pub(super) fn not_ready(&self, now: Timestamp) -> Option<String> {
        let since = self.unready_since.filter(|since| is_past(*since, now))?;
        Some(format!("NotReady: since {}{}", Time(since), self.node_suffix()))
    }

    /// Returns the time until one of both messages is due without a watch event.
    pub(super) fn next_report_in(&self, now: Timestamp) -> Option<Duration> {
        let late = self.deletion_deadline.filter(|_| self.outcome().is_none());
        let times = late.into_iter().chain(self.unready_since);
        let delays = times.map(|time| time.plus(REPORT_DELAY).since(now));
        delays.filter(|delay| !delay.is_zero()).min()
    }

    fn node_suffix(&self) -> String {
        let node = self.node.as_ref();
        node.map_or_else(String::new, |node| format!(" on node {node}"))
    }

    /// Returns the process that is disrupted by the deletion of the pod: `None` if it exited before, or if
    /// the operator deletes it.
    pub(super) fn evicted_process(&self) -> Option<MissingProcess> {
        let by_others = self.outcome().is_none() || self.deleted_while_running.is_some();
        let is_disruption = self.owned && !self.stop_requested && by_others;
        is_disruption.then_some(MissingProcess {
            worker: self.worker,
            attempt: self.attempt,
        })
    }

    /// Returns whether the outcome must be kept after the deletion: the operator did not request it.
    pub(super) const fn keeps_outcome(&self) -> bool {
        self.owned && !self.stop_requested && !self.deleted && self.outcome().is_some()
    }

    /// Marks the pod deleted. Returns whether its outcome is known.
    pub(super) const fn mark_deleted(&mut self) -> bool {
        self.deleted = true;
        self.outcome().is_some()
    }

    /// Merges state of an earlier observation of the same pod that the object itself does not contain.
    pub(super) fn merge_previous(&mut self, before: &Self) {
        let is_same_pod = self.uid == before.uid;
        self.stop_requested |= is_same_pod && before.stop_requested;
        // Removing the owner reference does not end the process.
        self.owned |= is_same_pod && before.owned;
    }

    /// Records that the operator is about to delete the pod.
    pub(super) fn mark_stop_requested(&mut self) {
        self.stop_requested = true;
    }

    /// Returns the process of the pod as observed at `now`.
    #[must_use]
    pub fn facts(&self, now: Timestamp) -> ProcessFacts {
        let starting = |since| ProcessPhase::Starting {
            since,
            cause: self.start_blocker.clone().unwrap_or_default(),
        };
        ProcessFacts {
            index: self.worker.unwrap_or(0),
            attempt: self.attempt,
            phase: match &self.state {
                PodState::Starting(since) => starting(*since),
                PodState::Pulling => starting(now),
                PodState::Known(phase) => phase.clone(),
            },
        }
    }

    /// Returns whether it is starting and none of its containers has run.
    pub(super) const fn has_not_run(&self) -> bool {
        self.started.is_none() && matches!(self.state, PodState::Starting(_) | PodState::Pulling)
    }

    /// Returns its outcome, or `None` if it has not ended.
    pub(super) const fn outcome(&self) -> Option<&ProcessPhase> {
        match &self.state {
            PodState::Known(end @ (ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. })) => Some(end),
            PodState::Known(_) | PodState::Starting(_) | PodState::Pulling => None,
        }
    }

    /// Returns the phase of its process just before it ended.
    pub(super) fn phase_before_exit(&self) -> ProcessPhase {
        match self.started {
            Some(since) => ProcessPhase::Running { since },
            // It was starting, and will not run.
            None => ProcessPhase::Stopping,
        }
    }

    /// Returns whether it counts as active, succeeded or failed.
    #[must_use]
    pub fn outcome_category(&self) -> PodOutcome {
        match &self.state {
            PodState::Known(ProcessPhase::Exited { exit, .. }) if exit.is_success() => PodOutcome::Succeeded,
            PodState::Known(ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }) => PodOutcome::Failed,
            PodState::Starting(_) | PodState::Pulling | PodState::Known(_) => PodOutcome::Active,
        }
    }

    /// Returns whether a reconcile would decide the same as for `before`. A change of the node alone is such
    /// a case.
    pub(super) fn is_equivalent_to(&self, before: &Self) -> bool {
        self.uid == before.uid
            && self.terminating == before.terminating
            && self.start_blocker == before.start_blocker
            && self.state == before.state
    }

    /// Records that its deletion was requested.
    pub(super) fn mark_terminating(&mut self) {
        self.terminating = true;
        if self.outcome_category() == PodOutcome::Active {
            self.state = PodState::Known(ProcessPhase::Stopping);
        }
    }
}

/// Category that a pod counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// Pending or running.
    Active,
    /// Ended with code 0.
    Succeeded,
    /// Ended otherwise.
    Failed,
}

/// Returns whether a pod of this name can be this worker of an instance, or its launcher. Names are
/// `<job>-launcher` for the first launcher, `<job>-launcher-<instance>`, and `<job>-worker-<n>`, where all
/// instances have equally many numbers.
fn is_name_of(name: &str, job: &str, instance: u32, worker: Option<u32>) -> bool {
    let rest = name.strip_prefix(job).and_then(|rest| rest.strip_prefix('-'));
    let Some(worker) = worker else {
        let further = || format!("launcher-{instance}");
        return rest.is_some_and(|rest| match instance {
            0 => rest == "launcher",
            _ => rest == further(),
        });
    };
    let number = rest.and_then(|rest| rest.strip_prefix("worker-"));
    let Some(number) =
        number.and_then(|number| number.parse::<u32>().ok().filter(|n| n.to_string() == number))
    else {
        return false;
    };
    match (number.checked_sub(worker), instance) {
        (Some(before), 0) => before == 0,
        (Some(before), _) => before % instance == 0 && before / instance > worker,
        (None, _) => false,
    }
}

/// Returns the numeric `resourceVersion` of an object; 0 if it has none.
pub(super) fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn parse_time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse::<Time>().ok().map(|time| time.0)
}

fn is_past(time: Timestamp, now: Timestamp) -> bool {
    time.plus(REPORT_DELAY) <= now
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = pod["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)
}

fn is_true(pod: &Value, kind: &str) -> bool {
    condition(pod, kind).is_some_and(|condition| condition["status"] == "True")
}

fn created(pod: &Value) -> Timestamp {
    parse_time(&pod["metadata"]["creationTimestamp"]).unwrap_or_default()
}

fn statuses<'a>(pod: &'a Value, of: &str) -> impl Iterator<Item = &'a Value> {
    pod["status"][of].as_array().into_iter().flatten()
}

fn state(pod: &Value) -> PodState {
    match pod["status"]["phase"].as_str() {
        // It has ended, whether or not it is being deleted: none of its processes uses the partition any
        // longer.
        Some("Succeeded") => PodState::Known(ended(pod, Exit::Code(0))),
        Some("Failed") => PodState::Known(failed(pod)),
        _ if !pod["metadata"]["deletionTimestamp"].is_null() => PodState::Known(ProcessPhase::Stopping),
        Some("Running") if is_true(pod, "Ready") => {
            let ready = condition(pod, "Ready").and_then(|ready| parse_time(&ready["lastTransitionTime"]));
            PodState::Known(ProcessPhase::Running {
                since: ready.unwrap_or_else(|| created(pod)),
            })
        }
        // It has run, and is not ready because a container has exited: the others continue or are about to
        // exit.
        Some("Running") if terminated_states(pod).next().is_some() => {
            PodState::Known(ProcessPhase::Running {
                since: terminated_states(pod)
                    .filter_map(|end| parse_time(&end["startedAt"]))
                    .min()
                    .unwrap_or_else(|| created(pod)),
            })
        }
        // A node that does not report may run the pod all the same.
        Some("Unknown") => PodState::Known(ProcessPhase::Running { since: created(pod) }),
        _ if is_pulling(pod) => PodState::Pulling,
        _ => PodState::Starting(last_progress(pod)),
    }
}

/// Returns the time of the last progress of a starting pod: its creation, the start of a container, or the
/// exit of an init container. Image pulls precede that time.
fn last_progress(pod: &Value) -> Timestamp {
    let all = statuses(pod, "initContainerStatuses").chain(statuses(pod, "containerStatuses"));
    let times = all.flat_map(|status| {
        let state = &status["state"];
        [&state["running"]["startedAt"], &state["terminated"]["finishedAt"]]
    });
    times.filter_map(parse_time).fold(created(pod), Ord::max)
}

/// Returns the terminated states of its containers.
fn terminated_states(pod: &Value) -> impl Iterator<Item = &Value> {
    let all = statuses(pod, "containerStatuses").map(|status| &status["state"]["terminated"]);
    all.filter(|end| !end.is_null())
}

/// Returns whether its sandbox exists and its containers are being created without an error. That time is
/// spent on image pulls, unless an init container runs, which all others wait for.
fn is_pulling(pod: &Value) -> bool {
    let first = || pod["spec"]["initContainers"].as_array().into_iter().flatten();
    // Sidecars, which run beside the other containers, do not delay them.
    let is_sidecar = |name: &Value| first().any(|of| of["name"] == *name && of["restartPolicy"] == "Always");
    let mut running =
        statuses(pod, "initContainerStatuses").filter(|status| !status["state"]["running"].is_null());
    if !running.all(|status| is_sidecar(&status["name"])) {
        return false;
    }
    let creating = |status: &Value| {
        matches!(
            status["state"]["waiting"]["reason"].as_str(),
            Some("ContainerCreating" | "PodInitializing")
        )
    };
    is_true(pod, "PodReadyToStartContainers") && statuses(pod, "containerStatuses").any(creating)
}

/// Returns the time since which a pod is not ready although its containers run.
fn unready_since(pod: &Value) -> Option<Timestamp> {
    let is_running = pod["status"]["phase"] == "Running" && terminated_states(pod).next().is_none();
    let ready = condition(pod, "Ready").filter(|ready| is_running && ready["status"] != "True")?;
    parse_time(&ready["lastTransitionTime"])
}

fn start_blocker(pod: &Value) -> Option<String> {
    let unplaced = condition(pod, "PodScheduled").filter(|placed| placed["status"] == "False");
    let waiting = statuses(pod, "initContainerStatuses")
        .chain(statuses(pod, "containerStatuses"))
        .map(|status| &status["state"]["waiting"])
        .find(|waiting| {
            let plain = ["ContainerCreating", "PodInitializing"];
            waiting["reason"]
                .as_str()
                .is_some_and(|reason| !plain.contains(&reason))
        });
    let reason = unplaced.or(waiting)?;
    let parts = [reason["reason"].as_str(), reason["message"].as_str()];
    let parts: Vec<&str> = parts
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    let text = parts.join(": ");
    (!text.is_empty()).then(|| text.chars().take(MAX_MESSAGE_CHARS).collect())
}

/// Returns the phase of a failed pod: by the exit codes of its containers, or lost without one.
fn failed(pod: &Value) -> ProcessPhase {
    let status = &pod["status"];
    // The kubelet or a controller ended the pod: its containers did not exit by themselves.
    let reason = status["reason"].as_str().unwrap_or_default();
    let failed = failed_container(pod).map(|status| &status["state"]["terminated"]);
    match failed {
        Some(end) if reason.is_empty() => exited(pod, end),
        _ => ProcessPhase::Lost {
            at: finished(pod),
            cause: loss_cause(pod, reason, failed),
        },
    }
}

/// Returns the status of the first container that failed.
fn failed_container(pod: &Value) -> Option<&Value> {
    let all = statuses(pod, "initContainerStatuses").chain(statuses(pod, "containerStatuses"));
    let exit_code = |status: &Value| status["state"]["terminated"]["exitCode"].as_i64();
    all.filter(|status| exit_code(status).is_some_and(|code| code != 0))
        .min_by_key(|status| parse_time(&status["state"]["terminated"]["finishedAt"]))
}

fn started(pod: &Value) -> Option<Timestamp> {
    let states = statuses(pod, "containerStatuses").map(|status| &status["state"]);
    let started = |state: &Value| {
        parse_time(&state["terminated"]["startedAt"]).or_else(|| parse_time(&state["running"]["startedAt"]))
    };
    states.filter_map(started).min()
}

/// Returns the loss of a pod that ended after its deletion was requested.
fn deleted_while_running(pod: &Value) -> Option<ProcessPhase> {
    let metadata = &pod["metadata"];
    // Kubernetes stores the deadline of the deletion, not the time of the request.
    let deletion_deadline = parse_time(&metadata["deletionTimestamp"])?;
    let grace = metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    let requested_at = Timestamp::from_millis(
        deletion_deadline
            .as_millis()
            .saturating_sub(grace.saturating_mul(1000)),
    );
    if !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let ends = terminated_states(pod).filter_map(|end| parse_time(&end["finishedAt"]));
    let at = ends.max().unwrap_or(requested_at);
    let disrupted = condition(pod, "DisruptionTarget").filter(|target| target["status"] == "True");
    let reason = disrupted.and_then(|target| target["reason"].as_str());
    // At the end the kubelet repeats the request without grace period. A pod that had exited before the
    // request is deleted at once instead.
    (grace == 0 || at >= requested_at).then(|| ProcessPhase::Lost {
        at,
        cause: reason.unwrap_or("deleted while it ran").to_owned(),
    })
}

/// Returns why a pod ended that did not exit by itself.
fn loss_cause(pod: &Value, reason: &str, end: Option<&Value>) -> String {
    let message = pod["status"]["message"].as_str().unwrap_or_default();
    let disrupted = condition(pod, "DisruptionTarget").filter(|target| target["status"] == "True");
    let disruption = disrupted.and_then(|target| target["reason"].as_str());
    let reason = match (reason, disruption) {
        ("", Some(disruption)) => disruption,
        ("", None) => end
            .and_then(|end| end["reason"].as_str())
            .unwrap_or("ended without an exit code"),
        (reason, _) => reason,
    };
    let text = if message.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {message}")
    };
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

fn exited(pod: &Value, end: &Value) -> ProcessPhase {
    let code = end["exitCode"]
        .as_i64()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX);
    let signal = end["signal"]
        .as_i64()
        .and_then(|signal| u8::try_from(signal).ok());
    let exit = match (signal, code) {
        (Some(signal), _) if signal > 0 => Exit::Signal(signal),
        // Container runtimes, like shells, add 128 to the number of the signal that ended a container.
        (_, 129..=192) => Exit::Signal(code - 128),
        (_, code) => Exit::Code(code),
    };
    let message = end["reason"].as_str().unwrap_or_default();
    ProcessPhase::Exited {
        exit,
        at: parse_time(&end["finishedAt"]).unwrap_or_else(|| finished(pod)),
        last_lines: tail(end["message"].as_str().unwrap_or_default()),
        cause: if message == "Error" {
            String::new()
        } else {
            message.to_owned()
        },
    }
}

fn ended(pod: &Value, exit: Exit) -> ProcessPhase {
    ProcessPhase::Exited {
        exit,
        at: finished(pod),
        last_lines: String::new(),
        cause: String::new(),
    }
}

/// Returns the time at which the last of its containers exited.
fn finished(pod: &Value) -> Timestamp {
    let ends = statuses(pod, "containerStatuses");
    let last = ends
        .filter_map(|status| parse_time(&status["state"]["terminated"]["finishedAt"]))
        .max();
    last.unwrap_or_else(|| created(pod))
}

/// Returns the end of a text.
pub(super) fn tail(text: &str) -> String {
    let from = text.len().saturating_sub(MAX_LOG_BYTES);
    let from = (from..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    text.get(from..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
