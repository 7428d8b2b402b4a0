//! Workers that are killed, under each restart policy (V-IPU guide §6.7.2).

use std::ops::Deref;

use ipu_test_cluster::Cluster;
use serde_json::{Value, json};

use crate::installation::{Product, wait_until};

const NAMESPACE: &str = "restarts";

/// Names of jobs, their restart policies, and whether these restart a worker that was killed. Its exit code
/// is 137.
const POLICIES: [(&str, &str, bool); 5] = [
    ("never", "type: Never", false),
    ("on-failure", "type: OnFailure", true),
    ("always", "type: Always", true),
    ("exit-code", "type: ExitCode", true),
    ("own-codes", "type: ExitCode, exitCodes: \"1-10\"", false),
];

/// Script of the workers: its child is killed, which the first process of a container cannot be.
const SCRIPT: &str = "sleep 30000 & until [ -e /tmp/kill ]; do sleep 0.1; done; kill -9 $!; wait $!";

impl<C: Deref<Target = Cluster>> Product<C> {
    /// Kills a worker of one job per restart policy, and asserts that the job restarts or fails. Five IPUs
    /// are used.
    pub(crate) fn kill_a_worker_under_each_policy(&self) {
        self.kubectl(&["create", "namespace", NAMESPACE]);
        for (job, policy, _) in POLICIES {
            self.submit(NAMESPACE, "inference", |text| {
                let restarts = format!("  restartPolicy: {{{policy}, backOffLimit: 1, backOffSeconds: 0}}\n");
                text.replacen("name: inference", &format!("name: {job}"), 1)
                    .replace("  workers:\n", &format!("{restarts}  workers:\n"))
                    .replace("mpi-example:1", "local/busybox:1")
                    .replace("while true; do sleep 30000; done", SCRIPT)
            });
        }
        let worker = |job: &str| {
            let arguments = ["-n", NAMESPACE, "get", "pod", &format!("{job}-worker-0"), "-o"];
            self.kubectl(&[&arguments[..], &["jsonpath={.metadata.uid}"]].concat())
        };
        let status_of = |job: &str| -> Value {
            let job = self.kubectl(&["-n", NAMESPACE, "get", "ipujob", job, "-o", "json"]);
            serde_json::from_str::<Value>(&job).unwrap()["status"].take()
        };
        let mut killed = Vec::new();
        for (job, ..) in POLICIES {
            let status = self.wait_for_phase(NAMESPACE, job, "Running");
            killed.push((status["instances"][0]["partition"].clone(), worker(job)));
            let pod = format!("{job}-worker-0");
            // The end of the container may end the command, too: whether it had its effect is seen below.
            let _ = self
                .cluster
                .kubectl(&["-n", NAMESPACE, "exec", &pod, "--", "touch", "/tmp/kill"]);
        }
        for ((job, _, restarts), (partition, first)) in POLICIES.into_iter().zip(killed) {
            if restarts {
                wait_until("the job runs again", || {
                    let status = status_of(job);
                    if status["restartCount"] == 1 && status["phase"] == "Running" {
                        Ok(())
                    } else {
                        Err(status.to_string())
                    }
                });
                assert_ne!(worker(job), first, "{job}");
                assert_eq!(status_of(job)["instances"][0]["partition"], partition, "{job}");
            } else {
                let status = self.wait_for_phase(NAMESPACE, job, "Failed");
                let end = json!([status["restartCount"], status["exitCode"]]);
                assert_eq!(end, json!([0, 137]), "{job}: {status}");
            }
            self.delete(NAMESPACE, job);
        }
    }
}
