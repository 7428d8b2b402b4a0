//! Invariants during the crash test: every running worker holds its partition, and no IPU is in two
//! partitions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;

use super::{CrashFixture, workload};

pub(super) struct InvariantMonitor(Arc<CrashFixture>);

/// Running worker: its uid, its partition, its job's uid, its attempt.
type RunningWorker = (String, String, String, String);

impl InvariantMonitor {
    pub(super) fn new(fixture: Arc<CrashFixture>) -> Self {
        Self(fixture)
    }

    /// Checks the invariants repeatedly until `over` is set; returns the number of checks.
    pub(super) async fn run(self) -> u32 {
        let mut checks = 0;
        while !self.0.over.load(Ordering::SeqCst) {
            if self.check().await.is_some() {
                checks += 1;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        checks
    }

    /// Checks once; returns `None` if a component does not respond.
    async fn check(&self) -> Option<()> {
        let fixture = &self.0;
        let first = workload::pods(&fixture.client).await?;
        let ledger = fixture.proxy.partitions().await?;
        let controller = fixture.simulator.partitions().await?;
        let last = workload::pods(&fixture.client).await?;
        // A worker that ran before and after also ran in between.
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
        for worker in before.intersection(&after) {
            if let Err(violation) = check_worker(worker, &ledger, &controller) {
                let pod = |list: &[Value]| {
                    list.iter()
                        .find(|pod| pod["metadata"]["uid"] == worker.0)
                        .cloned()
                };
                panic!(
                    "{violation}\n{}\nbefore: {:#?}\nafter: {:#?}\nledger: {ledger:#?}",
                    self.log_lines(&worker.1),
                    pod(&first),
                    pod(&last)
                );
            }
        }
        Some(())
    }

    /// Returns the log lines about the job of a partition, whose id is `p-`, the job, the instance and a
    /// digest.
    fn log_lines(&self, partition: &str) -> String {
        let job = partition.strip_prefix("p-").unwrap_or(partition);
        let job = job.rsplitn(3, '-').nth(2).unwrap_or(job);
        let mut log_lines = String::new();
        for file in std::fs::read_dir(&self.0.logs).unwrap() {
            let file = file.unwrap().path();
            log_lines.push_str(&format!("{}:\n", file.display()));
            let log = std::fs::read(&file).unwrap_or_default();
            for line in String::from_utf8_lossy(&log)
                .lines()
                .filter(|line| line.contains(job))
            {
                log_lines.push_str(&format!("    {line}\n"));
            }
        }
        log_lines
    }
}

/// Checks that a worker runs on a partition that ledger and controller assign to its job.
fn check_worker(worker: &RunningWorker, ledger: &[Value], controller: &[Value]) -> Result<(), String> {
    let (_, partition, job, attempt) = worker;
    let Some(entry) = ledger.iter().find(|entry| entry["id"] == *partition) else {
        return Err(format!("{partition} is used, and not in the ledger"));
    };
    if entry["owner"]["uid"] != *job {
        return Err(format!("{partition} belongs to another job"));
    }
    if entry["state"] == "waiting" || entry["state"] == "releasing" {
        return Err(format!("{partition} is used, and {}", entry["state"]));
    }
    if entry["attempt"].as_u64() != attempt.parse().ok() {
        return Err(format!("{partition} was made ready for another attempt"));
    }
    if controller.iter().all(|held| held["id"] != *partition) {
        return Err(format!("{partition} is used, and not at the controller"));
    }
    Ok(())
}

fn running(pods: &[Value]) -> BTreeSet<RunningWorker> {
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
        let is_running = pod["status"]["phase"] == "Running";
        let uid = pod["metadata"]["uid"].as_str();
        let owner = (label("graphcore.ai/ipujob-uid"), label("graphcore.ai/attempt"));
        if let (true, Some(uid), Some(partition), (Some(job), Some(attempt))) =
            (is_running, uid, partition, owner)
        {
            all.insert((uid.to_owned(), partition.to_owned(), job, attempt));
        }
    }
    all
}
