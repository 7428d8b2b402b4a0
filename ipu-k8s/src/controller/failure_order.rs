//! The order of failures that happen together: whether all of them have been reported, and which process
//! failed first.
//!
//! When one of many processes fails, the others usually fail within the same moment. The kubelet polls its
//! containers once a second, reports one pod after the other in any order, and writes times in whole seconds.
//! So a failure is not judged when it is first observed. While other processes of its attempt still run, the
//! operator treats its pod as if the watch were late, until no further failure is observed for
//! [`SETTLE_TIME`]. Of several identical failures, the first is the process whose log ends first: log lines
//! have precise times. The log of a launcher may also contain more than the kubelet read when the container
//! exited.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use ipu_core::{Exit, JobKind, JobSpec, JobStatus, ProcessPhase, Timestamp};

use super::mpirun_output;
use super::observation::{Deleted, ObservedJob};
use super::pod_state::{KubePod, PodOutcome};
use super::reconcile::Reconciler;

/// Minimum distance of two Kubernetes timestamps that orders them: they are whole seconds, and events near
/// the turn of a second may be recorded in either order.
pub(super) const TIMESTAMP_RESOLUTION: Duration = Duration::from_secs(1);
/// Time without further failures after which a failure is judged while other processes run: twice the polling
/// interval of the kubelet.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Longest time for which the judgement of a failure is delayed.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(6);
/// Maximum number of concurrent log requests.
const MAX_CONCURRENT_LOGS: usize = 16;
/// Maximum number of log requests for one failure.
const MAX_LOGS: usize = 256;

/// Evidence about failures besides the status of the pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FailureEvidence {
    /// Names of pods that failed a moment ago and are not judged yet.
    pub(super) early: BTreeSet<String>,
    /// Time until they are judged.
    pub(super) judged_in: Option<Duration>,
    /// Time of the last log line by pod name.
    pub(super) last_log_time: BTreeMap<String, Timestamp>,
    /// End of a launcher's log by pod name, if it identifies a rank and the excerpt of the kubelet does not.
    pub(super) logs: BTreeMap<String, String>,
}

impl FailureEvidence {
    /// Returns the first failure of a rank that a failed launcher reports, if the launcher exited as that
    /// rank did.
    pub(super) fn exit_from_log(&self, pod: &KubePod) -> Option<mpirun_output::RankFailure> {
        reported_rank(pod).or_else(|| rank_failure_in(pod, self.logs.get(&pod.name)?))
    }
}

impl Reconciler {
    /// Returns the failures that are judged later, and the log evidence for the others.
    pub(super) async fn collect_failure_evidence(
        &self,
        spec: &JobSpec,
        status: &JobStatus,
        observed: &ObservedJob,
    ) -> FailureEvidence {
        let mut evidence = FailureEvidence::default();
        let failed = |pod: &&KubePod| pod.outcome_category() == PodOutcome::Failed;
        let uids: Vec<&str> = observed
            .pods
            .iter()
            .filter(failed)
            .map(|pod| pod.uid.as_str())
            .collect();
        let failed_since = self.cache.failed_since(spec.key(), &uids, observed.now);
        if observed.deleted == Deleted::Yes {
            return evidence;
        }
        let mut instances: BTreeMap<u32, Vec<&KubePod>> = BTreeMap::new();
        for pod in observed.pods.iter().filter(|pod| is_judged(pod, status)) {
            instances.entry(pod.instance).or_default().push(pod);
        }
        for pods in instances.into_values() {
            let since = pods.iter().filter_map(|pod| failed_since.get(&pod.uid)).copied();
            let since: Vec<Timestamp> = since.collect();
            match settle_delay(&pods, &since, spec, observed.now) {
                Some(delay) => {
                    let names = pods.iter().filter(|pod| failed(pod)).map(|pod| pod.name.clone());
                    evidence.early.extend(names);
                    evidence.judged_in =
                        Some(evidence.judged_in.map_or(delay, |earliest| earliest.min(delay)));
                }
                None => {
                    let times = self.last_log_times(&ambiguous_failures(&pods)).await;
                    evidence.last_log_time.extend(distinct_millis(times));
                    evidence.logs.extend(self.log_of_launcher(&pods).await);
                }
            }
        }
        evidence
    }

    /// Returns the log of a launcher among `pods` if it identifies a rank and the launcher's status does not.
    async fn log_of_launcher(&self, pods: &[&KubePod]) -> Option<(String, String)> {
        let launcher = pods.iter().find(|pod| is_cut_off(pod))?;
        let (namespace, container) = (launcher.job.namespace.as_str(), launcher.failed.as_deref());
        let response = self.api.last_lines(namespace, &launcher.name, container).await;
        let log = response.ok()??;
        rank_failure_in(launcher, &log)?;
        Some((launcher.name.clone(), log))
    }

    /// Returns the time of the last log line of each pod. Pods with an empty or unavailable log are omitted.
    async fn last_log_times(&self, pods: &[&KubePod]) -> Vec<(String, Duration)> {
        let requests = pods.iter().take(MAX_LOGS).map(|pod| {
            let (namespace, name) = (pod.job.namespace.clone(), pod.name.clone());
            let container = pod.failed.clone();
            async move {
                let time = self
                    .api
                    .last_log_time(namespace.as_str(), &name, container.as_deref());
                Some((name.clone(), time.await.ok()??))
            }
        });
        let requests: Vec<_> = requests.collect();
        let responses = stream::iter(requests).buffer_unordered(MAX_CONCURRENT_LOGS);
        responses.filter_map(std::future::ready).collect().await
    }
}

/// Returns whether a launcher failed by itself, without a reason in the kubelet's excerpt, which may miss the
/// last lines.
fn is_cut_off(pod: &KubePod) -> bool {
    matches!(pod.outcome(), Some(ProcessPhase::Exited { exit, cause, .. })
        if pod.worker.is_none() && !exit.is_success() && cause.is_empty() && reported_rank(pod).is_none())
}

/// Returns whether the exit of a pod is judged: it belongs to the current attempt of an instance without an
/// outcome.
fn is_judged(pod: &KubePod, status: &JobStatus) -> bool {
    status
        .instance(pod.instance)
        .is_none_or(|memory| memory.outcome.is_none() && memory.attempt <= pod.attempt)
}

/// Returns the delay before the failures among `pods`, all pods of an instance, are judged. Returns `None` if
/// they are judged now, or if there are none. `since` are the times of their first observation.
fn settle_delay(pods: &[&KubePod], since: &[Timestamp], spec: &JobSpec, now: Timestamp) -> Option<Duration> {
    let of = |what: PodOutcome| pods.iter().filter(move |pod| pod.outcome_category() == what);
    let has_launcher = !matches!(spec.shape(), JobKind::Workers);
    let mut launchers = pods.iter().filter(|pod| pod.worker.is_none()).peekable();
    // Without a launcher that may have started something, the workers are independent.
    let is_independent = has_launcher && launchers.peek().is_none();
    // The report of a launcher about its ranks is complete, unless the rank was killed: its whole pod may
    // have been.
    let is_reported = launchers.any(|pod| {
        let killed = Exit::Signal(9).code();
        pod.outcome_category() == PodOutcome::Succeeded
            || reported_rank(pod).is_some_and(|failure| failure.exit.code() != killed)
    });
    // The pod is being deleted.
    let is_leaving = of(PodOutcome::Failed).any(|pod| pod.terminating);
    if is_independent || is_reported || is_leaving || of(PodOutcome::Active).next().is_none() {
        return None;
    }
    let (first, last) = (since.iter().min()?, since.iter().max()?);
    // A clock that was set back does not delay the judgement.
    let due = last
        .plus(SETTLE_TIME)
        .min(first.plus(MAX_SETTLE_TIME))
        .min(now.plus(SETTLE_TIME));
    let delay = due.since(now);
    (*last <= now && !delay.is_zero()).then_some(delay)
}

/// Returns the first failure of a rank in the kubelet's excerpt of a launcher's log.
fn reported_rank(pod: &KubePod) -> Option<mpirun_output::RankFailure> {
    match pod.outcome()? {
        ProcessPhase::Exited { last_lines, .. } => rank_failure_in(pod, last_lines),
        _ => None,
    }
}

/// Returns the first failure of a rank in `log`, if the launcher exited by itself and as that rank did.
fn rank_failure_in(pod: &KubePod, log: &str) -> Option<mpirun_output::RankFailure> {
    match pod.outcome()? {
        ProcessPhase::Exited { exit, cause, .. } if pod.worker.is_none() && cause.is_empty() => {
            mpirun_output::read(log).filter(|failure| failure.exit.code() == exit.code())
        }
        _ => None,
    }
}

/// Returns the workers among `pods` that failed together and alike: only their logs can order them.
fn ambiguous_failures<'a>(pods: &[&'a KubePod]) -> Vec<&'a KubePod> {
    let ends = pods.iter().filter_map(|pod| match pod.outcome()? {
        ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause,
        } if pod.worker.is_some() && !exit.is_success() => Some((*pod, *exit, *at, last_lines, cause)),
        _ => None,
    });
    let mut ends: Vec<_> = ends.collect();
    let earliest = ends.iter().map(|end| end.2).min().unwrap_or_default();
    ends.retain(|end| end.2.since(earliest) <= TIMESTAMP_RESOLUTION);
    let mut alike: BTreeMap<u8, usize> = BTreeMap::new();
    for end in &ends {
        *alike.entry(end.1.code()).or_default() += 1;
    }
    // A unique exit code or OOMKilled identifies the first failure without logs.
    let is_conclusive = |end: &(&KubePod, Exit, Timestamp, &String, &String)| {
        let stopped = matches!(end.1.code(), 137 | 143);
        end.4 == ProcessPhase::OUT_OF_MEMORY || (!stopped && alike.get(&end.1.code()) == Some(&1))
    };
    if ends.len() < 2 || ends.iter().filter(|end| is_conclusive(end)).count() == 1 {
        return Vec::new();
    }
    let with_output = ends.into_iter().filter(|end| !end.3.is_empty());
    with_output.map(|end| end.0).collect()
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
pub(super) fn refine_exit_time(at: Timestamp, last_line: Timestamp) -> Timestamp {
    let end_of_second = at.plus(Duration::from_millis(999));
    last_line.clamp(at, end_of_second)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::resources::{ATTEMPT, INSTANCE, JOB_NAME, JOB_UID, ROLE, WORKER};

    const WORKERS: &str = r#"{"jobInstances": 1, "ipusPerJobInstance": "4", "workersPerJobInstance": "4",
        "workers": {"template": {"spec": {"containers": [{"name": "c", "image": "i", "command": ["run"]}]}}}}"#;
    const LAUNCHER: &str = r#"{"jobInstances": 1, "ipusPerJobInstance": "4", "workersPerJobInstance": "4",
        "launcher": {"command": ["mpirun", "train"]},
        "workers": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}}"#;

    fn spec(spec: &str) -> JobSpec {
        let spec: Value = serde_json::from_str(spec).expect("valid JSON");
        let job = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": spec});
        let (job, _) = crate::crd::IpuJob::from_value(job);
        let parsed = job.parse(&ipu_core::Limits::default());
        parsed.expect("a valid job").spec
    }

    fn pod(worker: Option<u32>, status: &Value) -> KubePod {
        let name = worker.map_or("a-launcher".to_owned(), |worker| format!("a-worker-{worker}"));
        let mut labels = json!({JOB_NAME: "a", JOB_UID: "u", INSTANCE: "0", ATTEMPT: "0", ROLE: "launcher"});
        if let Some(worker) = worker {
            labels[ROLE] = "worker".into();
            labels[WORKER] = worker.to_string().into();
        }
        let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels}, "status": status});
        KubePod::read(&pod).expect("a pod of a job")
    }

    fn running(worker: Option<u32>) -> KubePod {
        pod(
            worker,
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        )
    }

    fn exited(worker: Option<u32>, code: u8, reason: &str, log: &str) -> KubePod {
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

    fn failed(worker: u32, code: u8) -> KubePod {
        exited(Some(worker), code, "Error", "the end")
    }

    /// Returns the delay in milliseconds at `now`, for failures first observed at `since`.
    fn delay_millis(pods: &[KubePod], since: &[u64], job: &str, now: u64) -> Option<u128> {
        let pods: Vec<&KubePod> = pods.iter().collect();
        let since: Vec<Timestamp> = since.iter().map(|at| Timestamp::from_millis(*at)).collect();
        let delay = settle_delay(&pods, &since, &spec(job), Timestamp::from_millis(now));
        delay.map(|delay| delay.as_millis())
    }

    #[test]
    fn a_failure_is_judged_after_a_quiet_period_or_the_maximum_delay() {
        let pods = [failed(0, 1), failed(1, 1), running(Some(2)), running(Some(3))];
        assert_eq!(
            delay_millis(&pods, &[10_000, 10_500], WORKERS, 10_500),
            Some(2000)
        );
        assert_eq!(delay_millis(&pods, &[10_000, 10_500], WORKERS, 12_499), Some(1));
        assert_eq!(delay_millis(&pods, &[10_000, 10_500], WORKERS, 12_500), None);
        // Further failures follow.
        assert_eq!(delay_millis(&pods, &[10_000, 15_500], WORKERS, 15_500), Some(500));
        assert_eq!(delay_millis(&pods, &[10_000, 15_500], WORKERS, 16_000), None);
        // The clock was set back.
        assert_eq!(delay_millis(&pods, &[10_000, 10_500], WORKERS, 3000), None);
    }

    #[test]
    fn a_failure_is_judged_at_once_if_all_processes_have_exited() {
        let pods = [failed(0, 1), failed(1, 1), exited(Some(2), 0, "Completed", "")];
        assert_eq!(delay_millis(&pods, &[10_000, 10_000], WORKERS, 10_000), None);
        assert_eq!(delay_millis(&[running(Some(0))], &[], WORKERS, 10_000), None);
    }

    #[test]
    fn a_failed_launcher_waits_for_its_workers_unless_it_reports_a_rank() {
        let workers = [running(Some(0)), running(Some(1))];
        let with = |launcher: KubePod| [&workers[..], &[launcher]].concat();
        let at = |pods: &[KubePod]| delay_millis(pods, &[10_000], LAUNCHER, 10_000);
        assert_eq!(at(&with(exited(None, 1, "Error", "it broke"))), Some(2000));
        let report = |code: u8| format!("Process name: [[5111,1],1]\nExit code: {code}\n");
        assert_eq!(at(&with(exited(None, 7, "Error", &report(7)))), None);
        assert_eq!(at(&with(exited(None, 137, "Error", &report(137)))), Some(2000));
        // It exited otherwise than that rank.
        assert_eq!(at(&with(exited(None, 1, "Error", &report(7)))), Some(2000));
        // Without a launcher, nothing has started.
        assert_eq!(at(&[failed(0, 1), running(Some(1))]), None);
        assert_eq!(at(&[failed(0, 1), running(Some(1)), running(None)]), Some(2000));
    }

    #[test]
    fn logs_are_requested_only_for_otherwise_identical_failures() {
        let requested = |pods: &[KubePod]| {
            let pods: Vec<&KubePod> = pods.iter().collect();
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
        // Being stopped is no cause.
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
        assert_eq!(pod.failed.as_deref(), Some("i"));
    }
}
