//! Simulated kubelet: reports processes as running without running them.

use serde_json::{Value, json};

use super::fake_cluster::{ClusterState, time};
use super::forced_deletion::is_foreign;

/// Status message of a Pod whose start the simulation delays.
const DELAY_MESSAGE: &str = "the start is delayed";

impl ClusterState {
    /// Advances one Pod.
    pub(super) fn kubelet(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = &names[usize::try_from(self.random.below(names.len() as u64)).unwrap()];
        let pod = self.pods[name].clone();
        if is_foreign(&pod) {
            return;
        }
        let deleted = !pod["metadata"]["deletionTimestamp"].is_null();
        let now = time(self.now);
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        match pod["status"]["phase"].as_str() {
            // Most Pods report an exit before they are deleted, with the exit code that their program
            // chooses.
            Some("Running") if deleted && self.random.one_in(2) => {
                self.running.remove(&uid);
                let code = if self.random.one_in(2) { 0 } else { 143 };
                self.change_pod(name, |pod| {
                    pod["status"]["phase"] = if code == 0 { "Succeeded" } else { "Failed" }.into();
                    pod["status"]["containerStatuses"] =
                        json!([{"state": {"terminated": {"exitCode": code, "finishedAt": now}}}]);
                });
            }
            Some("Succeeded" | "Failed") if deleted && self.random.one_in(2) => {
                self.change_pod(name, |pod| {
                    pod["metadata"]["deletionTimestamp"] = now.into();
                    pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
                });
            }
            _ if deleted => self.remove_pod(name),
            None if self.is_delayed() => {
                let delayed_status = delayed_status(self.random.below(4), &now);
                self.change_pod(name, |pod| {
                    pod["status"] = delayed_status;
                    pod["status"]["message"] = DELAY_MESSAGE.into();
                });
            }
            // A status that a test wrote is kept.
            Some("Pending") if pod["status"]["message"] != DELAY_MESSAGE => {}
            // The init container of a launcher fails.
            Some("Pending") if is_launcher(&pod) && self.is_delayed() => self.change_pod(name, |pod| {
                pod["status"]["phase"] = "Failed".into();
                pod["status"]["initContainerStatuses"] = json!([{"name": "wait-for-workers", "state": {"terminated": {
                    "exitCode": 1, "reason": "Error", "finishedAt": now, "message": "the end",
                }}}]);
                pod["status"]["containerStatuses"] =
                    json!([{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]);
            }),
            Some("Pending") if self.is_delayed() => {}
            None | Some("Pending") => {
                let env = pod["spec"]["containers"][0]["env"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let variable = |wanted: &str| {
                    let var = env.iter().find(|var| var["name"] == wanted);
                    var.map(|var| var["value"].as_str().unwrap().to_owned())
                        .unwrap_or_default()
                };
                let label = |name: &str| pod["metadata"]["labels"][name].as_str().unwrap().to_owned();
                let user = (
                    variable("IPUOF_VIPU_API_PARTITION_ID"),
                    label("graphcore.ai/ipujob-uid"),
                    label("graphcore.ai/attempt"),
                );
                self.check_fencing(&pod, &user.0);
                if is_launcher(&pod) {
                    self.check_launcher_rights(&pod);
                }
                self.running.insert(uid, user);
                let ready = if self.is_delayed() { "False" } else { "True" };
                self.change_pod(name, |pod| {
                    pod["spec"]["nodeName"] = "node".into();
                    pod["status"] = json!({"phase": "Running", "conditions": [
                        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                        {"type": "Ready", "status": ready, "lastTransitionTime": now},
                    ]});
                });
            }
            Some("Running") if is_ready(&pod) == self.is_delayed() => self.change_pod(name, |pod| {
                let ready = if is_ready(pod) { "False" } else { "True" };
                pod["status"]["conditions"][1] =
                    json!({"type": "Ready", "status": ready, "lastTransitionTime": now});
            }),
            // The Pod is evicted; the exit of its containers is not reported.
            Some("Running") if self.fault_rate != 0 && self.random.one_in(40) => {
                self.running.remove(&uid);
                self.change_pod(name, |pod| {
                    pod["status"]["phase"] = "Failed".into();
                    pod["status"]["reason"] = "Evicted".into();
                    pod["status"]["message"] = "The node was low on resource: memory.".into();
                });
            }
            Some("Running") => {
                let is_endless = pod["spec"]["containers"][0]["command"][2]
                    .as_str()
                    .is_some_and(|command| command.contains("sleep"));
                if is_endless && !(self.fault_rate != 0 && self.random.one_in(60)) {
                    return;
                }
                let code = if self.random.one_in(4) {
                    1 + self.random.below(250)
                } else {
                    0
                };
                self.running.remove(&uid);
                self.change_pod(name, |pod| {
                    pod["status"]["phase"] = if code == 0 { "Succeeded" } else { "Failed" }.into();
                    pod["status"]["containerStatuses"] = json!([{"state": {"terminated": {
                        "exitCode": code, "reason": "Error", "finishedAt": now, "message": "the end",
                    }}}]);
                });
            }
            _ => {}
        }
    }

    /// Returns whether the start of a Pod is delayed now.
    fn is_delayed(&mut self) -> bool {
        self.fault_rate != 0 && self.random.one_in(6)
    }
}

/// Returns a status of a Pod that cannot start yet.
fn delayed_status(index: u64, now: &str) -> Value {
    let scheduled =
        |status: &str| json!({"type": "PodScheduled", "status": status, "lastTransitionTime": now});
    let waiting = |reason: &str| {
        json!({"phase": "Pending", "conditions": [scheduled("True")], "containerStatuses":
            [{"name": "main", "state": {"waiting": {"reason": reason, "message": DELAY_MESSAGE}}}]})
    };
    match index {
        0 => {
            let mut scheduled = scheduled("False");
            scheduled["reason"] = "Unschedulable".into();
            scheduled["message"] = "0/1 nodes are available".into();
            json!({"phase": "Pending", "conditions": [scheduled]})
        }
        1 => waiting("ErrImagePull"),
        2 => waiting("ImagePullBackOff"),
        _ => waiting("ContainerCreating"),
    }
}

fn is_launcher(pod: &Value) -> bool {
    pod["metadata"]["labels"]["graphcore.ai/role"] == "launcher"
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"][1]["status"] == "True"
}
