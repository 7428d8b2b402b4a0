//! Tests of the Pods of jobs with unusual templates.

use ipu_core::job::Limits;
use serde_json::{Value, json};

use super::*;

/// Returns the worker and the launcher of a job with one worker, after `change` to its spec.
fn pods(network: Network, change: impl FnOnce(&mut Value)) -> (Value, Value) {
    let mut spec = json!({
        "jobInstances": 1, "ipusPerJobInstance": "1",
        "launcher": {"command": ["mpirun", "train"]},
        "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
    });
    change(&mut spec);
    let mut job = IpuJob::new("a", serde_json::from_value(spec).unwrap());
    job.metadata.namespace = Some("n".to_owned());
    job.metadata.uid = Some("u".to_owned());
    let spec = job.parse(&Limits::default()).unwrap().spec;
    let installation = InstallationDefaults {
        network,
        ..InstallationDefaults::default()
    };
    let builder = ResourceBuilder::new(&job, &spec, &installation).unwrap();
    let env = [("HOST", "proxy"), ("PORT", "8090"), ("PARTITION_ID", "ours")];
    let env = env.map(|(name, value)| (format!("IPUOF_VIPU_API_{name}"), value.to_owned()));
    let endpoint = PartitionEndpoint {
        partition: PartitionId::new("ours").unwrap(),
        env: env.into(),
        node_label: None,
    };
    let as_json = |pod: Pod| serde_json::to_value(pod).unwrap();
    (
        as_json(builder.worker(0, 0, 0, &endpoint)),
        as_json(builder.launcher(0, 0, &endpoint)),
    )
}

fn template(spec: &mut Value) -> &mut Value {
    &mut spec["workers"]["template"]["spec"]
}

#[test]
fn init_containers_and_sidecars_get_the_partition_variables_and_a_termination_message_policy() {
    let names = ["HOST", "PORT", "PARTITION_ID", "GCD_ID"].map(|name| format!("IPUOF_VIPU_API_{name}"));
    let stale: Vec<Value> = names
        .iter()
        .map(|name| json!({"name": name, "value": "stale"}))
        .collect();
    let (worker, _) = pods(Network::Host, |spec| {
        template(spec)["initContainers"] = json!([
            {"name": "fetch", "image": "i", "env": stale, "terminationMessagePolicy": "File"},
            {"name": "watch", "image": "i", "env": stale, "restartPolicy": "Always"},
        ]);
        template(spec)["containers"][0]["env"] = json!(stale);
    });
    let spec = &worker["spec"];
    let (fetch, watch) = (&spec["initContainers"][0], &spec["initContainers"][1]);
    for container in [fetch, watch, &spec["containers"][0]] {
        let env = container["env"].as_array().unwrap();
        let value = |name: &String| {
            let mut all = env.iter().filter(|var| var["name"] == **name);
            (all.next().unwrap()["value"].clone(), all.count())
        };
        let expected = ["proxy", "8090", "ours", "0"].map(|value| (value.into(), 0));
        assert_eq!(names.each_ref().map(value), expected, "{container}");
    }
    assert_eq!(
        fetch["terminationMessagePolicy"], "File",
        "the container sets its own policy"
    );
    assert_eq!(watch["terminationMessagePolicy"], "FallbackToLogsOnError");
    // Privileges are for main containers only.
    assert_eq!(spec["containers"][0]["securityContext"]["privileged"], true);
    assert_eq!(fetch["securityContext"], Value::Null);
}

#[test]
fn labels_of_the_template_reach_the_workers() {
    let (worker, _) = pods(Network::Host, |spec| {
        spec["workers"]["template"]["metadata"] = json!({"labels": {"suite": "nightly"}});
    });
    assert_eq!(worker["metadata"]["labels"]["suite"], "nightly");
}

#[test]
fn launcher_variables_override_the_template_except_the_partition_variables() {
    let (_, launcher) = pods(Network::Host, |spec| {
        template(spec)["containers"][0]["env"] = json!([{"name": "A", "value": "worker"}]);
        spec["launcher"]["env"] = json!([
            {"name": "A", "value": "launcher"},
            {"name": "OMPI_MCA_plm_rsh_no_tree_spawn", "value": "0"},
            {"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "stale"},
        ]);
    });
    let env = launcher["spec"]["containers"][0]["env"].as_array().unwrap();
    let values = |name: &str| -> Vec<&Value> {
        let all = env.iter().filter(|var| var["name"] == name);
        all.map(|var| &var["value"]).collect()
    };
    assert_eq!(values("A"), ["launcher"]);
    assert_eq!(values("OMPI_MCA_plm_rsh_no_tree_spawn"), ["0"]);
    assert_eq!(values("IPUOF_VIPU_API_PARTITION_ID"), ["ours"]);
}

#[test]
fn the_template_cannot_enable_a_declined_host_network() {
    let request_host_network = |spec: &mut Value| {
        template(spec)["hostNetwork"] = true.into();
        template(spec)["dnsPolicy"] = "Default".into();
    };
    let decline_host_network = |spec: &mut Value| {
        request_host_network(spec);
        spec["workers"]["hostNetwork"] = false.into();
    };
    for (worker, launcher) in [
        pods(Network::Pod, request_host_network),
        pods(Network::Host, decline_host_network),
    ] {
        for pod in [&worker, &launcher] {
            assert_eq!(pod["spec"]["hostNetwork"], Value::Null, "{pod}");
        }
        assert_eq!(worker["spec"]["dnsPolicy"], "Default");
    }
    let (worker, _) = pods(Network::Host, request_host_network);
    assert_eq!(worker["spec"]["hostNetwork"], true);
    assert_eq!(worker["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
}

#[test]
fn the_wait_container_satisfies_the_security_profile_of_the_first_container() {
    let (_, launcher) = pods(Network::Pod, |spec| {
        template(spec)["containers"][0]["securityContext"] = json!({
            "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 100, "privileged": false,
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]},
            "seccompProfile": {"type": "RuntimeDefault"}, "readOnlyRootFilesystem": true,
        });
    });
    assert_eq!(
        launcher["spec"]["initContainers"][0]["securityContext"],
        json!({
            "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 100,
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        })
    );
    // The user of the image, and of the template's Pod.
    let (_, launcher) = pods(Network::Host, |_| {});
    assert_eq!(
        launcher["spec"]["initContainers"][0]["securityContext"],
        json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
    );
}

#[test]
fn a_launcher_has_the_resources_of_its_field_or_small_ones() {
    let resources = |change: fn(&mut Value)| {
        let (_, launcher) = pods(Network::Host, change);
        let spec = &launcher["spec"];
        assert_eq!(
            spec["containers"][0]["resources"],
            spec["initContainers"][0]["resources"]
        );
        spec["containers"][0]["resources"].clone()
    };
    assert_eq!(
        resources(|spec| template(spec)["containers"][0]["resources"] = json!({"limits": {"cpu": "64"}})),
        json!({"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}})
    );
    assert_eq!(
        resources(|spec| spec["launcher"]["resources"] = json!({"limits": {"memory": "1Gi"}})),
        json!({"limits": {"memory": "1Gi"}})
    );
}

#[test]
fn a_launcher_resembles_the_container_of_the_job_and_names_its_own() {
    const DEFAULT: &str = "kubectl.kubernetes.io/default-container";
    let (worker, launcher) = pods(Network::Host, |spec| {
        let template = &mut spec["workers"]["template"];
        template["metadata"]["annotations"][DEFAULT] = json!("main");
        template["spec"]["containers"] =
            json!([{"name": "proxy", "image": "p"}, {"name": "main", "image": "i"}]);
    });
    assert_eq!(launcher["spec"]["containers"][0]["image"], "i");
    assert_eq!(launcher["metadata"]["annotations"][DEFAULT], "launcher");
    assert_eq!(worker["metadata"]["annotations"][DEFAULT], "main");
    // Only the container of the job waits for ranks.
    assert_eq!(worker["spec"]["containers"][0]["command"], Value::Null);
    assert_eq!(worker["spec"]["containers"][1]["command"][0], "/bin/sh");
    let (worker, _) = pods(Network::Host, |_| {});
    assert_eq!(worker["metadata"]["annotations"][DEFAULT], "main");
}

#[test]
fn a_configuration_file_of_the_template_reaches_no_container() {
    let (worker, launcher) = pods(Network::Host, |spec| {
        let path = json!([{"name": "IPUOF_CONFIG_PATH", "value": "/etc/ipuof.conf.d/pod16_a01.conf"}]);
        spec["launcher"]["env"] = path.clone();
        template(spec)["initContainers"] = json!([{"name": "first", "image": "i", "env": path}]);
        template(spec)["containers"][0]["env"] = path;
    });
    for pod in [worker, launcher] {
        assert!(!pod["spec"].to_string().contains("IPUOF_CONFIG_PATH"), "{pod}");
    }
}
