//! Requests to the proxy and to the simulated controller.

use serde_json::Value;

use super::Cluster;

/// URL of the proxy; `curl` connects to its socket or port.
const PROXY: &str = "http://localhost";
/// Address of the simulated controller in its bed.
const CONTROLLER: &str = "http://127.0.0.1:8090";

impl Cluster {
    /// Takes IPUs for an IPUJob.
    pub(crate) fn take(&self, name: &str, size: u32) {
        let owner = format!(r#"{{"kind": "IPUJob", "namespace": "default", "name": "{name}", "uid": "1"}}"#);
        let body = format!(r#"{{"size": {size}, "owner": {owner}}}"#);
        let taken = self.send("PUT", &format!("/v1/partitions/{name}?wait=30s"), &body);
        assert_eq!(taken["state"], "active", "{taken}");
    }

    /// Releases the IPUs of an IPUJob.
    pub(crate) fn release(&self, name: &str) {
        let released = self.send("DELETE", &format!("/v1/partitions/{name}?wait=30s"), "");
        assert_eq!(released["state"], "gone", "{released}");
    }

    /// Cordons machines of the simulated controller.
    pub(crate) fn cordon(&self, agents: &[&str]) {
        for agent in agents {
            let body = format!(
                r#"{{"id": "{agent}", "controller": "127.0.0.1:8090", "machine": "{agent}", "reason": "repair"}}"#
            );
            self.send("POST", "/v1/cordons", &body);
        }
    }

    /// Makes an IPU of the simulated controller unhealthy: its partition is in error.
    pub(crate) fn break_ipu(&self, agent: &str, ipu: u32) {
        let url = format!("{CONTROLLER}/sim/ipus/{agent}/{ipu}");
        let body = r#"{"health": "bad"}"#;
        self.bed.succeed("curl", &["-sf", "-X", "POST", "-d", body, &url]);
    }

    /// Makes a partition of 4 IPUs at the simulated controller, past the proxy.
    pub(crate) fn make_partition(&self, id: &str) {
        let url = format!("{CONTROLLER}/v1/partitions");
        let body = format!(r#"{{"requirements": {{"id": "{id}", "size": 4}}}}"#);
        self.bed
            .succeed("curl", &["-sf", "-X", "POST", "-d", &body, &url]);
    }

    /// Returns a document of the proxy.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.try_get(path)
            .unwrap_or_else(|| panic!("no answer to {path}\n{}", self.bed.logs()))
    }

    /// Returns a document of the proxy; none without an answer.
    pub(crate) fn try_get(&self, path: &str) -> Option<Value> {
        let [option, target] = &self.to_proxy;
        self.read_document(&[option, target, &format!("{PROXY}{path}")])
    }

    /// Returns the partitions of the simulated controller with their IPUs; none without an answer.
    pub(crate) fn try_simulator_state(&self) -> Option<Value> {
        self.read_document(&[&format!("{CONTROLLER}/sim/state")])
    }

    /// Starts to write the events of the proxy to `log/<name>.out`.
    pub(crate) fn start_events(&mut self, name: &str) {
        let url = format!("{PROXY}/v1/events");
        let [option, target] = &self.to_proxy;
        self.bed
            .start_program(name, &["curl", "-sN", option, target, &url]);
    }

    fn read_document(&self, arguments: &[&str]) -> Option<Value> {
        let output = self.bed.run("curl", &[&["-sf"], arguments].concat());
        let text = Some(output.stdout).filter(|_| output.success)?;
        serde_json::from_str(&text).ok()
    }

    /// Sends a request with a body to the proxy.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Value {
        let [option, target] = &self.to_proxy;
        let mut arguments = vec!["-sf", option, target, "-X", method];
        arguments.extend(["-H", "content-type: application/json"]);
        let url = format!("{PROXY}{path}");
        arguments.extend(["-d", body, &url]);
        serde_json::from_str(&self.bed.succeed("curl", &arguments)).unwrap()
    }

    /// Returns the partitions and requests of the ledger.
    pub(crate) fn ledger(&self) -> Vec<Value> {
        self.get("/v1/partitions")["partitions"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// Returns the ids of the partitions of the simulated controller.
    pub(crate) fn hardware(&self) -> Vec<String> {
        let text = self
            .bed
            .succeed("curl", &["-sf", "http://127.0.0.1:8090/v1/partitions"]);
        let document: Value = serde_json::from_str(&text).unwrap();
        let list = document["partitions"].as_array().cloned().unwrap_or_default();
        list.iter()
            .map(|partition| partition["id"].as_str().unwrap().to_owned())
            .collect()
    }
}
