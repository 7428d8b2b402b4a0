//! A job that runs while operator and proxy are replaced, and jobs that come and go meanwhile.

use std::time::Duration;

use ipu_test_cluster::Cluster;
use serde_json::Value;

use crate::installation::{Product, SYSTEM, wait_until};

/// Namespace of the jobs.
pub(crate) const NAMESPACE: &str = "disruptions";

/// Time between two requests that must be accepted, so that the replaced programs have the processor.
pub(crate) const REQUEST_INTERVAL: Duration = Duration::from_millis(300);

/// A running job of one worker, with its initial worker and partition.
pub(crate) struct RunningJob {
    pub(crate) product: Product<Box<Cluster>>,
    pub(crate) worker: String,
    pub(crate) partition: String,
}

impl RunningJob {
    pub(crate) fn start(product: Product<Box<Cluster>>) -> Self {
        product.kubectl(&["create", "namespace", NAMESPACE]);
        // The job needs no Open MPI.
        product.submit(NAMESPACE, "inference", |job| {
            job.replace("mpi-example:1", "local/busybox:1")
        });
        product.wait_for_phase(NAMESPACE, "inference", "Running");
        let job = product.kubectl(&["-n", NAMESPACE, "get", "ipujob", "inference", "-o", "json"]);
        let job: Value = serde_json::from_str(&job).unwrap();
        let partition = job["status"]["instances"][0]["partition"].as_str().unwrap();
        let partition = partition.to_owned();
        let mut running = Self {
            product,
            worker: String::new(),
            partition,
        };
        running.worker = running.workers();
        assert!(!running.worker.is_empty());
        running
    }

    /// Returns the uids of the workers.
    pub(crate) fn workers(&self) -> String {
        let path = "jsonpath={.items[*].metadata.uid}";
        let selector = "graphcore.ai/ipujob-name=inference";
        self.in_jobs(&["get", "pods", "-l", selector, "-o", path])
    }

    /// Returns the entries and cordons of the ledger.
    pub(crate) fn ledger(&self) -> String {
        self.product.ledger()
    }

    pub(crate) fn scale_to(&self, replicas: &str) {
        self.in_jobs(&["scale", "ipujob/inference", "--replicas", replicas]);
        wait_until("the job is scaled", || {
            let path = "jsonpath={.status.currentReplicas} {.status.phase}";
            let output = self.in_jobs(&["get", "ipujob", "inference", "-o", path]);
            if output == format!("{replicas} Running") {
                Ok(())
            } else {
                Err(output)
            }
        });
    }

    /// Asserts that the job runs with its initial worker and partition.
    pub(crate) fn assert_kept_worker_and_partition(&self) {
        self.product.wait_for_phase(NAMESPACE, "inference", "Running");
        assert!(self.workers().contains(&self.worker), "the worker keeps running");
        assert!(self.ledger().contains(&self.partition), "{}", self.ledger());
    }

    /// Submits a training job of four workers, whose ranks wait for [`Self::finish_training`].
    pub(crate) fn start_training(&self) {
        self.product.submit(NAMESPACE, "training", |job| {
            let waiting_script = "    - sh\n    - -c\n    - until [ -e /tmp/go ]; do sleep 1; done; ring\n";
            job.replace("    - ring\n", waiting_script)
        });
        self.product.wait_for_phase(NAMESPACE, "training", "Running");
    }

    /// Lets the ranks of the training job go on, and asserts that all complete without a restart.
    pub(crate) fn finish_training(&self) {
        for worker in 0..4 {
            let worker = format!("training-worker-{worker}");
            self.in_jobs(&["exec", &worker, "--", "touch", "/tmp/go"]);
        }
        let status = self.product.wait_for_phase(NAMESPACE, "training", "Completed");
        assert_eq!(status["restartCount"], 0, "{status}");
        let log = self.in_jobs(&["logs", "training-launcher"]);
        assert_eq!(log.matches("the sum is 6").count(), 4, "{log}");
        self.product.delete(NAMESPACE, "training");
    }

    /// Submits a suspended job, which must be accepted at the first attempt.
    pub(crate) fn submit_another(&self, number: usize) {
        self.product.submit(NAMESPACE, "inference", |job| {
            let other = format!("name: other-{number}\n  labels: {{group: other}}");
            job.replacen("name: inference", &other, 1).replacen(
                "  jobInstances",
                "  suspend: true\n  jobInstances",
                1,
            )
        });
    }

    /// Waits until all `submitted` suspended jobs are reconciled, and deletes them.
    pub(crate) fn wait_until_others_are_reconciled(&self, submitted: usize) {
        let kubectl_others = |arguments: &[&str]| {
            let prefix = [arguments[0], "ipujobs", "-l", "group=other"];
            self.in_jobs(&[&prefix[..], &arguments[1..]].concat())
        };
        wait_until("the next operator has reconciled all jobs", || {
            let phases = kubectl_others(&["get", "-o", "jsonpath={.items[*].status.phase}"]);
            if phases == vec!["Suspended"; submitted].join(" ") {
                Ok(())
            } else {
                Err(phases)
            }
        });
        kubectl_others(&["delete", "--timeout=120s"]);
    }

    /// Deletes the job, and waits until the ledger holds nothing for it.
    pub(crate) fn delete_job(&self) {
        self.product.delete(NAMESPACE, "inference");
        wait_until("the ledger holds nothing", || {
            let ledger = self.ledger();
            if ledger.contains("p-inference") {
                Err(ledger)
            } else {
                Ok(())
            }
        });
    }

    pub(crate) fn in_system(&self, arguments: &[&str]) -> String {
        self.product.kubectl(&[&["-n", SYSTEM], arguments].concat())
    }

    /// Runs `kubectl` in the namespace of the jobs.
    pub(crate) fn in_jobs(&self, arguments: &[&str]) -> String {
        self.product.kubectl(&[&["-n", NAMESPACE], arguments].concat())
    }
}
