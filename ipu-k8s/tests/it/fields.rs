//! The fields of the IPUJob in its CRD, in the guide, and in a full status.

use ipu_k8s::crd::{IpuJob, IpuJobStatus};
use serde_json::{Value, json};

const GUIDE: &str = include_str!("../../../docs/ipujob.md");
const FULL_STATUS: &str = include_str!("../data/status.json");

/// Returns the paths of all fields of the part `name` of the CRD, except those that Kubernetes defines.
fn paths(name: &str) -> Vec<String> {
    fn collect(path: &str, schema: &Value, to: &mut Vec<String>) {
        let schema = schema.get("items").unwrap_or(schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            collect(&path, field, to);
            to.push(path);
        }
    }
    let definition = IpuJob::definition(&json!({"type": "object"}));
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut all = Vec::new();
    collect(name, &schema["properties"][name], &mut all);
    all
}

#[test]
fn the_guide_documents_every_field_of_a_spec_and_no_other() {
    let all = paths("spec");
    assert!(all.len() > 30, "{all:?}");
    for path in &all {
        // The guide explains only the fields of a group.
        let is_documented = ["`", "."]
            .iter()
            .any(|end| GUIDE.contains(&format!("`{path}{end}")));
        assert!(is_documented, "not in docs/ipujob.md: {path}");
    }
    let quoted = GUIDE.split('`').skip(1).step_by(2);
    let unknown = quoted.filter(|word| word.starts_with("spec.") && !all.iter().any(|path| path == word));
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&str>::new());
}

#[test]
fn a_full_status_has_exactly_the_fields_of_the_crd() {
    let full: Value = serde_json::from_str(FULL_STATUS).unwrap();
    let status: IpuJobStatus = serde_json::from_value(full.clone()).unwrap();
    // The file has every field: none has its default.
    let shown = format!("{status:?}");
    for absent in ["None", "[]", "\"\"", ": 0,", ": 0 "] {
        assert!(!shown.contains(absent), "{absent:?} in {shown}");
    }
    assert_eq!(serde_json::to_value(&status).unwrap(), full);
    for path in paths("status") {
        let mut part = Some(&full);
        for name in path.split('.').skip(1) {
            part = part.and_then(|part| part.get(0).unwrap_or(part).get(name));
        }
        assert!(part.is_some(), "{path}");
    }
}

#[test]
fn every_field_of_a_spec_reaches_the_core_or_is_kubernetes_alone() {
    let job = json!({
        "apiVersion": "graphcore.ai/v1alpha1", "kind": "IPUJob", "metadata": {"name": "a", "uid": "u"},
        "spec": {
            "jobInstances": 2, "ipusPerJobInstance": "8", "workersPerJobInstance": 2, "workerPerJobInstance": 2,
            "modelReplicasPerWorker": 2, "modelReplicas": 1, "ipusPerModelReplica": 1, "cleanPodPolicy": "Workers",
            "interactive": {"ttl": 60},
            "launcher": {
                "command": ["a"], "tcpInterface": "eth0", "resources": {"limits": {"cpu": "1"}},
                "env": [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {}}}],
            },
            "restartPolicy": {"type": "ExitCode", "backOffLimit": 1, "exitCodes": 1, "backOffSeconds": 1},
            "workers": {
                "replicas": 2, "hostNetwork": false,
                "strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "1%"}},
                "template": {"spec": {"containers": [{"name": "main", "fieldOfANewKubernetes": {"a": null}}]}},
            },
            "suspend": true, "headlessService": true, "managedBy": "graphcore.ai/ipu-operator", "ttlSecondsAfterFinished": 1,
            "activeDeadlineSeconds": 1, "startDeadlineSeconds": 1, "priority": -1, "account": "a",
            "preemptible": true, "reconfigurable": true, "allocation": "c1",
        },
    });
    let spec = job["spec"].as_object().unwrap();
    for path in paths("spec") {
        let name = path.split('.').nth(1).unwrap();
        assert!(spec.contains_key(name), "{path} is not in this test");
    }
    let (read, faults) = IpuJob::from_value(job.clone());
    assert_eq!(faults, []);
    read.parse(&ipu_core::job::Limits::default()).unwrap();
    // Nothing is lost, the template included.
    assert_eq!(serde_json::to_value(&read).unwrap()["spec"], job["spec"]);
}
