//! The nodes: a kubelet that runs nothing, and says that it does.

use serde_json::json;

use super::world::{State, time};

impl State {
    /// One Kubernetes Pod gets on.
    pub(super) fn kubelet(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = &names[usize::try_from(self.random.below(names.len() as u64)).unwrap()];
        let pod = self.pods[name].clone();
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
            None => {
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
                self.running.insert(uid, user);
                self.change_pod(name, |pod| {
                    pod["spec"]["nodeName"] = "node".into();
                    pod["status"] = json!({"phase": "Running", "conditions": [
                        {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                        {"type": "Ready", "status": "True", "lastTransitionTime": now},
                    ]});
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
}
