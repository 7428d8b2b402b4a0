//! What ends together: whether everything of it was heard of, and who spoke when.
//!
//! When one of many processes fails, the others mostly do within the same moment. The kubelet looks at its containers once a
//! second, tells of one Kubernetes Pod after the other, in any order, and writes times in whole seconds. So a failure is not
//! judged as soon as it is heard of: while others of its attempt still seem to run, the operator looks at it as if its watch
//! were a moment late, until nothing new was heard for [`QUIET`]. And where several that failed together ended alike, their
//! logs, whose lines have times of their own, are asked who was the first to fall silent. So is the log of a launcher, which
//! may have more in it than what the kubelet read when it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use ipu_core::{Exit, JobKind, JobSpec, JobStatus, ProcessPhase, Timestamp};

use super::mpirun_output;
use super::observation::{Deleted, ObservedJob};
use super::pod_state::{KubePod, PodOutcome};
use super::reconcile::Reconciler;

/// How far apart the times that Kubernetes writes must be to tell which came first: they are whole seconds, and what happens
/// at the turn of one may be written in either order.
pub(super) const BLUR: Duration = Duration::from_secs(1);
/// How long nothing new must have been heard before a failure is judged while others go on: twice as long as a kubelet
/// takes from one look at its containers to the next.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// How long a failure is waited with at most.
const MAX_SETTLE_TIME: Duration = Duration::from_secs(6);
/// How many logs are asked at a time.
const MAX_CONCURRENT_LOGS: usize = 16;
/// How many logs are asked for one failure at most.
const MAX_LOGS: usize = 256;

/// What is known of ends beside what the Kubernetes Pods say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FailureEvidence {
    /// The names of Kubernetes Pods that failed a moment ago, and are not looked at yet.
    pub(super) early: BTreeSet<String>,
    /// When they are.
    pub(super) is_complete: Option<Duration>,
    /// When the last line of a log was written, by the name of its Kubernetes Pod.
    pub(super) last_log_time: BTreeMap<String, Timestamp>,
    /// The end of the log of a launcher, by the name of its Kubernetes Pod, if that tells of a rank and what the kubelet kept does
    /// not.
    pub(super) logs: BTreeMap<String, String>,
}

impl FailureEvidence {
    /// What a launcher that failed tells of the rank that was first; none unless it ended as that rank did.
    pub(super) fn told(&self, pod: &KubePod) -> Option<mpirun_output::RankFailure> {
        told(pod).or_else(|| rank_failure_in(pod, self.logs.get(&pod.name)?))
    }
}

impl Reconciler {
    /// Finds out which failures to look at, and what their logs say of their order.
    pub(super) async fn look_at_ends(
        &self,
        spec: &JobSpec,
        status: &JobStatus,
        seen: &ObservedJob,
    ) -> FailureEvidence {
        let mut ends = FailureEvidence::default();
        let failed = |pod: &&KubePod| pod.count() == PodOutcome::Failed;
        let uids: Vec<&str> = seen
            .pods
            .iter()
            .filter(failed)
            .map(|pod| pod.uid.as_str())
            .collect();
        let heard = self.cache.ended(spec.key(), &uids, seen.now);
        if seen.deleted == Deleted::Yes {
            return ends;
        }
        let mut instances: BTreeMap<u32, Vec<&KubePod>> = BTreeMap::new();
        for pod in seen.pods.iter().filter(|pod| is_judged(pod, status)) {
            instances.entry(pod.instance).or_default().push(pod);
        }
        for pods in instances.into_values() {
            let since = pods.iter().filter_map(|pod| heard.get(&pod.uid)).copied();
            let since: Vec<Timestamp> = since.collect();
            match rest(&pods, &since, spec, seen.now) {
                Some(rest) => {
                    let names = pods.iter().filter(|pod| failed(pod)).map(|pod| pod.name.clone());
                    ends.early.extend(names);
                    ends.is_complete = Some(ends.is_complete.map_or(rest, |known| known.min(rest)));
                }
                None => {
                    let words = self.last_log_times(&ambiguous_failures(&pods)).await;
                    ends.last_log_time.extend(in_order(words));
                    ends.logs.extend(self.log_of_launcher(&pods).await);
                }
            }
        }
        ends
    }

    /// What the log of a launcher among `pods` tells of a rank, if what is known of its end does not.
    async fn log_of_launcher(&self, pods: &[&KubePod]) -> Option<(String, String)> {
        let launcher = pods.iter().find(|pod| is_cut_off(pod))?;
        let (namespace, container) = (launcher.job.namespace.as_str(), launcher.failed.as_deref());
        let asked = self.api.last_lines(namespace, &launcher.name, container).await;
        let log = asked.ok()??;
        rank_failure_in(launcher, &log)?;
        Some((launcher.name.clone(), log))
    }

    /// When those that have left any output wrote the last line of it; whoever is not answered for is left out.
    async fn last_log_times(&self, pods: &[&KubePod]) -> Vec<(String, Duration)> {
        let asked = pods.iter().take(MAX_LOGS).map(|pod| {
            let (namespace, name) = (pod.job.namespace.clone(), pod.name.clone());
            let container = pod.failed.clone();
            async move {
                let asked = self
                    .api
                    .last_log_time(namespace.as_str(), &name, container.as_deref());
                Some((name.clone(), asked.await.ok()??))
            }
        });
        let asked: Vec<_> = asked.collect();
        let answers = stream::iter(asked).buffer_unordered(MAX_CONCURRENT_LOGS);
        answers.filter_map(std::future::ready).collect().await
    }
}

/// Whether a launcher failed by itself and does not tell why in what the kubelet kept, which may have looked before the last
/// lines were written.
fn is_cut_off(pod: &KubePod) -> bool {
    matches!(pod.outcome(), Some(ProcessPhase::Exited { exit, cause, .. })
        if pod.worker.is_none() && !exit.is_success() && cause.is_empty() && told(pod).is_none())
}

/// Whether the end of a Kubernetes Pod is one to be judged: of the attempt that runs, of an instance that has not ended.
fn is_judged(pod: &KubePod, status: &JobStatus) -> bool {
    status
        .instance(pod.instance)
        .is_none_or(|memory| memory.outcome.is_none() && memory.attempt <= pod.attempt)
}

/// How long to wait before the failures among `pods`, all that there is of an instance, are judged; none if at once, or if
/// there are none. `since` is when each of them was first heard of.
fn rest(pods: &[&KubePod], since: &[Timestamp], spec: &JobSpec, now: Timestamp) -> Option<Duration> {
    let of = |what: PodOutcome| pods.iter().filter(move |pod| pod.count() == what);
    let launches = !matches!(spec.shape(), JobKind::Workers);
    let mut launchers = pods.iter().filter(|pod| pod.worker.is_none()).peekable();
    // Without a launcher that may have begun something, its workers have nothing to do with one another.
    let apart = launches && launchers.peek().is_none();
    // What a launcher says of its ranks is the whole picture, unless the rank was killed: perhaps with all that it ran in.
    let told = launchers.any(|pod| {
        let killed = Exit::Signal(9).code();
        pod.count() == PodOutcome::Succeeded || told(pod).is_some_and(|told| told.exit.code() != killed)
    });
    // Others are about to take it away.
    let leaving = of(PodOutcome::Failed).any(|pod| pod.leaving);
    if apart || told || leaving || of(PodOutcome::Active).next().is_none() {
        return None;
    }
    let (first, last) = (since.iter().min()?, since.iter().max()?);
    // A clock that was put back is not waited for.
    let due = last
        .plus(SETTLE_TIME)
        .min(first.plus(MAX_SETTLE_TIME))
        .min(now.plus(SETTLE_TIME));
    let rest = due.since(now);
    (*last <= now && !rest.is_zero()).then_some(rest)
}

/// What the kubelet kept of the words of a launcher tells of the rank that was first.
fn told(pod: &KubePod) -> Option<mpirun_output::RankFailure> {
    match pod.outcome()? {
        ProcessPhase::Exited { last_lines, .. } => rank_failure_in(pod, last_lines),
        _ => None,
    }
}

/// What `words` of a launcher tell of the rank that was first; none unless it ended by itself, as that rank did.
fn rank_failure_in(pod: &KubePod, words: &str) -> Option<mpirun_output::RankFailure> {
    match pod.outcome()? {
        ProcessPhase::Exited { exit, cause, .. } if pod.worker.is_none() && cause.is_empty() => {
            mpirun_output::read(words).filter(|told| told.exit.code() == exit.code())
        }
        _ => None,
    }
}

/// The workers among `pods` that failed together and ended alike: only their logs can tell which was the first.
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
    ends.retain(|end| end.2.since(earliest) <= BLUR);
    let mut alike: BTreeMap<u8, usize> = BTreeMap::new();
    for end in &ends {
        *alike.entry(end.1.code()).or_default() += 1;
    }
    // Whoever ended as nobody else did needs no further evidence, nor does want of memory.
    let alone = |end: &(&KubePod, Exit, Timestamp, &String, &String)| {
        let stopped = matches!(end.1.code(), 137 | 143);
        end.4 == ProcessPhase::OUT_OF_MEMORY || (!stopped && alike.get(&end.1.code()) == Some(&1))
    };
    if ends.len() < 2 || ends.iter().filter(|end| alone(end)).count() == 1 {
        return Vec::new();
    }
    let spoke = ends.into_iter().filter(|end| !end.3.is_empty());
    spoke.map(|end| end.0).collect()
}

/// The same times in milliseconds, of which none are equal unless they were: those that follow move on by what it takes.
fn in_order(mut words: Vec<(String, Duration)>) -> Vec<(String, Timestamp)> {
    words.sort_by_key(|(_, at)| *at);
    let mut before: Option<(Duration, u64)> = None;
    let timed = words.into_iter().map(|(name, at)| {
        let millis = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let millis = match before {
            Some((exact, known)) if exact == at => known,
            Some((_, known)) => millis.max(known.saturating_add(1)),
            None => millis,
        };
        before = Some((at, millis));
        (name, Timestamp::from_millis(millis))
    });
    timed.collect()
}

/// When somebody ended who did at `at`, a whole second, and who wrote the last line of his log at `words`.
pub(super) fn refined(at: Timestamp, words: Timestamp) -> Timestamp {
    let end_of_second = at.plus(Duration::from_millis(999));
    words.clamp(at, end_of_second)
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
        let spec: Value = serde_json::from_str(spec).expect("it is JSON");
        let job = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": spec});
        let (job, _) = crate::crd::IpuJob::from_value(job);
        let parsed = job.to_raw().parse(&ipu_core::Limits::default());
        parsed.expect("it is a job").spec
    }

    fn pod(worker: Option<u32>, status: &Value) -> KubePod {
        let name = worker.map_or("a-launcher".to_owned(), |worker| format!("a-worker-{worker}"));
        let mut labels = json!({JOB_NAME: "a", JOB_UID: "u", INSTANCE: "0", ATTEMPT: "0", ROLE: "launcher"});
        if let Some(worker) = worker {
            labels[ROLE] = "worker".into();
            labels[WORKER] = worker.to_string().into();
        }
        let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels}, "status": status});
        KubePod::read(&pod).expect("it is of a job")
    }

    fn running(worker: Option<u32>) -> KubePod {
        pod(
            worker,
            &json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
        )
    }

    fn ended(worker: Option<u32>, code: u8, reason: &str, words: &str) -> KubePod {
        let end = json!({
            "exitCode": code, "reason": reason, "message": words,
            "startedAt": "1970-01-01T00:00:01Z", "finishedAt": "1970-01-01T00:00:10Z",
        });
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        pod(
            worker,
            &json!({"phase": phase, "containerStatuses": [{"name": "c", "state": {"terminated": end}}]}),
        )
    }

    fn failed(worker: u32, code: u8) -> KubePod {
        ended(Some(worker), code, "Error", "the end")
    }

    /// How many milliseconds are waited at `now`, if failures were first heard of at `since`.
    fn waits(pods: &[KubePod], since: &[u64], job: &str, now: u64) -> Option<u128> {
        let pods: Vec<&KubePod> = pods.iter().collect();
        let since: Vec<Timestamp> = since.iter().map(|at| Timestamp::from_millis(*at)).collect();
        let rest = rest(&pods, &since, &spec(job), Timestamp::from_millis(now));
        rest.map(|rest| rest.as_millis())
    }

    #[test]
    fn a_failure_waits_until_nothing_new_was_heard_for_a_while_and_not_for_ever() {
        let pods = [failed(0, 1), failed(1, 1), running(Some(2)), running(Some(3))];
        assert_eq!(waits(&pods, &[10_000, 10_500], WORKERS, 10_500), Some(2000));
        assert_eq!(waits(&pods, &[10_000, 10_500], WORKERS, 12_499), Some(1));
        assert_eq!(waits(&pods, &[10_000, 10_500], WORKERS, 12_500), None);
        // Others go on failing one after the other.
        assert_eq!(waits(&pods, &[10_000, 15_500], WORKERS, 15_500), Some(500));
        assert_eq!(waits(&pods, &[10_000, 15_500], WORKERS, 16_000), None);
        // The clock was put back.
        assert_eq!(waits(&pods, &[10_000, 10_500], WORKERS, 3000), None);
    }

    #[test]
    fn a_failure_waits_for_nobody_if_all_have_ended() {
        let pods = [failed(0, 1), failed(1, 1), ended(Some(2), 0, "Completed", "")];
        assert_eq!(waits(&pods, &[10_000, 10_000], WORKERS, 10_000), None);
        assert_eq!(waits(&[running(Some(0))], &[], WORKERS, 10_000), None);
    }

    #[test]
    fn a_launcher_waits_for_what_its_workers_say_unless_it_tells_of_a_rank() {
        let workers = [running(Some(0)), running(Some(1))];
        let with = |launcher: KubePod| [&workers[..], &[launcher]].concat();
        let at = |pods: &[KubePod]| waits(pods, &[10_000], LAUNCHER, 10_000);
        assert_eq!(at(&with(ended(None, 1, "Error", "it broke"))), Some(2000));
        let told = |code: u8| format!("Process name: [[5111,1],1]\nExit code: {code}\n");
        assert_eq!(at(&with(ended(None, 7, "Error", &told(7)))), None);
        assert_eq!(at(&with(ended(None, 137, "Error", &told(137)))), Some(2000));
        // It ended otherwise than that rank.
        assert_eq!(at(&with(ended(None, 1, "Error", &told(7)))), Some(2000));
        // Before there is a launcher, nothing has begun.
        assert_eq!(at(&[failed(0, 1), running(Some(1))]), None);
        assert_eq!(at(&[failed(0, 1), running(Some(1)), running(None)]), Some(2000));
    }

    #[test]
    fn logs_are_asked_only_of_those_that_nothing_else_tells_apart() {
        let asked = |pods: &[KubePod]| {
            let pods: Vec<&KubePod> = pods.iter().collect();
            let asked = ambiguous_failures(&pods).into_iter().filter_map(|pod| pod.worker);
            asked.collect::<Vec<_>>()
        };
        assert_eq!(asked(&[failed(0, 1), failed(1, 1), failed(2, 1)]), [0, 1, 2]);
        let mute = ended(Some(2), 1, "Error", "");
        assert_eq!(asked(&[failed(0, 1), failed(1, 1), mute]), [0, 1]);
        assert_eq!(asked(&[failed(0, 1)]), [0; 0]);
        assert_eq!(asked(&[failed(0, 1), failed(1, 1), failed(2, 7)]), [0; 0]);
        assert_eq!(
            asked(&[failed(0, 1), failed(1, 1), ended(Some(2), 137, "OOMKilled", "")]),
            [0; 0]
        );
        // Being stopped is no cause.
        assert_eq!(asked(&[failed(0, 1), failed(1, 1), failed(2, 143)]), [0, 1, 2]);
        assert_eq!(asked(&[failed(0, 3), failed(1, 7)]), [0, 1]);
    }

    #[test]
    fn what_was_written_within_one_millisecond_keeps_its_order() {
        let at = |name: &str, nanos: u64| (name.to_owned(), Duration::from_nanos(nanos));
        let words = vec![
            at("c", 7_000_001),
            at("a", 5_000_900),
            at("b", 5_000_200),
            at("d", 5_000_900),
        ];
        let ordered: Vec<(String, u64)> = in_order(words)
            .into_iter()
            .map(|(name, at)| (name, at.as_millis()))
            .collect();
        let expected = [("b", 5), ("a", 6), ("d", 6), ("c", 7)];
        assert_eq!(ordered, expected.map(|(name, at)| (name.to_owned(), at)));
    }

    #[test]
    fn a_log_tells_the_fraction_of_the_second_and_no_more() {
        let at = Timestamp::from_millis;
        assert_eq!(refined(at(10_000), at(10_400)), at(10_400));
        assert_eq!(refined(at(10_000), at(9000)), at(10_000));
        assert_eq!(refined(at(10_000), at(12_000)), at(10_999));
    }

    #[test]
    fn what_failed_a_moment_ago_is_seen_as_it_was_before() {
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
