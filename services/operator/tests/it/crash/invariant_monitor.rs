//! What is seen from outside while everything goes on: whoever runs holds the partition that he runs on, and no IPU is in two.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use super::{Scene, workload};

pub(super) struct Watch(Arc<Scene>);

/// A worker that runs: its uid, its partition, its job's uid, its attempt.
type Runs = (String, String, String, String);

impl Watch {
    pub(super) fn new(scene: Arc<Scene>) -> Self {
        Self(scene)
    }

    /// Looks again and again until it is over; how often.
    pub(super) async fn look(self) -> u32 {
        let mut looks = 0;
        while !self.0.over.load(Ordering::SeqCst) {
            if self.once().await.is_some() {
                looks += 1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        looks
    }

    /// None if somebody does not answer.
    async fn once(&self) -> Option<()> {
        let scene = &self.0;
        let first = workload::pods(&scene.client).await?;
        let ledger = scene.proxy.partitions().await?;
        let controller = scene.simulator.partitions().await?;
        let last = workload::pods(&scene.client).await?;
        // Who ran before and after ran in between.
        let (before, after) = (running(&first), running(&last));
        let mut ipus = BTreeSet::new();
        for partition in &controller {
            for ipu in partition["spec"]["ipus"].as_array().unwrap() {
                assert!(
                    ipus.insert(ipu.to_string()),
                    "{ipu} is in two partitions: {controller:#?}"
                );
            }
        }
        for runs in before.intersection(&after) {
            if let Err(wrong) = rightly(runs, &ledger, &controller) {
                let pod = |list: &[Value]| list.iter().find(|pod| pod["metadata"]["uid"] == runs.0).cloned();
                panic!(
                    "{wrong}\n{}\nbefore: {:#?}\nafter: {:#?}\nledger: {ledger:#?}",
                    self.told(&runs.1),
                    pod(&first),
                    pod(&last)
                );
            }
        }
        Some(())
    }

    /// What everybody's log says of the job of a partition, which is called `p-`, then the job, instance and a digest.
    fn told(&self, partition: &str) -> String {
        let job = partition.strip_prefix("p-").unwrap_or(partition);
        let job = job.rsplitn(3, '-').nth(2).unwrap_or(job);
        let mut told = String::new();
        for file in std::fs::read_dir(&self.0.logs).unwrap() {
            let file = file.unwrap().path();
            told.push_str(&format!("{}:\n", file.display()));
            let log = std::fs::read(&file).unwrap_or_default();
            for line in String::from_utf8_lossy(&log)
                .lines()
                .filter(|line| line.contains(job))
            {
                told.push_str(&format!("    {line}\n"));
            }
        }
        told
    }
}

/// Whether somebody runs on what ledger and controller say is his.
fn rightly(runs: &Runs, ledger: &[Value], controller: &[Value]) -> Result<(), String> {
    let (_, partition, job, attempt) = runs;
    let Some(entry) = ledger.iter().find(|entry| entry["id"] == *partition) else {
        return Err(format!("{partition} is used, and not in the ledger"));
    };
    if entry["owner"]["uid"] != *job {
        return Err(format!("{partition} is another's"));
    }
    if entry["state"] == "waiting" || entry["state"] == "releasing" {
        return Err(format!("{partition} is used, and {}", entry["state"]));
    }
    if entry["attempt"].as_u64() != attempt.parse().ok() {
        return Err(format!("{partition} was made ready for another attempt"));
    }
    if controller.iter().all(|there| there["id"] != *partition) {
        return Err(format!("{partition} is used, and not at the controller"));
    }
    Ok(())
}

fn running(pods: &[Value]) -> BTreeSet<Runs> {
    let mut all = BTreeSet::new();
    for pod in pods {
        let label = |name: &str| pod["metadata"]["labels"][name].as_str().map(str::to_owned);
        let env = pod["spec"]["containers"][0]["env"]
            .as_array()
            .into_iter()
            .flatten();
        let partition = env
            .filter(|var| var["name"] == "IPUOF_VIPU_API_PARTITION_ID")
            .find_map(|var| var["value"].as_str());
        let runs = pod["status"]["phase"] == "Running";
        let uid = pod["metadata"]["uid"].as_str();
        let about = (label("graphcore.ai/ipujob-uid"), label("graphcore.ai/attempt"));
        if let (true, Some(uid), Some(partition), (Some(job), Some(attempt))) = (runs, uid, partition, about)
        {
            all.insert((uid.to_owned(), partition.to_owned(), job, attempt));
        }
    }
    all
}
