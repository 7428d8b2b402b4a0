//! What the operator knows of one Kubernetes Pod: as little as decisions need, so that thousands of them take little room.

use std::time::Duration;

use ipu_core::{Exit, JobKey, MissingProcess, ProcessFacts, ProcessPhase, Timestamp};
use serde_json::Value;

use crate::crd::Time;
use crate::resources::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, PodRole, ROLE, WORKER};

/// The most bytes that are kept of the end of a log.
const LOG_BYTES: usize = 2048;
/// How much later than it was to be gone a Pod is late, and how long it is not ready before that is worth a word: the kubelet rounds,
/// and tells how a container ended a moment after it tells that it is not ready.
const SLACK: Duration = Duration::from_secs(5);
/// The most characters that are kept of what Kubernetes says of a Pod that does not start.
const WORDS: usize = 300;

/// One Kubernetes Pod of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubePod {
    /// Its name.
    pub name: String,
    /// What tells it from an earlier one of its name.
    pub uid: String,
    /// The job that it says to be of, in its own namespace.
    pub job: JobKey,
    /// Whether the job is its controller, or was when it was heard of before: nobody else speaks for the job.
    pub(super) owned: bool,
    /// How new this is.
    pub version: u64,
    /// Which instance it belongs to.
    pub instance: u32,
    /// Which worker of the instance it is; none for a launcher.
    pub worker: Option<u32>,
    /// The attempt that it was made for.
    pub attempt: u32,
    /// The node that it was placed on.
    pub node: Option<String>,
    /// When it was placed there.
    pub scheduled: Option<Timestamp>,
    /// Whether its deletion was asked for: to ask again changes nothing.
    pub leaving: bool,
    /// Whether it is not there any more: kept because its end is still to be judged.
    pub(super) deleted: bool,
    /// Why it does not run yet, in Kubernetes' words.
    pub start_blocker: Option<String>,
    /// By when it is to be gone, if its deletion was asked for.
    gone_by: Option<Timestamp>,
    /// Since when it is not ready, if it runs and is not.
    unready: Option<Timestamp>,
    /// The loss that its end is to whoever still needed it, if it was deleted while it ran: how a process ends that is told to
    /// says nothing of its work.
    pub(super) deleted_while_running: Option<ProcessPhase>,
    /// The first of its containers that ended badly.
    pub(super) failed: Option<String>,
    /// Whether it was told to stop here: that it goes is no loss.
    told: bool,
    /// When the first of its containers began, init containers aside.
    began: Option<Timestamp>,
    state: PodState,
}

/// How far it is; what depends on the moment of looking is left open.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PodState {
    /// It could have started since then.
    Starting(Timestamp),
    /// Its images are being pulled, which counts for nothing.
    Pulling,
    /// Anything that is certain.
    Known(ProcessPhase),
}

impl KubePod {
    /// Reads an object of the API server; none if it is not called as one of a job is: a copy of a worker has its labels too.
    #[must_use]
    pub fn read(pod: &Value) -> Option<Self> {
        let metadata = &pod["metadata"];
        let label = |name: &str| metadata["labels"][name].as_str();
        let number = |name: &str| label(name).and_then(|text| text.parse().ok());
        let worker = match label(ROLE)? {
            role if role == PodRole::Worker.label() => Some(number(WORKER)?),
            role if role == PodRole::Launcher.label() => None,
            _ => return None,
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let job = JobKey::new(text(&metadata["namespace"])?, label(JOB_NAME)?, label(JOB_UID)?).ok()?;
        let (name, instance) = (text(&metadata["name"])?, number(INSTANCE)?);
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
            attempt: number(ATTEMPT)?,
            node: text(&pod["spec"]["nodeName"]).filter(|node| !node.is_empty()),
            scheduled: placed.and_then(|placed| parse_time(&placed["lastTransitionTime"])),
            leaving: !metadata["deletionTimestamp"].is_null(),
            deleted: false,
            start_blocker: start_blocker(pod),
            gone_by: parse_time(&metadata["deletionTimestamp"]),
            unready: unready(pod),
            deleted_while_running: deleted_while_running(pod),
            failed: failed_container(pod).and_then(|status| text(&status["name"])),
            told: false,
            began: began(pod),
            state: state(pod),
        })
    }

    /// That it was to be gone before `now`, and is not.
    pub(super) fn overdue(&self, now: Timestamp) -> Option<String> {
        let by = self
            .gone_by
            .filter(|by| self.outcome().is_none() && is_past(*by, now))?;
        Some(format!(
            "DeletionOverdue: it was to be gone by {}, and nothing says that it has ended{}: if the node is gone for good, delete it \
             from Kubernetes too",
            Time(by),
            self.place()
        ))
    }

    /// That it runs and has not been ready for a while at `now`.
    pub(super) fn not_ready(&self, now: Timestamp) -> Option<String> {
        let since = self.unready.filter(|since| is_past(*since, now))?;
        Some(format!("NotReady: since {}{}", Time(since), self.place()))
    }

    /// How long until one of both is to be said although nobody tells of anything, if it is not said yet.
    pub(super) fn next_report_in(&self, now: Timestamp) -> Option<Duration> {
        let late = self.gone_by.filter(|_| self.outcome().is_none());
        let moments = late.into_iter().chain(self.unready);
        let pauses = moments.map(|moment| moment.plus(SLACK).since(now));
        pauses.filter(|pause| !pause.is_zero()).min()
    }

    fn place(&self) -> String {
        let node = self.node.as_ref();
        node.map_or_else(String::new, |node| format!(" on node {node}"))
    }

    /// The process that is taken away with it if it is not there any more: none if it ended before, or was told to stop here.
    pub(super) fn is_evicted(&self) -> Option<MissingProcess> {
        let by_others = self.outcome().is_none() || self.deleted_while_running.is_some();
        let taken = self.owned && !self.told && by_others;
        taken.then_some(MissingProcess {
            worker: self.worker,
            attempt: self.attempt,
        })
    }

    /// Whether its end is to be known although it is gone: it was not told to stop here.
    pub(super) const fn keeps_outcome(&self) -> bool {
        self.owned && !self.told && !self.deleted && self.outcome().is_some()
    }

    /// Takes in that it is not there any more; whether its end is known.
    pub(super) const fn mark_deleted(&mut self) -> bool {
        self.deleted = true;
        self.outcome().is_some()
    }

    /// What is known of `before`, the same one, and is not told of the object.
    pub(super) fn merge_previous(&mut self, before: &Self) {
        let same = self.uid == before.uid;
        self.told |= same && before.told;
        // Who has taken its owner away has not ended the process.
        self.owned |= same && before.owned;
    }

    /// It is about to be told to stop.
    pub(super) fn will_be_stopped(&mut self) {
        self.told = true;
    }

    /// The process that it is, seen at `now`.
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

    /// Whether it is on its way to running, and none of its containers has run.
    pub(super) const fn has_not_run(&self) -> bool {
        self.began.is_none() && matches!(self.state, PodState::Starting(_) | PodState::Pulling)
    }

    /// How it ended; none if it has not.
    pub(super) const fn outcome(&self) -> Option<&ProcessPhase> {
        match &self.state {
            PodState::Known(end @ (ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. })) => Some(end),
            PodState::Known(_) | PodState::Starting(_) | PodState::Pulling => None,
        }
    }

    /// The process that it was a moment before it ended.
    pub(super) fn phase_before_exit(&self) -> ProcessPhase {
        match self.began {
            Some(since) => ProcessPhase::Running { since },
            // It was on its way, and will not arrive.
            None => ProcessPhase::Stopping,
        }
    }

    /// Whether it is still there to be counted as active, or how it ended.
    #[must_use]
    pub fn count(&self) -> PodOutcome {
        match &self.state {
            PodState::Known(ProcessPhase::Exited { exit, .. }) if exit.is_success() => PodOutcome::Succeeded,
            PodState::Known(ProcessPhase::Exited { .. } | ProcessPhase::Lost { .. }) => PodOutcome::Failed,
            PodState::Starting(_) | PodState::Pulling | PodState::Known(_) => PodOutcome::Active,
        }
    }

    /// Whether whoever looked at `before` would decide the same on this. That it was placed on a node is such a change.
    pub(super) fn is_equivalent_to(&self, before: &Self) -> bool {
        self.uid == before.uid
            && self.leaving == before.leaving
            && self.start_blocker == before.start_blocker
            && self.state == before.state
    }

    /// Takes in that it was told to stop.
    pub(super) fn stopping(&mut self) {
        self.leaving = true;
        if self.count() == PodOutcome::Active {
            self.state = PodState::Known(ProcessPhase::Stopping);
        }
    }
}

/// What a Kubernetes Pod counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// Pending or running.
    Active,
    /// Ended with code 0.
    Succeeded,
    /// Ended otherwise.
    Failed,
}

/// Whether this worker of an instance of a job, or its launcher, may be called so: `<job>-launcher` for the first, `<job>-launcher-<instance>`,
/// or `<job>-worker-<n>`, where each instance has as many numbers as the one before it.
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

/// The `resourceVersion` of an object; 0 if it has none.
pub(super) fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub(super) fn parse_time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse::<Time>().ok().map(|time| time.0)
}

fn is_past(moment: Timestamp, now: Timestamp) -> bool {
    moment.plus(SLACK) <= now
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
        // It has ended, whether or not it is being deleted: nothing of it uses the partition any more.
        Some("Succeeded") => PodState::Known(ended(pod, Exit::Code(0))),
        Some("Failed") => PodState::Known(failed(pod)),
        _ if !pod["metadata"]["deletionTimestamp"].is_null() => PodState::Known(ProcessPhase::Stopping),
        Some("Running") if is_true(pod, "Ready") => {
            let ready = condition(pod, "Ready").and_then(|ready| parse_time(&ready["lastTransitionTime"]));
            PodState::Known(ProcessPhase::Running {
                since: ready.unwrap_or_else(|| created(pod)),
            })
        }
        // It has run, and is no longer ready because a container has ended: the rest of it goes on, or is on its way out.
        Some("Running") if ended_ones(pod).next().is_some() => PodState::Known(ProcessPhase::Running {
            since: ended_ones(pod)
                .filter_map(|end| parse_time(&end["startedAt"]))
                .min()
                .unwrap_or_else(|| created(pod)),
        }),
        // A node that is not heard from may run it all the same.
        Some("Unknown") => PodState::Known(ProcessPhase::Running { since: created(pod) }),
        _ if is_pulling(pod) => PodState::Pulling,
        _ => PodState::Starting(got_on(pod)),
    }
}

/// When a Pod that starts got on last: when it was created, or one of its containers was started, or an init container has ended. The time
/// that its images took was before that.
fn got_on(pod: &Value) -> Timestamp {
    let all = statuses(pod, "initContainerStatuses").chain(statuses(pod, "containerStatuses"));
    let moments = all.flat_map(|status| {
        let state = &status["state"];
        [&state["running"]["startedAt"], &state["terminated"]["finishedAt"]]
    });
    moments.filter_map(parse_time).fold(created(pod), Ord::max)
}

/// How those of its containers ended that have.
fn ended_ones(pod: &Value) -> impl Iterator<Item = &Value> {
    let all = statuses(pod, "containerStatuses").map(|status| &status["state"]["terminated"]);
    all.filter(|end| !end.is_null())
}

/// Whether its sandbox stands and its containers are being created, without an error: what takes time then is the images, unless an init
/// container runs, for which all others wait.
fn is_pulling(pod: &Value) -> bool {
    let first = || pod["spec"]["initContainers"].as_array().into_iter().flatten();
    // Nobody waits for those that go on beside the others.
    let is_beside = |name: &Value| first().any(|of| of["name"] == *name && of["restartPolicy"] == "Always");
    let mut running =
        statuses(pod, "initContainerStatuses").filter(|status| !status["state"]["running"].is_null());
    if !running.all(|status| is_beside(&status["name"])) {
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

/// Since when a Pod is not ready although its containers run.
fn unready(pod: &Value) -> Option<Timestamp> {
    let runs = pod["status"]["phase"] == "Running" && ended_ones(pod).next().is_none();
    let ready = condition(pod, "Ready").filter(|ready| runs && ready["status"] != "True")?;
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
    let why = unplaced.or(waiting)?;
    let words = [why["reason"].as_str(), why["message"].as_str()];
    let words: Vec<&str> = words
        .into_iter()
        .flatten()
        .filter(|words| !words.is_empty())
        .collect();
    let whole = words.join(": ");
    (!whole.is_empty()).then(|| whole.chars().take(WORDS).collect())
}

/// A Pod that Kubernetes calls failed: by the exit codes of its containers, or without one.
fn failed(pod: &Value) -> ProcessPhase {
    let status = &pod["status"];
    // What the kubelet or a controller ended, its containers did not end by themselves.
    let reason = status["reason"].as_str().unwrap_or_default();
    let bad = failed_container(pod).map(|status| &status["state"]["terminated"]);
    match bad {
        Some(end) if reason.is_empty() => exited(pod, end),
        _ => ProcessPhase::Lost {
            at: finished(pod),
            cause: lost(pod, reason, bad),
        },
    }
}

/// The status of the first container that ended badly.
fn failed_container(pod: &Value) -> Option<&Value> {
    let all = statuses(pod, "initContainerStatuses").chain(statuses(pod, "containerStatuses"));
    let exit_code = |status: &Value| status["state"]["terminated"]["exitCode"].as_i64();
    all.filter(|status| exit_code(status).is_some_and(|code| code != 0))
        .min_by_key(|status| parse_time(&status["state"]["terminated"]["finishedAt"]))
}

fn began(pod: &Value) -> Option<Timestamp> {
    let states = statuses(pod, "containerStatuses").map(|status| &status["state"]);
    let began = |state: &Value| {
        parse_time(&state["terminated"]["startedAt"]).or_else(|| parse_time(&state["running"]["startedAt"]))
    };
    states.filter_map(began).min()
}

/// The end of a Pod that did not end before somebody deleted it.
fn deleted_while_running(pod: &Value) -> Option<ProcessPhase> {
    let metadata = &pod["metadata"];
    // Kubernetes writes by when it is to be gone, not when that was asked for.
    let gone_by = parse_time(&metadata["deletionTimestamp"])?;
    let grace = metadata["deletionGracePeriodSeconds"].as_u64().unwrap_or(0);
    let asked = Timestamp::from_millis(gone_by.as_millis().saturating_sub(grace.saturating_mul(1000)));
    if !matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let ends = ended_ones(pod).filter_map(|end| parse_time(&end["finishedAt"]));
    let at = ends.max().unwrap_or(asked);
    let disrupted = condition(pod, "DisruptionTarget").filter(|target| target["status"] == "True");
    let why = disrupted.and_then(|target| target["reason"].as_str());
    // At last the kubelet asks again, without grace: what had ended before anybody asked is gone at once instead.
    (grace == 0 || at >= asked).then(|| ProcessPhase::Lost {
        at,
        cause: why.unwrap_or("deleted while it ran").to_owned(),
    })
}

/// Why a Pod ended that did not end by itself.
fn lost(pod: &Value, reason: &str, end: Option<&Value>) -> String {
    let said = pod["status"]["message"].as_str().unwrap_or_default();
    let disrupted = condition(pod, "DisruptionTarget").filter(|target| target["status"] == "True");
    let why = disrupted.and_then(|target| target["reason"].as_str());
    let reason = match (reason, why) {
        ("", Some(why)) => why,
        ("", None) => end
            .and_then(|end| end["reason"].as_str())
            .unwrap_or("ended without an exit code"),
        (reason, _) => reason,
    };
    let whole = if said.is_empty() {
        reason.to_owned()
    } else {
        format!("{reason}: {said}")
    };
    whole.chars().take(WORDS).collect()
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
        // The runtime, as a shell, adds 128 to the number of the signal that ended a container.
        (_, 129..=192) => Exit::Signal(code - 128),
        (_, code) => Exit::Code(code),
    };
    let words = end["reason"].as_str().unwrap_or_default();
    ProcessPhase::Exited {
        exit,
        at: parse_time(&end["finishedAt"]).unwrap_or_else(|| finished(pod)),
        last_lines: tail(end["message"].as_str().unwrap_or_default()),
        cause: if words == "Error" {
            String::new()
        } else {
            words.to_owned()
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

/// When the last of its containers ended.
fn finished(pod: &Value) -> Timestamp {
    let ends = statuses(pod, "containerStatuses");
    let last = ends
        .filter_map(|status| parse_time(&status["state"]["terminated"]["finishedAt"]))
        .max();
    last.unwrap_or_else(|| created(pod))
}

/// The end of a text.
pub(super) fn tail(text: &str) -> String {
    let from = text.len().saturating_sub(LOG_BYTES);
    let from = (from..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    text.get(from..).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
