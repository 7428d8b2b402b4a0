//! The order of failures that happen together: whether all of them have been reported, and which process
//! failed first.
//!
//! When one of many processes fails, the others usually fail within the same moment. The kubelet polls its
//! containers once a second, reports one Pod after the other in any order, and writes times in whole seconds.
//! So a failure is not judged at once. While other processes of its attempt still run, the operator plans as
//! if the Pod still ran, until [`SETTLE_TIME`] has passed since the last failure. Of several equal failures,
//! the first is the process whose log ends first: log lines have precise times. The log of a launcher may
//! also contain more than the kubelet read when the container exited.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use ipu_core::Timestamp;
use ipu_core::job::{Exit, JobKind, JobSpec, JobStatus, ProcessPhase};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, LogParams};

use super::mpirun_output::{self, RankFailure};
use super::pod::{JobPod, PodOutcome};

/// Minimum distance of two Kubernetes timestamps that orders them: they are whole seconds, and events near
/// the turn of a second may be recorded in either order.
pub(super) const TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(1);
/// Time since the last failure after which failures are judged while other processes run: the rounding of its
/// time, two polls of the kubelet, and its report.
const SETTLE_TIME: Duration = Duration::from_secs(4);
/// Longest time since the first failure for which the judgement is delayed.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(8);
/// Maximum number of concurrent log requests.
const MAX_CONCURRENT_LOGS: usize = 16;
/// Maximum number of log requests for one failure.
const MAX_LOGS: usize = 256;
/// Timeout of a log request: the outcome of an attempt waits for the log, and is decided without it.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which no further logs are read in one reconciliation.
const MAX_GATHER_TIME: Duration = Duration::from_secs(30);
/// Number of log lines that are read of a launcher. The final message of `mpirun` has about ten lines, and
/// other processes may write after it.
const MAX_LOG_LINES: i64 = 64;
/// Maximum size of those lines: a line has no length limit. A longer excerpt lacks its end, and yields no
/// evidence.
const MAX_LOG_BYTES: i64 = 1 << 20;

/// Evidence about failures in addition to the status of the Pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FailureEvidence {
    /// Names of Pods that failed a moment ago and are not judged yet.
    pub(super) early: BTreeSet<String>,
    /// Time until they are judged.
    pub(super) judged_in: Option<Duration>,
    /// Time of the last log line by Pod name.
    pub(super) last_log_time: BTreeMap<String, Timestamp>,
    /// End of a launcher's log by Pod name, if it identifies a rank and the excerpt of the kubelet does not.
    pub(super) logs: BTreeMap<String, String>,
}

impl FailureEvidence {
    /// Gathers the evidence about the failures of the open attempts of a job.
    pub(super) async fn gather(
        client: &Client,
        spec: &JobSpec,
        status: &JobStatus,
        pods: &[JobPod],
        now: Timestamp,
    ) -> Self {
        let mut evidence = Self::default();
        let mut instances: BTreeMap<u32, Vec<&JobPod>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| is_judged(pod, status)) {
            instances.entry(pod.instance).or_default().push(pod);
        }
        let api = Api::namespaced(client.clone(), spec.key().namespace.as_str());
        let started = Instant::now();
        for pods in instances.into_values() {
            match settle_delay(&pods, spec, now) {
                // Logs are further evidence, which a node that does not respond cannot delay.
                None if started.elapsed() > MAX_GATHER_TIME => {}
                Some(delay) => {
                    let failed = pods.iter().filter(|pod| pod.outcome() == PodOutcome::Failed);
                    evidence.early.extend(failed.map(|pod| pod.name.clone()));
                    let earliest = evidence.judged_in.map_or(delay, |earliest| earliest.min(delay));
                    evidence.judged_in = Some(earliest);
                }
                None => {
                    let times = last_log_times(&api, &ambiguous_failures(&pods)).await;
                    evidence.last_log_time.extend(distinct_millis(times));
                    evidence.logs.extend(log_of_launcher(&api, &pods).await);
                }
            }
        }
        evidence
    }

    /// Returns the phase of a Pod's process in the light of the evidence.
    pub(super) fn refine(&self, pod: &JobPod) -> ProcessPhase {
        if self.early.contains(&pod.name) {
            return pod.phase_before_exit();
        }
        let mut phase = pod.phase.clone();
        if let ProcessPhase::Exited {
            at,
            cause,
            last_lines,
            ..
        } = &mut phase
        {
            if let Some(log) = self.logs.get(&pod.name) {
                *last_lines = super::pod::tail(log);
            }
            if let Some(written) = self.last_log_time.get(&pod.name) {
                *at = refine_exit_time(*at, *written);
            }
            if let Some(failure) = self.reported_rank(pod) {
                *cause = failure.cause();
            }
        }
        phase
    }

    /// Returns the first failure of a rank that a failed launcher reports, if the launcher exited as that
    /// rank did.
    pub(super) fn reported_rank(&self, pod: &JobPod) -> Option<RankFailure> {
        reported_rank(pod).or_else(|| rank_failure_in(pod, self.logs.get(&pod.name)?))
    }
}

/// Returns the log of a launcher among `pods` if it identifies a rank and the launcher's status does not.
async fn log_of_launcher(api: &Api<Pod>, pods: &[&JobPod]) -> Option<(String, String)> {
    let launcher = pods.iter().find(|pod| is_cut_off(pod))?;
    let params = LogParams {
        container: launcher.failed_container.clone(),
        tail_lines: Some(MAX_LOG_LINES),
        limit_bytes: Some(MAX_LOG_BYTES),
        ..LogParams::default()
    };
    let log = read_log(api, &launcher.name, &params).await?;
    rank_failure_in(launcher, &log)?;
    Some((launcher.name.clone(), log))
}

/// Returns the time of the last log line of each Pod since the Unix epoch, with nanosecond precision. Pods
/// with an empty or unavailable log are omitted.
async fn last_log_times(api: &Api<Pod>, pods: &[&JobPod]) -> Vec<(String, Duration)> {
    let requests = pods.iter().take(MAX_LOGS).map(|pod| {
        let name = pod.name.clone();
        let params = LogParams {
            container: pod.failed_container.clone(),
            tail_lines: Some(1),
            timestamps: true,
            ..LogParams::default()
        };
        async move {
            let line = read_log(api, &name, &params).await?;
            let time = line.split_whitespace().next().and_then(since_epoch)?;
            Some((name, time))
        }
    });
    let requests: Vec<_> = requests.collect();
    let responses = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_LOGS);
    responses.filter_map(std::future::ready).collect().await
}

async fn read_log(api: &Api<Pod>, name: &str, params: &LogParams) -> Option<String> {
    let log = tokio::time::timeout(LOG_TIMEOUT, api.logs(name, params)).await;
    log.ok()?.ok()
}

/// Parses a timestamp of a log line: `2026-03-22T10:10:31.123456789Z`.
fn since_epoch(time: &str) -> Option<Duration> {
    let time: jiff::Timestamp = time.parse().ok()?;
    Duration::try_from(time.as_duration()).ok()
}

/// Returns whether a launcher failed by itself, without a reason in the kubelet's excerpt, which may miss the
/// last lines.
fn is_cut_off(pod: &JobPod) -> bool {
    matches!(&pod.phase, ProcessPhase::Exited { exit, cause, .. }
        if pod.worker.is_none() && !exit.is_success() && cause.is_empty() && reported_rank(pod).is_none())
}

/// Returns whether the exit of a Pod is judged: it belongs to the current attempt of an instance without an
/// outcome.
fn is_judged(pod: &JobPod, status: &JobStatus) -> bool {
    status
        .instance(pod.instance)
        .is_none_or(|memory| memory.outcome.is_none() && memory.attempt <= pod.attempt)
}

/// Returns the delay before the failures among `pods`, all Pods of an instance, are judged. Returns `None` if
/// they are judged now, or if there are none.
fn settle_delay(pods: &[&JobPod], spec: &JobSpec, now: Timestamp) -> Option<Duration> {
    let failed = || pods.iter().filter(|pod| pod.outcome() == PodOutcome::Failed);
    let ends: Vec<Timestamp> = failed().filter_map(|pod| end_of(&pod.phase)).collect();
    let has_launcher = !matches!(spec.shape(), JobKind::Workers);
    let mut launchers = pods.iter().filter(|pod| pod.worker.is_none()).peekable();
    // Without a launcher that may have started something, the workers are independent.
    let is_independent = has_launcher && launchers.peek().is_none();
    // The report of a launcher about its ranks is complete, unless the rank was killed: its whole Pod may
    // have been.
    let is_reported = launchers.any(|pod| {
        let killed = Exit::Signal(9).code();
        pod.outcome() == PodOutcome::Succeeded
            || reported_rank(pod).is_some_and(|failure| failure.exit.code() != killed)
    });
    let is_leaving = failed().any(|pod| pod.terminating);
    let all_ended = pods.iter().all(|pod| pod.outcome() != PodOutcome::Active);
    if is_independent || is_reported || is_leaving || all_ended {
        return None;
    }
    let (first, last) = (ends.iter().min()?, ends.iter().max()?);
    // The clock of a node that is ahead must not delay the judgement for longer.
    let due = last.plus(SETTLE_TIME).min(first.plus(MAX_SETTLE_TIME));
    let delay = due.since(now);
    (!delay.is_zero() && delay <= SETTLE_TIME).then_some(delay)
}

const fn end_of(phase: &ProcessPhase) -> Option<Timestamp> {
    match phase {
        ProcessPhase::Exited { at, .. } | ProcessPhase::Lost { at, .. } => Some(*at),
        _ => None,
    }
}

/// Returns the first failure of a rank in the kubelet's excerpt of a launcher's log.
fn reported_rank(pod: &JobPod) -> Option<RankFailure> {
    match &pod.phase {
        ProcessPhase::Exited { last_lines, .. } => rank_failure_in(pod, last_lines),
        _ => None,
    }
}

/// Returns the first failure of a rank in `log`, if the launcher exited by itself and as that rank did.
fn rank_failure_in(pod: &JobPod, log: &str) -> Option<RankFailure> {
    match &pod.phase {
        ProcessPhase::Exited { exit, cause, .. } if pod.worker.is_none() && cause.is_empty() => {
            mpirun_output::read(log).filter(|failure| failure.exit.code() == exit.code())
        }
        _ => None,
    }
}

/// Returns the workers among `pods` that failed together and alike: only their logs can order them.
fn ambiguous_failures<'a>(pods: &[&'a JobPod]) -> Vec<&'a JobPod> {
    struct End<'a> {
        pod: &'a JobPod,
        code: u8,
        at: Timestamp,
        has_output: bool,
        is_out_of_memory: bool,
    }
    let ends = pods.iter().filter_map(|pod| match &pod.phase {
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } if pod.worker.is_some() && !exit.is_success() => Some(End {
            pod,
            code: exit.code(),
            at: *at,
            has_output: !last_lines.is_empty(),
            is_out_of_memory: cause == ProcessPhase::OUT_OF_MEMORY,
        }),
        _ => None,
    });
    let mut ends: Vec<_> = ends.collect();
    let earliest = ends.iter().map(|end| end.at).min().unwrap_or_default();
    ends.retain(|end| end.at.since(earliest) <= TIMESTAMP_RESOLUTION);
    let alike = |code: u8| ends.iter().filter(|end| end.code == code).count();
    // A unique exit code or OOMKilled identifies the first failure without logs.
    let is_conclusive = |end: &&End<'_>| {
        let was_stopped = matches!(end.code, 137 | 143);
        end.is_out_of_memory || (!was_stopped && alike(end.code) == 1)
    };
    if ends.len() < 2 || ends.iter().filter(is_conclusive).count() == 1 {
        return Vec::new();
    }
    ends.iter()
        .filter(|end| end.has_output)
        .map(|end| end.pod)
        .collect()
}

/// Converts times to milliseconds and keeps their order: distinct times stay distinct, by moving later ones
/// on.
fn distinct_millis(mut times: Vec<(String, Duration)>) -> Vec<(String, Timestamp)> {
    times.sort_by_key(|(_, at)| *at);
    let mut before: Option<(Duration, u64)> = None;
    let distinct = times.into_iter().map(|(name, at)| {
        let millis = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let millis = match before {
            Some((exact, known)) if exact == at => known,
            Some((_, known)) => millis.max(known.saturating_add(1)),
            None => millis,
        };
        before = Some((at, millis));
        (name, Timestamp::from_millis(millis))
    });
    distinct.collect()
}

/// Refines the exit time `at`, a whole second, with the time `last_line` of the last log line.
fn refine_exit_time(at: Timestamp, last_line: Timestamp) -> Timestamp {
    let end_of_second = at.plus(Duration::from_millis(999));
    last_line.clamp(at, end_of_second)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::crd::IpuJob;
    use crate::resources::{ATTEMPT, INSTANCE, JOB_UID, ROLE, WORKER};

    const WORKERS: &str = r#"{"jobInstances": 1, "ipusPerJobInstance": "4", "workersPerJobInstance": "4",
        "workers": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["run"]}]}}}}"#;
    const LAUNCHER: &str = r#"{"jobInstances": 1, "ipusPerJobInstance": "4", "workersPerJobInstance": "4",
        "launcher": {"command": ["mpirun", "train"]},
        "workers": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#;

    fn spec(spec: &str) -> JobSpec {
        let mut job = IpuJob::new("a", serde_json::from_str(spec).expect("a spec"));
        job.metadata.namespace = Some("n".to_owned());
        job.metadata.uid = Some("u".to_owned());
        let parsed = job.parse(&ipu_core::job::Limits::default());
        parsed.expect("a valid job").spec
    }

    fn pod(worker: Option<u32>, status: &Value) -> JobPod {
        let name = worker.map_or("a-launcher".to_owned(), |worker| format!("a-worker-{worker}"));
        let mut labels = json!({JOB_UID: "u", INSTANCE: "0", ATTEMPT: "0", ROLE: "launcher"});
        if let Some(worker) = worker {
            labels[ROLE] = "worker".into();
            labels[WORKER] = worker.to_string().into();
        }
        let metadata = json!({"name": name, "namespace": "n", "uid": name, "labels": labels, "finalizers": [IpuJob::POD_FINALIZER]});
        let pod = serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("a Pod");
        let job = ipu_core::JobKey::new("n", "a", "u").expect("a key");
        JobPod::read(&pod, &job, Timestamp::default()).expect("a Pod of the job")
    }

    fn running(worker: Option<u32>) -> JobPod {
        pod(
            worker,
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        )
    }

    fn exited(worker: Option<u32>, code: u8, reason: &str, log: &str) -> JobPod {
        let end = json!({
            "exitCode": code, "reason": reason, "message": log,
            "startedAt": "1970-01-01T00:00:01Z", "finishedAt": "1970-01-01T00:00:10Z",
        });
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        pod(
            worker,
            &json!({"phase": phase, "containerStatuses": [{"name": "c", "state": {"terminated": end}}]}),
        )
    }

    fn failed(worker: u32, code: u8) -> JobPod {
        exited(Some(worker), code, "Error", "the end")
    }

    /// Returns a worker that failed at `second`.
    fn failed_at(worker: u32, second: u64) -> JobPod {
        let mut pod = failed(worker, 1);
        if let ProcessPhase::Exited { at, .. } = &mut pod.phase {
            *at = Timestamp::from_millis(second * 1000);
        }
        pod
    }

    /// Returns the delay in milliseconds at `now`.
    fn delay_millis(pods: &[JobPod], job: &str, now: u64) -> Option<u128> {
        let pods: Vec<&JobPod> = pods.iter().collect();
        let delay = settle_delay(&pods, &spec(job), Timestamp::from_millis(now));
        delay.map(|delay| delay.as_millis())
    }

    #[test]
    fn a_failure_is_judged_after_a_quiet_period_or_the_maximum_delay() {
        let running = [running(Some(2)), running(Some(3))];
        let with = |ends: [u64; 2]| [&[failed_at(0, ends[0]), failed_at(1, ends[1])], &running[..]].concat();
        assert_eq!(delay_millis(&with([10, 10]), WORKERS, 10_500), Some(3500));
        assert_eq!(delay_millis(&with([10, 12]), WORKERS, 15_999), Some(1));
        assert_eq!(delay_millis(&with([10, 12]), WORKERS, 16_000), None);
        // Further failures follow.
        assert_eq!(delay_millis(&with([10, 17]), WORKERS, 17_500), Some(500));
        assert_eq!(delay_millis(&with([10, 17]), WORKERS, 18_000), None);
        // The clock of the node is ahead.
        assert_eq!(delay_millis(&with([10, 10]), WORKERS, 3000), None);
    }

    #[test]
    fn a_failure_is_judged_at_once_if_all_processes_have_exited() {
        let pods = [failed(0, 1), failed(1, 1), exited(Some(2), 0, "Completed", "")];
        assert_eq!(delay_millis(&pods, WORKERS, 10_000), None);
        assert_eq!(delay_millis(&[running(Some(0))], WORKERS, 10_000), None);
    }

    #[test]
    fn a_failed_launcher_waits_for_its_workers_unless_it_reports_a_rank() {
        let workers = [running(Some(0)), running(Some(1))];
        let with = |launcher: JobPod| [&workers[..], &[launcher]].concat();
        let at = |pods: &[JobPod]| delay_millis(pods, LAUNCHER, 10_000);
        assert_eq!(at(&with(exited(None, 1, "Error", "it broke"))), Some(4000));
        let report = |code: u8| format!("Process name: [[5111,1],1]\nExit code: {code}\n");
        assert_eq!(at(&with(exited(None, 7, "Error", &report(7)))), None);
        assert_eq!(at(&with(exited(None, 137, "Error", &report(137)))), Some(4000));
        // It exited otherwise than that rank.
        assert_eq!(at(&with(exited(None, 1, "Error", &report(7)))), Some(4000));
        // Without a launcher, nothing has started.
        assert_eq!(at(&[failed(0, 1), running(Some(1))]), None);
        assert_eq!(at(&[failed(0, 1), running(Some(1)), running(None)]), Some(4000));
    }

    #[test]
    fn logs_are_requested_only_for_otherwise_identical_failures() {
        let requested = |pods: &[JobPod]| {
            let pods: Vec<&JobPod> = pods.iter().collect();
            let pods = ambiguous_failures(&pods).into_iter().filter_map(|pod| pod.worker);
            pods.collect::<Vec<_>>()
        };
        assert_eq!(requested(&[failed(0, 1), failed(1, 1), failed(2, 1)]), [0, 1, 2]);
        let without_output = exited(Some(2), 1, "Error", "");
        assert_eq!(requested(&[failed(0, 1), failed(1, 1), without_output]), [0, 1]);
        assert_eq!(requested(&[failed(0, 1)]), [0; 0]);
        assert_eq!(requested(&[failed(0, 1), failed(1, 1), failed(2, 7)]), [0; 0]);
        assert_eq!(
            requested(&[failed(0, 1), failed(1, 1), exited(Some(2), 137, "OOMKilled", "")]),
            [0; 0]
        );
        // Being stopped is not a cause.
        assert_eq!(
            requested(&[failed(0, 1), failed(1, 1), failed(2, 143)]),
            [0, 1, 2]
        );
        assert_eq!(requested(&[failed(0, 3), failed(1, 7)]), [0, 1]);
    }

    #[test]
    fn times_within_one_millisecond_keep_their_order() {
        let at = |name: &str, nanos: u64| (name.to_owned(), Duration::from_nanos(nanos));
        let times = vec![
            at("c", 7_000_001),
            at("a", 5_000_900),
            at("b", 5_000_200),
            at("d", 5_000_900),
        ];
        let ordered: Vec<(String, u64)> = distinct_millis(times)
            .into_iter()
            .map(|(name, at)| (name, at.as_millis()))
            .collect();
        let expected = [("b", 5), ("a", 6), ("d", 6), ("c", 7)];
        assert_eq!(ordered, expected.map(|(name, at)| (name.to_owned(), at)));
    }

    #[test]
    fn a_log_time_refines_only_the_fraction_of_the_second() {
        let at = Timestamp::from_millis;
        assert_eq!(refine_exit_time(at(10_000), at(10_400)), at(10_400));
        assert_eq!(refine_exit_time(at(10_000), at(9000)), at(10_000));
        assert_eq!(refine_exit_time(at(10_000), at(12_000)), at(10_999));
    }

    #[test]
    fn a_recent_failure_is_observed_as_its_phase_before_the_exit() {
        let since = Timestamp::from_millis(1000);
        assert_eq!(failed(0, 1).phase_before_exit(), ProcessPhase::Running { since });
        let init = json!([{"name": "i", "state": {"terminated": {"exitCode": 3, "finishedAt": "1970-01-01T00:00:10Z"}}}]);
        let pod = pod(
            Some(0),
            &json!({"phase": "Failed", "initContainerStatuses": init}),
        );
        assert_eq!(pod.phase_before_exit(), ProcessPhase::Stopping);
        assert_eq!(pod.failed_container.as_deref(), Some("i"));
    }
}
