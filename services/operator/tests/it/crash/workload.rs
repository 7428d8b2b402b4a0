//! The users of the jobs: they submit, some delete again, and look at what became of them. They try again when the API server
//! does not answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ipu_testkit::Random;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

/// How soon somebody who was not answered tries again.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The lock of the operators.
const LEASE: &str = "ee82fc7a.graphcore.ai";

fn api(client: &Client, group: &str, version: &str, kind: &str, plural: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    Api::namespaced_with(client.clone(), "default", &resource)
}

/// The Kubernetes Pods; none if the API server does not answer.
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

/// Who leads; none if nobody does, or the API server does not answer.
pub(super) async fn leader(client: &Client) -> Option<String> {
    let leases = api(client, "coordination.k8s.io", "v1", "Lease", "leases");
    let lease = leases.get(LEASE).await.ok()?;
    let holder = lease.data["spec"]["holderIdentity"].as_str()?.to_owned();
    (!holder.is_empty()).then_some(holder)
}

/// Waits until somebody else leads, and tells how much of that time the API server was not to be had: nobody can take over then.
pub(super) async fn next_leader(client: &Client, before: &str) -> (String, Duration) {
    let until = Instant::now() + super::SETTLE;
    let mut unserved = Duration::ZERO;
    loop {
        let asked = Instant::now();
        let answer = leader(client).await;
        let took = asked.elapsed();
        if answer.is_none() || took > RETRY_INTERVAL {
            unserved += took;
        }
        if let Some(next) = answer.filter(|next| next != before) {
            return (next, unserved);
        }
        assert!(Instant::now() < until, "nobody leads after {before}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(super) struct Users {
    jobs: Api<DynamicObject>,
}

impl Users {
    pub(super) fn new(client: Client) -> Self {
        Self {
            jobs: api(&client, "graphcore.ai", "v1alpha1", "IPUJob", "ipujobs"),
        }
    }

    /// Submits so many jobs, one after the other; of some users delete one again.
    pub(super) async fn come_and_go(&self, many: u32, random: &mut Random) {
        for number in 0..many {
            let job: DynamicObject = serde_json::from_value(job(number, random)).unwrap();
            loop {
                match self.jobs.create(&PostParams::default(), &job).await {
                    Ok(_) => break,
                    // It was created, and the answer was lost.
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

    /// Waits until every job has ended, because none keeps for long what another waits for; how many ended how. Whoever has to wait for
    /// that long says why.
    pub(super) async fn settle(&self, patience: Duration) -> BTreeMap<String, u32> {
        let until = Instant::now() + patience;
        loop {
            let jobs = self.all().await.unwrap_or_default();
            let phase = |job: &Value| job["status"]["phase"].as_str().unwrap_or("none").to_owned();
            let going: Vec<&Value> = jobs
                .iter()
                .filter(|job| !matches!(phase(job).as_str(), "Completed" | "Failed"))
                .collect();
            if !jobs.is_empty() && going.is_empty() {
                let mut ended = BTreeMap::new();
                for job in &jobs {
                    *ended.entry(phase(job)).or_default() += 1;
                }
                return ended;
            }
            for job in &going {
                let instances = job["status"]["instances"].as_array().into_iter().flatten();
                let silent =
                    |instance: &&Value| instance["state"] == "Waiting" && instance["reason"].is_null();
                assert!(
                    instances.filter(silent).count() == 0,
                    "it waits without saying why: {job}"
                );
            }
            assert!(Instant::now() < until, "they never end: {going:#?}");
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Deletes all jobs, and waits until they are gone.
    pub(super) async fn delete_all(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let (how, all) = (DeleteParams::default(), ListParams::default());
        let _ = self.jobs.delete_collection(&how, &all).await;
        loop {
            match self.all().await {
                Some(jobs) if jobs.is_empty() => return,
                left => assert!(Instant::now() < until, "not gone: {left:#?}"),
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
