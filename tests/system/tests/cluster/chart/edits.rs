//! Edits of the ConfigMap of the V-IPU controllers, and upgrades.

use ipu_test_cluster::{Cluster, Tool, find_tools, shared};

use super::refusals::{assert_golden, message_of};
use crate::installation::repository;

const NAMESPACE: &str = "edits";
const RELEASE: &str = "edited";
const CONFIG_MAP: &str = "edited-ipu-operator-vipu-controllers";
const FIRST: &str = "a:8090:x=1,b:8090:x=2";
const EDITED: &str = "a:8090:x=1,c:8090:x=3";
const SECOND: &str = "d:8090:x=4";

#[test]
fn an_upgrade_keeps_edited_controllers_and_refuses_a_conflict_with_the_values() {
    let name = "an_upgrade_keeps_edited_controllers_and_refuses_a_conflict_with_the_values";
    let (Some(_), Some(cluster)) = (find_tools(name, &Tool::HELM), shared(name)) else {
        return;
    };
    cluster.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    let upgrade = |helm: Tool, controllers: &str, options: &[&str]| {
        let controllers = format!("global.vipuControllers={}", controllers.replace(',', "\\,"));
        let chart = repository("deploy/helm/ipu-operator");
        let arguments = ["-n", NAMESPACE, "upgrade", "--install", RELEASE, &chart];
        // Another test on this API server installs a release, too.
        let values = ["--set", &controllers, "--set", "watchNamespaces=edits"];
        let arguments = [&arguments[..], &values, options].concat();
        cluster.helm(helm, &arguments).map_err(|error| error.to_string())
    };
    for (before, after) in [
        (Tool::Helm3, Tool::Helm3),
        (Tool::Helm3, Tool::Helm4),
        (Tool::Helm4, Tool::Helm4),
    ] {
        upgrade(before, FIRST, &[]).unwrap();
        assert_eq!(controllers(cluster), FIRST);
        edit(cluster, EDITED);
        for options in [&[][..], &["--set", "controller.replicas=2"], &[]] {
            upgrade(after, FIRST, options).unwrap();
            assert_eq!(controllers(cluster), EDITED, "{after:?}");
        }

        // Under another name, and under its own one again.
        upgrade(after, FIRST, &["--set", "fullnameOverride=renamed"]).unwrap();
        upgrade(after, FIRST, &[]).unwrap();
        assert_eq!(controllers(cluster), EDITED, "{after:?}");

        let error = upgrade(after, SECOND, &[]).unwrap_err();
        assert_golden("refusals-in-cluster", "edited-controllers", message_of(&error));
        assert_eq!(controllers(cluster), EDITED, "{after:?}");

        // Both ways that the message names.
        upgrade(after, EDITED, &[]).unwrap();
        assert_eq!(controllers(cluster), EDITED, "{after:?}");
        edit(cluster, FIRST);
        upgrade(after, SECOND, &[]).unwrap_err();
        edit(cluster, SECOND);
        upgrade(after, SECOND, &[]).unwrap();
        assert_eq!(controllers(cluster), SECOND, "{after:?}");

        // Helm 4 does not take a field from kubectl, except in a release that Helm 3 installed.
        let force = match before {
            Tool::Helm4 => &["--force-conflicts"][..],
            _ => &[],
        };
        upgrade(after, FIRST, force).unwrap();
        assert_eq!(controllers(cluster), FIRST, "{after:?}");
        cluster
            .helm(after, &["-n", NAMESPACE, "uninstall", RELEASE])
            .unwrap();
    }
}

fn controllers(cluster: &Cluster) -> String {
    let path = r"jsonpath={.data.controllers\.yaml}";
    let arguments = ["-n", NAMESPACE, "get", "configmap", CONFIG_MAP, "-o", path];
    cluster.kubectl(&arguments).unwrap()
}

/// Writes the list as `kubectl edit` does.
fn edit(cluster: &Cluster, controllers: &str) {
    let patch = format!(r#"{{"data": {{"controllers.yaml": "{controllers}"}}}}"#);
    let arguments = ["-n", NAMESPACE, "patch", "configmap", CONFIG_MAP];
    let options = ["--type=merge", "--field-manager=kubectl-edit", "-p", &patch];
    cluster.kubectl(&[&arguments[..], &options].concat()).unwrap();
}
