//! The Pods that use an IPUPartition: those with the ConfigMap of its variables.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

/// Selector of the Pods of which a process may run.
pub(crate) const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Returns the names of the Pods in a namespace that use, or may use, the partition with this ConfigMap, as
/// the API server itself lists them. `is_settled` says that the ConfigMap was deleted so long ago that a
/// container without a process gets none.
///
/// # Errors
///
/// If the API server does not list them.
pub(crate) async fn users(
    client: &Client,
    namespace: &str,
    config_map: &str,
    is_settled: bool,
) -> Result<Vec<String>, kube::Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(UNFINISHED);
    let pods = pods.list(&params).await?;
    let users = pods.iter().filter(|pod| uses(pod, config_map, is_settled));
    Ok(users.map(ResourceExt::name_any).collect())
}

/// Returns whether a container of a Pod has, or may get, the variables in a ConfigMap.
fn uses(pod: &Pod, config_map: &str, is_settled: bool) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    if is_settled && spec.node_name.is_none() {
        return false;
    }
    let mut volumes = spec.volumes.iter().flatten();
    if volumes.any(|volume| mounts(volume, config_map)) {
        return true;
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = containers.map(|one| (&one.name, &one.env, &one.env_from, &one.lifecycle));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|one| (&one.name, &one.env, &one.env_from, &one.lifecycle));
    containers
        .chain(ephemeral)
        .any(|(name, env, env_from, lifecycle)| {
            // The kubelet does not report that a container runs before this hook has ended.
            let has_hook = lifecycle
                .as_ref()
                .is_some_and(|lifecycle| lifecycle.post_start.is_some());
            let has_no_process = is_settled && !has_hook && is_waiting(pod, name);
            names(env, env_from, config_map) && !has_no_process
        })
}

fn names(env: &Option<Vec<EnvVar>>, env_from: &Option<Vec<EnvFromSource>>, config_map: &str) -> bool {
    let from = env_from.iter().flatten();
    let from = from.filter_map(|source| source.config_map_ref.as_ref());
    let keys = env.iter().flatten();
    let keys = keys.filter_map(|variable| variable.value_from.as_ref()?.config_map_key_ref.as_ref());
    from.map(|source| &source.name)
        .chain(keys.map(|key| &key.name))
        .any(|name| name == config_map)
}

fn mounts(volume: &Volume, config_map: &str) -> bool {
    let own = volume.config_map.iter().map(|source| source.name.as_str());
    let projected = volume
        .projected
        .iter()
        .flat_map(|projected| projected.sources.iter().flatten());
    let projected = projected.filter_map(|source| source.config_map.as_ref());
    own.chain(projected.map(|source| source.name.as_str()))
        .any(|name| name == config_map)
}

fn is_waiting(pod: &Pod, container: &str) -> bool {
    let Some(status) = &pod.status else { return false };
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut all = lists.into_iter().flat_map(|list| list.iter().flatten());
    let state = all
        .find(|status| status.name == container)
        .and_then(|status| status.state.as_ref());
    state.is_some_and(|state| state.waiting.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value, status: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    fn with_container(extra: Value) -> Value {
        let mut container = json!({"name": "main", "image": "x"});
        container
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        json!({"nodeName": "n", "containers": [{"name": "other", "image": "x"}, container]})
    }

    #[test]
    fn every_way_to_name_the_config_map_is_a_use() {
        let reference = json!({"name": "a-ipuof"});
        let key = json!({"name": "a-ipuof", "key": "IPUOF_VIPU_API_HOST"});
        let init = json!({"name": "i", "image": "x", "envFrom": [{"configMapRef": reference}]});
        let volume = |volume: Value| json!({"nodeName": "n", "containers": [], "volumes": [volume]});
        for spec in [
            with_container(json!({"envFrom": [{"configMapRef": reference}]})),
            with_container(json!({"env": [{"name": "H", "valueFrom": {"configMapKeyRef": key}}]})),
            json!({"nodeName": "n", "containers": [], "initContainers": [init]}),
            json!({"nodeName": "n", "containers": [], "ephemeralContainers": [init]}),
            volume(json!({"name": "v", "configMap": reference})),
            volume(json!({"name": "v", "projected": {"sources": [{"configMap": reference}]}})),
        ] {
            assert!(uses(&pod(spec.clone(), json!({})), "a-ipuof", true), "{spec}");
            assert!(!uses(&pod(spec, json!({})), "b-ipuof", false));
        }
        assert!(!uses(
            &pod(with_container(json!({})), json!({})),
            "a-ipuof",
            false
        ));
    }

    #[test]
    fn a_container_without_a_process_uses_nothing_once_the_config_map_is_gone_for_long() {
        let mut spec = with_container(json!({"envFrom": [{"configMapRef": {"name": "a-ipuof"}}]}));
        let with_state = |state: Value| {
            json!({"containerStatuses": [
                {"name": "other", "image": "x", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}},
                {"name": "main", "image": "x", "imageID": "", "ready": false, "restartCount": 1, "state": state},
            ]})
        };
        for (state, expected) in [
            (
                json!({"waiting": {"reason": "CreateContainerConfigError"}}),
                false,
            ),
            (json!({"waiting": {"reason": "CrashLoopBackOff"}}), false),
            (json!({"running": {}}), true),
            (json!({"terminated": {"exitCode": 0}}), true),
        ] {
            let pod = pod(spec.clone(), with_state(state.clone()));
            assert_eq!(uses(&pod, "a-ipuof", true), expected, "{state}");
            assert!(uses(&pod, "a-ipuof", false), "{state}");
        }
        let waiting = with_state(json!({"waiting": {}}));
        let mut hooked = spec.clone();
        hooked["containers"][1]["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}});
        assert!(uses(&pod(hooked, waiting), "a-ipuof", true));
        spec.as_object_mut().unwrap().remove("nodeName");
        assert!(!uses(&pod(spec.clone(), json!({})), "a-ipuof", true));
        assert!(uses(&pod(spec, json!({})), "a-ipuof", false));
    }
}
