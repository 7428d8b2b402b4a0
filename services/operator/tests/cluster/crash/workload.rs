//! Clients that submit and delete jobs and check the results. They retry while the API server does not
//! respond.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ipu_testkit::Random;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// Interval between retries.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Lease of the operators.
const LEASE: &str = "ee82fc7a.graphcore.ai";

fn api(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// Returns all Pods; `None` if the API server does not respond.
pub(super) async fn pods(client: &Client) -> Option<Vec<Value>> {
    let list = api(client, "", "v1", "Pod", "pods")
        .list(&ListParams::default())
        .await
        .ok()?;
    list.items
        .into_iter()
        .map(|pod| serde_json::to_value(pod).ok())
        .collect()
}

/// Returns the leader; `None` without one, or if the API server does not respond.
pub(super) async fn leader(client: &Client) -> Option<String> {
    let leases = api(client, "coordination.k8s.io", "v1", "Lease", "leases");
    let lease = leases.get(LEASE).await.ok()?;
    let holder = lease.data["spec"]["holderIdentity"].as_str()?.to_owned();
    (!holder.is_empty()).then_some(holder)
}

/// Waits for another leader. Also returns for how much of that time the API server was unavailable, because
/// no failover is possible then.
pub(super) async fn next_leader(client: &Client, before: &str) -> (String, Duration) {
    let deadline = Instant::now() + super::SETTLE_TIMEOUT;
    let mut unserved = Duration::ZERO;
    loop {
        let requested_at = Instant::now();
        let holder = leader(client).await;
        let took = requested_at.elapsed();
        if holder.is_none() || took > RETRY_INTERVAL {
            unserved += took;
        }
        if let Some(next) = holder.filter(|next| next != before) {
            return (next, unserved);
        }
        assert!(Instant::now() < deadline, "no operator leads after {before}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) struct JobClients {
    jobs: Api<DynamicObject>,
}

impl JobClients {
    pub(super) fn new(client: Client) -> Self {
        Self {
            jobs: api(&client, "graphcore.ai", "v1alpha1", "IPUJob", "ipujobs"),
        }
    }

    /// Submits `count` jobs one after another, and deletes some of them at random.
    pub(super) async fn submit_and_delete(&self, count: u32, random: &mut Random) {
        for number in 0..count {
            let job: DynamicObject = serde_json::from_value(job(number, random)).unwrap();
            loop {
                match self.jobs.create(&PostParams::default(), &job).await {
                    Ok(_) => break,
                    // The job was created, and the response was lost.
                    Err(kube::Error::Api(status)) if status.code == 409 => break,
                    Err(kube::Error::Api(status)) if status.code == 422 => panic!("{status}"),
                    Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
                }
            }
            if random.chance(10) {
                let name = format!("job-{}", random.below(number + 1));
                let _ = self.jobs.delete(&name, &DeleteParams::default()).await;
            }
            tokio::time::sleep(Duration::from_millis(u64::from(random.below(1_200)))).await;
        }
    }

    async fn all(&self) -> Option<Vec<Value>> {
        let list = self.jobs.list(&ListParams::default()).await.ok()?;
        list.items
            .into_iter()
            .map(|job| serde_json::to_value(job).ok())
            .collect()
    }

    /// Waits until every job has ended, because no job holds its IPUs for long; returns the number of jobs
    /// by phase. A waiting instance must have a reason.
    pub(super) async fn settle(&self, timeout: Duration) -> BTreeMap<String, u32> {
        let deadline = Instant::now() + timeout;
        loop {
            let jobs = self.all().await.unwrap_or_default();
            let phase = |job: &Value| job["status"]["phase"].as_str().unwrap_or("none").to_owned();
            let unfinished: Vec<&Value> = jobs
                .iter()
                .filter(|job| !matches!(phase(job).as_str(), "Completed" | "Failed"))
                .collect();
            if !jobs.is_empty() && unfinished.is_empty() {
                let mut ended = BTreeMap::new();
                for job in &jobs {
                    *ended.entry(phase(job)).or_default() += 1;
                }
                return ended;
            }
            for job in &unfinished {
                let instances = job["status"]["instances"].as_array().into_iter().flatten();
                let has_no_reason =
                    |instance: &&Value| instance["state"] == "Waiting" && instance["reason"].is_null();
                assert!(
                    instances.filter(has_no_reason).count() == 0,
                    "an instance waits without a reason: {job}"
                );
            }
            assert!(Instant::now() < deadline, "jobs did not end: {unfinished:#?}");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Deletes all jobs, and waits until none exists.
    pub(super) async fn delete_all(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (options, all) = (DeleteParams::default(), ListParams::default());
        let _ = self.jobs.delete_collection(&options, &all).await;
        loop {
            match self.all().await {
                Some(jobs) if jobs.is_empty() => return,
                left => assert!(Instant::now() < deadline, "still present: {left:#?}"),
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }
}

fn job(number: u32, random: &mut Random) -> Value {
    let code = if random.chance(25) {
        1 + random.below(200)
    } else {
        0
    };
    let policies = [
        json!({"type": "Never"}),
        json!({"type": "OnFailure", "backOffLimit": 1, "backOffSeconds": 1}),
        json!({"type": "ExitCode", "exitCodes": "100-255", "backOffLimit": 1, "backOffSeconds": 1}),
    ];
    let mut job = json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob",
        "metadata": {"name": format!("job-{number}")},
        "spec": {
            "jobInstances": 1 + random.below(2),
            "ipusPerJobInstance": (1 << random.below(3)).to_string(),
            "cleanPodPolicy": random.pick(&["None", "Workers", "All"]),
            "ttlSecondsAfterFinished": random.below(3),
            "restartPolicy": random.pick(&policies),
            "workers": {"replicas": 1, "template": {
                "metadata": {"annotations": {"test/life": format!("{}:{code}", 200 + random.below(4_000))}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "local/none:1", "command": ["work"]}],
                },
            }},
        },
    });
    if random.chance(40) {
        job["spec"]["launcher"] = json!({"command": ["mpirun", "work"]});
        job["spec"]["workers"]["template"]["spec"]["containers"][0]
            .as_object_mut()
            .unwrap()
            .remove("command");
    }
    job
}
