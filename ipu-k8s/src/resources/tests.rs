//! The Kubernetes Pods of jobs whose templates have more than the usual.

use ipu_core::Limits;

use super::*;

/// What a job of one worker is made into, a worker and a launcher, if its spec is changed so.
fn pods(network: Network, change: impl FnOnce(&mut Value)) -> (Value, Value) {
    let mut spec = json!({
        "jobInstances": 1, "ipusPerJobInstance": "1",
        "launcher": {"command": ["mpirun", "train"]},
        "workers": {"template": {"spec": {"containers": [{"name": "main", "image": "i"}]}}},
    });
    change(&mut spec);
    let object = json!({
        "apiVersion": IpuJob::API_VERSION, "kind": IpuJob::KIND,
        "metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": spec,
    });
    let (job, faults) = IpuJob::from_value(object);
    assert!(faults.is_empty(), "{faults:?}");
    let spec = job.to_raw().parse(&Limits::default()).unwrap().spec;
    let installation = InstallationDefaults {
        network,
        ..InstallationDefaults::default()
    };
    let blueprint = ResourceBuilder {
        job: &job,
        spec: &spec,
        installation: &installation,
    };
    let env = [("HOST", "proxy"), ("PORT", "8090"), ("PARTITION_ID", "ours")];
    let env = env.map(|(name, value)| (format!("IPUOF_VIPU_API_{name}"), value.to_owned()));
    let place = PartitionEndpoint {
        partition: PartitionId::new("ours").unwrap(),
        env: env.into(),
        node_label: None,
    };
    (
        blueprint.worker(0, 0, 0, &place),
        blueprint.launcher(0, 0, &place),
    )
}

fn template(spec: &mut Value) -> &mut Value {
    &mut spec["workers"]["template"]["spec"]
}

#[test]
fn init_containers_and_sidecars_are_led_to_the_partition_and_keep_their_last_words() {
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
        let ours = ["proxy", "8090", "ours", "0"].map(|value| (value.into(), 0));
        assert_eq!(names.each_ref().map(value), ours, "{container}");
    }
    assert_eq!(fetch["terminationMessagePolicy"], "File", "it says so itself");
    assert_eq!(watch["terminationMessagePolicy"], "FallbackToLogsOnError");
    // Privileges are for what computes.
    assert_eq!(spec["containers"][0]["securityContext"]["privileged"], true);
    assert_eq!(fetch["securityContext"], Value::Null);
}

#[test]
fn a_launchers_own_variables_win_but_for_those_that_lead_to_the_partition() {
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
fn who_keeps_off_the_network_of_the_node_is_not_led_back_by_the_template() {
    let asks = |spec: &mut Value| {
        template(spec)["hostNetwork"] = true.into();
        template(spec)["dnsPolicy"] = "Default".into();
    };
    let declined = |spec: &mut Value| {
        asks(spec);
        spec["workers"]["hostNetwork"] = false.into();
    };
    for (worker, launcher) in [pods(Network::Pod, asks), pods(Network::Host, declined)] {
        for pod in [&worker, &launcher] {
            assert_eq!(pod["spec"]["hostNetwork"], Value::Null, "{pod}");
        }
        assert_eq!(worker["spec"]["dnsPolicy"], "Default");
    }
    let (worker, _) = pods(Network::Host, asks);
    assert_eq!(worker["spec"]["hostNetwork"], true);
    assert_eq!(worker["spec"]["dnsPolicy"], "ClusterFirstWithHostNet");
}

#[test]
fn the_container_that_waits_for_workers_satisfies_whatever_the_first_container_does() {
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
