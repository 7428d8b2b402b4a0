//! What is seen from outside while everything goes on: whoever runs holds the partition that he runs on, and no IPU is in two.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use super::{Scene, users};

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
        let before = running(&users::pods(&scene.client).await?);
        let ledger = scene.proxy.partitions().await?;
        let controller = scene.simulator.partitions().await?;
        // Who ran before and after ran in between.
        let after = running(&users::pods(&scene.client).await?);
        let mut ipus = BTreeSet::new();
        for partition in &controller {
            for ipu in partition["spec"]["ipus"].as_array().unwrap() {
                assert!(
                    ipus.insert(ipu.to_string()),
                    "{ipu} is in two partitions: {controller:#?}"
                );
            }
        }
        for (_, partition, job, attempt) in before.intersection(&after) {
            let entry = ledger.iter().find(|entry| entry["id"] == *partition);
            let entry = entry.unwrap_or_else(|| panic!("{partition} is used, and not in the ledger"));
            assert_eq!(entry["owner"]["uid"], *job, "{partition} is another's");
            assert!(
                entry["state"] != "waiting" && entry["state"] != "releasing",
                "it is used: {entry}"
            );
            assert_eq!(
                entry["attempt"].to_string(),
                *attempt,
                "it was made ready for another attempt: {entry}"
            );
            assert!(
                controller.iter().any(|there| there["id"] == *partition),
                "{partition} is used, and not at the controller"
            );
        }
        Some(())
    }
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
