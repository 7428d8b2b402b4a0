//! The nodes: a kubelet that runs nothing, and says that it does.

use serde_json::{Value, json};

use super::fake_cluster::{State, time};
use super::forced_deletion::is_foreign;

/// What a Kubernetes Pod says that the simulation keeps from running for a while.
const HINDRANCE: &str = "it takes its time";

impl State {
    /// One Kubernetes Pod gets on.
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
            // Most are seen to end before they are gone, with the code that their programs think right.
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
            None if self.hinders() => {
                let hindrance = hindrance(self.random.below(4), &now);
                self.change_pod(name, |pod| {
                    pod["status"] = hindrance;
                    pod["status"]["message"] = HINDRANCE.into();
                });
            }
            // What a test put there stays.
            Some("Pending") if pod["status"]["message"] != HINDRANCE => {}
            // A launcher's first container finds out that it cannot go on.
            Some("Pending") if is_launcher(&pod) && self.hinders() => self.change_pod(name, |pod| {
                pod["status"]["phase"] = "Failed".into();
                pod["status"]["initContainerStatuses"] = json!([{"name": "wait-for-workers", "state": {"terminated": {
                    "exitCode": 1, "reason": "Error", "finishedAt": now, "message": "the end",
                }}}]);
                pod["status"]["containerStatuses"] =
                    json!([{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]);
            }),
            Some("Pending") if self.hinders() => {}
            None | Some("Pending") => {
                let env = pod["spec"]["containers"][0]["env"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let of = |wanted: &str| {
                    let var = env.iter().find(|var| var["name"] == wanted);
                    var.map(|var| var["value"].as_str().unwrap().to_owned())
                        .unwrap_or_default()
                };
                let label = |name: &str| pod["metadata"]["labels"][name].as_str().unwrap().to_owned();
                let user = (
                    of("IPUOF_VIPU_API_PARTITION_ID"),
                    label("graphcore.ai/ipujob-uid"),
                    label("graphcore.ai/attempt"),
                );
                self.expect_fenced(&pod, &user.0);
                if is_launcher(&pod) {
                    self.expect_rights(&pod);
                }
                self.running.insert(uid, user);
                let ready = if self.hinders() { "False" } else { "True" };
                self.change_pod(name, |pod| {
                    pod["spec"]["nodeName"] = "node".into();
                    pod["status"] = json!({"phase": "Running", "conditions": [
                        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                        {"type": "Ready", "status": ready, "lastTransitionTime": now},
                    ]});
                });
            }
            Some("Running") if is_ready(&pod) == self.hinders() => self.change_pod(name, |pod| {
                let ready = if is_ready(pod) { "False" } else { "True" };
                pod["status"]["conditions"][1] =
                    json!({"type": "Ready", "status": ready, "lastTransitionTime": now});
            }),
            // The node needs its room. What its containers did is not told.
            Some("Running") if self.trouble != 0 && self.random.one_in(40) => {
                self.running.remove(&uid);
                self.change_pod(name, |pod| {
                    pod["status"]["phase"] = "Failed".into();
                    pod["status"]["reason"] = "Evicted".into();
                    pod["status"]["message"] = "The node was low on resource: memory.".into();
                });
            }
            Some("Running") => {
                let serves = pod["spec"]["containers"][0]["command"][2]
                    .as_str()
                    .is_some_and(|command| command.contains("sleep"));
                if serves && !(self.trouble != 0 && self.random.one_in(60)) {
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

    /// Whether something stands in the way of a Kubernetes Pod now.
    fn hinders(&mut self) -> bool {
        self.trouble != 0 && self.random.one_in(6)
    }
}

/// What keeps a Kubernetes Pod from running.
fn hindrance(which: u64, now: &str) -> Value {
    let scheduled =
        |status: &str| json!({"type": "PodScheduled", "status": status, "lastTransitionTime": now});
    let waiting = |reason: &str| {
        json!({"phase": "Pending", "conditions": [scheduled("True")], "containerStatuses":
            [{"name": "main", "state": {"waiting": {"reason": reason, "message": HINDRANCE}}}]})
    };
    match which {
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
