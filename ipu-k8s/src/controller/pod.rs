//! One Pod of a job: its place in the job, and its process as decisions need it.

use std::time::Duration;

use ipu_core::job::{Exit, ProcessFacts, ProcessPhase};
use ipu_core::{JobKey, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as KubeTime;
use kube::ResourceExt as _;

use crate::crd::{DEFAULT_CONTAINER, IpuJob, Time, job_container};
use crate::resources::{ATTEMPT, INSTANCE, JOB_UID, PodRole, ROLE, WORKER};

/// Maximum size of a stored log excerpt, in bytes.
const MAX_LOG_BYTES: usize = 2048;
/// Time after which an overdue deletion or missing readiness is reported. The kubelet rounds times, and
/// reports the exit of a container a moment after the lost readiness.
const REPORT_DELAY: Duration = Duration::from_secs(5);
/// Time within which the kubelet of a reachable node reports the end of a Pod that was deleted without grace
/// period. After it, the deletion itself counts as the statement that the process is gone.
const FORCED_END_DELAY: Duration = Duration::from_secs(20);
/// Grace period of a Pod that names none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;
/// Maximum length of a stored Kubernetes message, in characters.
const MAX_MESSAGE_CHARS: usize = 300;

/// One Pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobPod {
    pub(super) name: String,
    pub(super) uid: String,
    /// Index of its instance.
    pub(super) instance: u32,
    /// Index of the worker within the instance; `None` for a launcher.
    pub(super) worker: Option<u32>,
    /// Attempt that it was created for.
    pub(super) attempt: u32,
    /// Node that it is scheduled to.
    pub(super) node: Option<String>,
    /// Time at which it was scheduled.
    pub(super) scheduled: Option<Timestamp>,
    /// True if its deletion was requested.
    pub(super) terminating: bool,
    /// True if the operator's finalizer keeps it.
    pub(super) tracked: bool,
    /// True if its process ended because the Pod was deleted. Its exit then shows nothing about its work.
    pub(super) removed: bool,
    /// Reason why it does not run yet, as Kubernetes reports it.
    pub(super) start_blocker: Option<String>,
    /// Name of its first container that failed; that of the job takes precedence.
    pub(super) failed_container: Option<String>,
    /// A container that has not ended although the job's container has.
    pub(super) lingering: Option<LingeringContainer>,
    /// True if no process of the Pod can run any longer.
    is_over: bool,
    /// Phase of its process.
    pub(super) phase: ProcessPhase,
    /// Start time of its first container, init containers aside.
    started: Option<Timestamp>,
    /// Deadline of its deletion, if one was requested.
    deletion_deadline: Option<Timestamp>,
    /// Time since which it is running but not ready.
    unready_since: Option<Timestamp>,
}

/// A container that outlives the container of the job. Until it ends, the Pod holds the IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LingeringContainer {
    name: String,
    /// End of the job's container.
    since: Timestamp,
}

/// Category that a Pod counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodOutcome {
    /// Pending or running.
    Active,
    /// Ended with code 0.
    Succeeded,
    /// Ended otherwise.
    Failed,
}

impl JobPod {
    /// Reads a Pod of `job` as observed at `now`. Returns `None` for a Pod of another namespace, and for one
    /// that only has the labels: the job neither controls nor tracks it.
    ///
    /// Until it has ended, a Pod that is being deleted needs only the labels: the garbage collector may have
    /// removed its owner after the operator removed its finalizer.
    pub(super) fn read(pod: &Pod, job: &JobKey, now: Timestamp) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let number = |name: &str| labels.get(name)?.parse::<u32>().ok();
        let is_in_namespace = pod.metadata.namespace.as_deref() == Some(job.namespace.as_str());
        if !is_in_namespace || labels.get(JOB_UID)? != job.uid.as_str() {
            return None;
        }
        let worker = match labels.get(ROLE)?.as_str() {
            role if role == PodRole::Worker.label() => Some(number(WORKER)?),
            role if role == PodRole::Launcher.label() => None,
            _ => return None,
        };
        let tracked = is_tracked(pod);
        let mut owners = pod.owner_references().iter();
        let is_controlled =
            owners.any(|owner| owner.controller == Some(true) && owner.uid == job.uid.as_str());
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let is_over = has_ended(pod, now);
        let is_ending = terminating && !is_over;
        if !is_controlled && !tracked && !is_ending {
            return None;
        }
        let placed = condition(pod, "PodScheduled").filter(|placed| placed.status == "True");
        let is_own_end = ended_before_deletion(pod);
        let removed_at = removal_end(pod, now).filter(|_| !is_own_end);
        let cause = || disruption(pod).unwrap_or("deleted while it ran").to_owned();
        Some(Self {
            name: pod.name_any(),
            uid: pod.uid()?,
            instance: number(INSTANCE)?,
            worker,
            attempt: number(ATTEMPT)?,
            node: node_of(pod).map(str::to_owned),
            scheduled: placed
                .and_then(|placed| placed.last_transition_time.as_ref())
                .map(millis),
            terminating,
            tracked,
            removed: removed_at.is_some(),
            start_blocker: start_blocker(pod),
            failed_container: failed_container(pod).map(|(name, _)| name.to_owned()),
            lingering: lingering(pod).filter(|_| is_own_end && !is_over),
            is_over,
            phase: match removed_at {
                Some(at) => ProcessPhase::Lost { at, cause: cause() },
                None => phase(pod, now),
            },
            started: started(pod),
            deletion_deadline: pod.metadata.deletion_timestamp.as_ref().map(millis),
            unready_since: unready_since(pod).filter(|_| !is_own_end),
        })
    }

    /// Returns the process of the Pod.
    pub(super) fn facts(&self) -> ProcessFacts {
        ProcessFacts {
            index: self.worker.unwrap_or(0),
            attempt: self.attempt,
            phase: self.phase.clone(),
        }
    }

    /// Returns whether its process and all others of the Pod have ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.is_over
    }

    /// Returns a message if its process has ended at `now` and the Pod goes on.
    pub(super) fn holds_on(&self, now: Timestamp) -> Option<String> {
        let lingering = self.lingering.as_ref();
        let LingeringContainer { name, since } =
            lingering.filter(|lingering| is_past(lingering.since, now))?;
        Some(format!(
            "LingeringContainer: the process of the job ended at {}, but container {name} has not, so that the Pod \
             holds its IPUs: let {name} end with the process, make it an init container with restartPolicy Always, or \
             delete the job",
            Time(*since)
        ))
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
    pub(super) fn outcome(&self) -> PodOutcome {
        match &self.phase {
            ProcessPhase::Exited { exit, .. } if exit.is_success() => PodOutcome::Succeeded,
            ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. } => PodOutcome::Failed,
            _ => PodOutcome::Active,
        }
    }

    /// Returns whether its process runs and is ready.
    pub(super) const fn is_ready(&self) -> bool {
        matches!(self.phase, ProcessPhase::Running { .. })
            && self.unready_since.is_none()
            && !self.terminating
    }

    /// Returns a message if its deletion is overdue at `now`.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<String> {
        let due = self
            .deletion_deadline
            .filter(|due| !self.has_ended() && is_past(*due, now))?;
        Some(format!(
            "DeletionOverdue: its deletion was due by {}, and its exit is not reported{}: if the node is lost for good, delete the \
             Pod by force",
            Time(due),
            self.node_suffix()
        ))
    }

    /// Returns a message if the Pod runs and has not been ready for a while at `now`.
    pub(super) fn not_ready(&self, now: Timestamp) -> Option<String> {
        let since = self.unready_since.filter(|since| is_past(*since, now))?;
        Some(format!("NotReady: since {}{}", Time(since), self.node_suffix()))
    }

    /// Returns the time until it is observed differently without a change of the Pod.
    pub(super) fn next_report_in(&self, now: Timestamp) -> Option<Duration> {
        let due = self.deletion_deadline.filter(|_| !self.has_ended());
        let forced = due.map(|due| due.plus(FORCED_END_DELAY));
        let reports = due
            .into_iter()
            .chain(self.unready_since)
            .chain(self.lingering.as_ref().map(|lingering| lingering.since))
            .map(|time| time.plus(REPORT_DELAY));
        let delays = reports.chain(forced).map(|time| time.since(now));
        delays.filter(|delay| !delay.is_zero()).min()
    }

    fn node_suffix(&self) -> String {
        let node = self.node.as_ref();
        node.map_or_else(String::new, |node| format!(" on node {node}"))
    }
}

/// Returns whether the operator's finalizer keeps a Pod.
pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers()
        .iter()
        .any(|finalizer| finalizer == IpuJob::POD_FINALIZER)
}

/// Returns whether no process of a Pod can run any longer at `now`.
pub(super) fn has_ended(pod: &Pod, now: Timestamp) -> bool {
    is_terminal(pod) || removal_end(pod, now).is_some()
}

/// Drops the parts of a Pod that no decision needs, to save memory.
pub(super) fn compact(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|name, _| name == DEFAULT_CONTAINER);
    }
    let spec = pod.spec.take().unwrap_or_default();
    let compact = |container: Container| Container {
        name: container.name,
        restart_policy: container.restart_policy,
        ..Container::default()
    };
    pod.spec = Some(PodSpec {
        node_name: spec.node_name,
        containers: spec.containers.into_iter().map(compact).collect(),
        init_containers: Some(spec.init_containers.into_iter().flatten().map(compact).collect()),
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        ..PodSpec::default()
    });
}

/// Converts a time of Kubernetes; a time before 1970 is 1970.
pub(super) fn millis(time: &KubeTime) -> Timestamp {
    Timestamp::from_millis(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}

/// Returns the end of a text.
pub(super) fn tail(text: &str) -> String {
    let from = text.len().saturating_sub(MAX_LOG_BYTES);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at));
    text.get(from.unwrap_or(text.len())..)
        .unwrap_or_default()
        .to_owned()
}

fn is_past(time: Timestamp, now: Timestamp) -> bool {
    time.plus(REPORT_DELAY) <= now
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

fn phase_text(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

fn is_terminal(pod: &Pod) -> bool {
    matches!(phase_text(pod), "Succeeded" | "Failed")
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Returns the reason of a disruption, such as an eviction.
fn disruption(pod: &Pod) -> Option<&str> {
    let target = condition(pod, "DisruptionTarget").filter(|target| target.status == "True")?;
    target.reason.as_deref()
}

fn created(pod: &Pod) -> Timestamp {
    pod.metadata
        .creation_timestamp
        .as_ref()
        .map(millis)
        .unwrap_or_default()
}

fn containers(pod: &Pod) -> &[ContainerStatus] {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref());
    statuses.unwrap_or_default()
}

fn init_containers(pod: &Pod) -> &[ContainerStatus] {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.init_container_statuses.as_deref());
    statuses.unwrap_or_default()
}

fn states(statuses: &[ContainerStatus]) -> impl Iterator<Item = &ContainerState> {
    statuses.iter().filter_map(|status| status.state.as_ref())
}

/// Returns the terminated states of its containers.
fn terminated(pod: &Pod) -> impl Iterator<Item = &ContainerStateTerminated> {
    states(containers(pod)).filter_map(|state| state.terminated.as_ref())
}

/// Returns the end of the job's container, with its name; none while it runs, or if it never did.
fn own_end(pod: &Pod) -> Option<(&str, &ContainerStateTerminated)> {
    let names = pod.spec.iter().flat_map(|spec| &spec.containers);
    let name = job_container(
        pod.metadata.annotations.as_ref(),
        names.map(|container| &*container.name),
    )?;
    let own = containers(pod).iter().find(|status| status.name == name)?;
    Some((name, own.state.as_ref()?.terminated.as_ref()?))
}

/// Returns whether the job's container ended by itself: not after the deletion of the Pod was requested, and
/// not because the kubelet or a controller ended the Pod.
fn ended_before_deletion(pod: &Pod) -> bool {
    let is_ended_by_node = pod
        .status
        .as_ref()
        .is_some_and(|status| status.reason.as_deref().is_some_and(|reason| !reason.is_empty()));
    let end = own_end(pod)
        .and_then(|(_, end)| end.finished_at.as_ref())
        .map(millis);
    let requested = deletion_request(pod);
    end.is_some_and(|end| !is_ended_by_node && requested.is_none_or(|requested| end < requested))
}

/// Returns a container that has not ended although the job's container has: it runs, or waits for its image.
/// Sidecars that are init containers end with the others.
fn lingering(pod: &Pod) -> Option<LingeringContainer> {
    let (_, end) = own_end(pod)?;
    let since = end.finished_at.as_ref().map(millis)?;
    let has_ended = |status: &ContainerStatus| {
        status
            .state
            .as_ref()
            .is_some_and(|state| state.terminated.is_some())
    };
    let name = containers(pod)
        .iter()
        .find(|status| !has_ended(status))?
        .name
        .clone();
    Some(LingeringContainer { name, since })
}

/// Returns the time at which the deletion of a Pod was requested.
fn deletion_request(pod: &Pod) -> Option<Timestamp> {
    // Kubernetes stores the deadline of the deletion, not the time of the request. Once the kubelet has ended
    // the Pod, it deletes it without grace period, and the deadline is that moment: the request was at most
    // the Pod's own grace period earlier.
    let deadline = pod.metadata.deletion_timestamp.as_ref().map(millis)?;
    let seconds = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    let own_grace = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let longest = match seconds(pod.metadata.deletion_grace_period_seconds.unwrap_or(0)) {
        Duration::ZERO => seconds(own_grace.unwrap_or(DEFAULT_GRACE_SECONDS)),
        grace => grace,
    };
    Some(Timestamp::from_millis(
        deadline.as_millis().saturating_sub(millis_of(longest)),
    ))
}

/// Returns the time at which the process of a deleted Pod ended, if the deletion ended it: it had not exited
/// before, it never ran, or a client deleted the Pod by force and the node does not report its end.
fn removal_end(pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    let requested = deletion_request(pod)?;
    if is_terminal(pod) {
        let end = terminated(pod)
            .filter_map(|end| end.finished_at.as_ref())
            .map(millis)
            .max();
        return Some(end.unwrap_or(requested)).filter(|end| *end >= requested);
    }
    let never_ran = node_of(pod).is_none();
    let deadline = pod.metadata.deletion_timestamp.as_ref().map(millis)?;
    let is_forced = pod.metadata.deletion_grace_period_seconds.unwrap_or(0) <= 0
        && deadline.plus(FORCED_END_DELAY) <= now;
    (never_ran || is_forced).then_some(requested)
}

fn millis_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the phase of a process whose end, if it has one, was its own.
fn phase(pod: &Pod, now: Timestamp) -> ProcessPhase {
    let running = |since| ProcessPhase::Running { since };
    let ready = condition(pod, "Ready").filter(|ready| ready.status == "True");
    if let Some((_, end)) = own_end(pod).filter(|_| ended_before_deletion(pod)) {
        return exited(pod, end);
    }
    match phase_text(pod) {
        "Succeeded" => ProcessPhase::Exited {
            exit: Exit::Code(0),
            at: finished(pod),
            last_lines: String::new(),
            cause: String::new(),
        },
        "Failed" => failed(pod),
        _ if pod.metadata.deletion_timestamp.is_some() => ProcessPhase::Stopping,
        // A node that does not report may run the Pod all the same.
        "Unknown" => running(created(pod)),
        "Running" if ready.is_some() => {
            let since = ready
                .and_then(|ready| ready.last_transition_time.as_ref())
                .map(millis);
            running(since.unwrap_or_else(|| created(pod)))
        }
        // It has run, and is not ready because a container has exited: the others continue or are about to
        // exit.
        "Running" if terminated(pod).next().is_some() => {
            let starts = terminated(pod)
                .filter_map(|end| end.started_at.as_ref())
                .map(millis);
            running(starts.min().unwrap_or_else(|| created(pod)))
        }
        _ => ProcessPhase::Starting {
            since: if is_pulling(pod) { now } else { last_progress(pod) },
            cause: start_blocker(pod).unwrap_or_default(),
        },
    }
}

/// Returns the time of the last progress of a starting Pod: its creation, the start of a container, or the
/// exit of an init container. Image pulls precede that time.
fn last_progress(pod: &Pod) -> Timestamp {
    let all = states(init_containers(pod)).chain(states(containers(pod)));
    let times = all.flat_map(|state| {
        let started = state
            .running
            .as_ref()
            .and_then(|running| running.started_at.as_ref());
        let finished = state.terminated.as_ref().and_then(|end| end.finished_at.as_ref());
        [started, finished]
    });
    times.flatten().map(millis).fold(created(pod), Ord::max)
}

/// Returns whether its sandbox exists and its containers are being created without an error. That time is
/// spent on image pulls, unless an init container runs, which all others wait for.
fn is_pulling(pod: &Pod) -> bool {
    let first = || {
        pod.spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten())
    };
    // Sidecars run next to the other containers and do not delay them.
    let is_sidecar = |name: &str| {
        first()
            .any(|container| container.name == name && container.restart_policy.as_deref() == Some("Always"))
    };
    let is_running =
        |status: &&ContainerStatus| status.state.as_ref().is_some_and(|state| state.running.is_some());
    let mut running = init_containers(pod).iter().filter(is_running);
    let has_sandbox = condition(pod, "PodReadyToStartContainers").is_some_and(|ready| ready.status == "True");
    let mut waiting = states(containers(pod)).filter_map(|state| state.waiting.as_ref());
    running.all(|status| is_sidecar(&status.name))
        && has_sandbox
        && waiting.any(|waiting| waiting.reason.as_deref().is_some_and(is_routine))
}

/// Returns whether a reason to wait is part of every start.
fn is_routine(reason: &str) -> bool {
    matches!(reason, "ContainerCreating" | "PodInitializing")
}

/// Returns the time since which a Pod is not ready although one of its containers runs.
fn unready_since(pod: &Pod) -> Option<Timestamp> {
    let is_running =
        phase_text(pod) == "Running" && states(containers(pod)).any(|state| state.running.is_some());
    let ready = condition(pod, "Ready").filter(|ready| is_running && ready.status != "True")?;
    ready.last_transition_time.as_ref().map(millis)
}

fn start_blocker(pod: &Pod) -> Option<String> {
    let unplaced = condition(pod, "PodScheduled").filter(|placed| placed.status == "False");
    let unplaced = unplaced.map(|placed| (placed.reason.as_deref(), placed.message.as_deref()));
    let mut waiting = states(init_containers(pod))
        .chain(states(containers(pod)))
        .filter_map(|state| state.waiting.as_ref())
        .filter(|waiting| {
            waiting
                .reason
                .as_deref()
                .is_some_and(|reason| !is_routine(reason))
        });
    let waiting = || {
        waiting
            .next()
            .map(|waiting| (waiting.reason.as_deref(), waiting.message.as_deref()))
    };
    let (reason, message) = unplaced.or_else(waiting)?;
    let parts = [reason, message]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty());
    let text = parts.collect::<Vec<_>>().join(": ");
    (!text.is_empty()).then(|| text.chars().take(MAX_MESSAGE_CHARS).collect())
}

/// Returns the phase of a failed Pod: by the exit codes of its containers, or lost without one.
fn failed(pod: &Pod) -> ProcessPhase {
    let reason = pod
        .status
        .as_ref()
        .and_then(|status| status.reason.as_deref())
        .unwrap_or_default();
    match failed_container(pod) {
        Some((_, end)) if reason.is_empty() => exited(pod, end),
        // The kubelet or a controller ended the Pod: its containers did not exit by themselves.
        end => ProcessPhase::Lost {
            at: finished(pod),
            cause: loss_cause(pod, reason, end.map(|(_, end)| end)),
        },
    }
}

/// Returns the name and the end of the job's container if it has failed, else of the first container that
/// failed. Within a second, in which a sidecar is stopped after the process, it is not an init container.
fn failed_container(pod: &Pod) -> Option<(&str, &ContainerStateTerminated)> {
    if let Some(own) = own_end(pod).filter(|(_, end)| end.exit_code != 0) {
        return Some(own);
    }
    let all = containers(pod).iter().chain(init_containers(pod));
    let ends =
        all.filter_map(|status| Some((status.name.as_str(), status.state.as_ref()?.terminated.as_ref()?)));
    ends.filter(|(_, end)| end.exit_code != 0)
        .min_by_key(|(_, end)| end.finished_at.as_ref().map(millis))
}

fn started(pod: &Pod) -> Option<Timestamp> {
    let starts = states(containers(pod)).filter_map(|state| {
        let ended = state.terminated.as_ref().and_then(|end| end.started_at.as_ref());
        ended.or_else(|| state.running.as_ref()?.started_at.as_ref())
    });
    starts.map(millis).min()
}

/// Returns why a Pod ended that did not exit by itself.
fn loss_cause(pod: &Pod, reason: &str, end: Option<&ContainerStateTerminated>) -> String {
    let message = pod
        .status
        .as_ref()
        .and_then(|status| status.message.as_deref())
        .unwrap_or_default();
    let reason = match reason {
        "" => disruption(pod)
            .or_else(|| end?.reason.as_deref())
            .unwrap_or("ended without an exit code"),
        reason => reason,
    };
    let text = match message {
        "" => reason.to_owned(),
        message => format!("{reason}: {message}"),
    };
    text.chars().take(MAX_MESSAGE_CHARS).collect()
}

fn exited(pod: &Pod, end: &ContainerStateTerminated) -> ProcessPhase {
    let code = u8::try_from(end.exit_code).unwrap_or(u8::MAX);
    let signal = end.signal.and_then(|signal| u8::try_from(signal).ok());
    let exit = match (signal, code) {
        (Some(signal), _) if signal > 0 => Exit::Signal(signal),
        // Container runtimes, like shells, add 128 to the number of the signal that ended a container.
        (_, 129..=192) => Exit::Signal(code - 128),
        (_, code) => Exit::Code(code),
    };
    ProcessPhase::Exited {
        exit,
        at: end.finished_at.as_ref().map_or_else(|| finished(pod), millis),
        last_lines: tail(end.message.as_deref().unwrap_or_default()),
        cause: end
            .reason
            .clone()
            .filter(|reason| !matches!(&**reason, "Error" | "Completed"))
            .unwrap_or_default(),
    }
}

/// Returns the time at which the last of its containers exited.
fn finished(pod: &Pod) -> Timestamp {
    let ends = terminated(pod)
        .filter_map(|end| end.finished_at.as_ref())
        .map(millis);
    ends.max().unwrap_or_else(|| created(pod))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn ended(metadata: &Value, containers: &Value, init_containers: &Value) -> JobPod {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {"containers": [], "nodeName": "n", "terminationGracePeriodSeconds": 10},
            "status": {"phase": "Failed", "containerStatuses": containers, "initContainerStatuses": init_containers},
        }))
        .expect("a Pod");
        read(pod, "2027-01-15T08:00:00Z")
    }

    fn at(time: &str) -> Timestamp {
        Timestamp::from_millis(
            u64::try_from(time.parse::<jiff::Timestamp>().expect("a time").as_millisecond())
                .expect("a time after 1970"),
        )
    }

    fn read(pod: Pod, now: &str) -> JobPod {
        read_in("default", pod, now).expect("a Pod of the job")
    }

    /// Reads a Pod of a namespace that has the labels and the finalizer of a job of the namespace `default`.
    fn read_in(namespace: &str, mut pod: Pod, now: &str) -> Option<JobPod> {
        let key = JobKey::new("default", "training", "u").expect("a key");
        pod.metadata.name = Some("training-worker-0".to_owned());
        pod.metadata.namespace = Some(namespace.to_owned());
        pod.metadata.uid = Some("p".to_owned());
        pod.metadata.finalizers = Some(vec![IpuJob::POD_FINALIZER.to_owned()]);
        let labels = [
            (JOB_UID, "u"),
            (ROLE, "worker"),
            (WORKER, "0"),
            (INSTANCE, "0"),
            (ATTEMPT, "0"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        pod.metadata.labels = Some(labels.into());
        compact(&mut pod);
        JobPod::read(&pod, &key, at(now))
    }

    fn container(name: &str, code: i32, second: u32) -> Value {
        let end = json!({"exitCode": code, "finishedAt": format!("2026-01-01T00:00:{second:02}Z")});
        json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": end}})
    }

    #[test]
    fn a_pod_of_another_namespace_is_none_of_the_job() {
        let now = "2026-01-01T00:00:40Z";
        assert!(read_in("default", Pod::default(), now).is_some());
        assert_eq!(read_in("other", Pod::default(), now), None);
    }

    #[test]
    fn an_exit_within_the_grace_period_of_a_deletion_is_caused_by_it() {
        // The kubelet has deleted the ended Pod without grace period, which moves the time of the deletion.
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 0});
        for (second, is_removed) in [(29, false), (30, true), (39, true)] {
            let pod = ended(&deleted, &json!([container("main", 143, second)]), &json!([]));
            assert_eq!(pod.removed, is_removed, "{second}");
        }
        // Before, the deadline and the grace period of the request are known.
        let deleting = json!({"deletionTimestamp": "2026-01-01T00:00:40Z", "deletionGracePeriodSeconds": 5});
        for (second, is_removed) in [(34, false), (35, true)] {
            let pod = ended(&deleting, &json!([container("main", 0, second)]), &json!([]));
            assert_eq!(pod.removed, is_removed, "{second}");
        }
    }

    /// Returns a Pod whose job's container `main` ended with `code` while its container `proxy` has a state,
    /// at second 40.
    fn lingering_pod(code: i32, metadata: &Value, state: &Value) -> JobPod {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {"nodeName": "n", "containers": [{"name": "proxy"}, {"name": "main"}], "terminationGracePeriodSeconds": 10},
            "status": {"phase": "Running", "containerStatuses": [container("main", code, 20), {
                "name": "proxy", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state,
            }]},
        }))
        .expect("a Pod");
        let annotation = (
            "kubectl.kubernetes.io/default-container".to_owned(),
            "main".to_owned(),
        );
        pod.metadata.annotations = Some([annotation].into());
        read(pod, "2026-01-01T00:00:40Z")
    }

    #[test]
    fn a_process_ends_with_its_container_while_the_pod_holds_its_ipus() {
        let now = at("2026-01-01T00:00:40Z");
        let (runs, waits) = (
            json!({"running": {}}),
            json!({"waiting": {"reason": "ImagePullBackOff"}}),
        );
        for (code, state, outcome) in [
            (0, &runs, PodOutcome::Succeeded),
            (0, &waits, PodOutcome::Succeeded),
            (3, &runs, PodOutcome::Failed),
        ] {
            let pod = lingering_pod(code, &json!({}), state);
            assert_eq!(pod.outcome(), outcome);
            assert!(!pod.has_ended(), "the sidecar may use the partition");
            let text = pod.holds_on(now).unwrap_or_default();
            assert!(text.contains("container proxy has not"), "{text}");
            assert_eq!(pod.not_ready(now), None);
        }
    }

    #[test]
    fn a_deletion_after_the_end_of_the_process_does_not_change_its_outcome() {
        let deleted = |request: u32| {
            let deadline = format!("2026-01-01T00:00:{:02}Z", request + 10);
            let pod = lingering_pod(
                3,
                &json!({"deletionTimestamp": deadline, "deletionGracePeriodSeconds": 10}),
                &json!({"running": {}}),
            );
            (pod.outcome(), pod.removed, pod.has_ended())
        };
        assert_eq!(deleted(30), (PodOutcome::Failed, false, false));
        // The container ended within the grace period, because of the deletion.
        assert_eq!(deleted(15), (PodOutcome::Active, false, false));
    }

    #[test]
    fn a_process_is_judged_and_not_the_sidecar_that_ends_in_the_same_second() {
        let pod = ended(
            &json!({}),
            &json!([container("main", 1, 5)]),
            &json!([container("sidecar", 143, 5)]),
        );
        assert_eq!(pod.failed_container.as_deref(), Some("main"));
        assert!(matches!(
            pod.phase,
            ProcessPhase::Exited {
                exit: Exit::Code(1),
                ..
            }
        ));
    }
}
