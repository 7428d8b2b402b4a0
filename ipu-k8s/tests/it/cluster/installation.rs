//! The plain manifests on a real API server: consistency, and least privilege.

use std::fs;

use ipu_k8s::kube::api::PostParams;
use ipu_k8s::kube::{Api, Client};
use ipu_test_cluster::{Cluster, private, shared};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use serde_json::{Value, json};

use super::{config, install};

/// Folder for `kubectl apply -k`.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");

const NAMESPACE: &str = "ipu-operator-system";
const OPERATOR: &str = "system:serviceaccount:ipu-operator-system:ipu-operator-controller";
const PROXY: &str = "system:serviceaccount:ipu-operator-system:ipu-operator-vipu-proxy";

const JOB: &str = "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: mnist, finalizers: \
                   [ipu.finalizers.graphcore.ai]}, spec: {ipusPerJobInstance: 4, workers: {template: {spec: {containers: \
                   [{name: main, image: x}]}}}}}";

/// Role of a launcher as the operator creates it, with a placeholder for its rules.
const ROLE: &str = "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: mnist-launcher, namespace: default}, \
                    rules: [RULES]}";

fn apply(cluster: &Cluster, text: &str, options: &[&str]) -> Result<String, String> {
    let file = cluster.directory().join("applied.yaml");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let arguments = [&["apply", "-f", file.to_str().unwrap_or_default()], options].concat();
    cluster.kubectl(&arguments).map_err(|error| error.to_string())
}

fn get(cluster: &Cluster, arguments: &[&str]) -> Value {
    let arguments = [&["get", "-o", "json"], arguments].concat();
    serde_json::from_str(&cluster.kubectl(&arguments).unwrap()).unwrap()
}

/// Installs the manifests on a private cluster; their webhooks are unreachable.
fn installed(test: &str) -> Option<Cluster> {
    let cluster = private(test)?;
    cluster
        .kubectl(&["apply", "--validate=strict", "-k", MANIFESTS])
        .unwrap();
    Some(cluster)
}

/// Permission: user, verb, group, resource (`resource/subresource`, `resource:name`), namespace.
struct Permission(
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

impl Permission {
    fn review(&self) -> Value {
        let Self(user, verb, group, resource, namespace) = self;
        let (resource, name) = resource.split_once(':').unwrap_or((resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
            "spec": {
                "user": user,
                "groups": ["system:serviceaccounts", "system:serviceaccounts:ipu-operator-system", "system:authenticated"],
                "resourceAttributes": {
                    "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name,
                    "namespace": namespace,
                },
            },
        })
    }

    async fn is_granted(&self, api: &Api<SubjectAccessReview>) -> bool {
        let review = serde_json::from_value(self.review()).unwrap();
        let response = api.create(&PostParams::default(), &review).await.unwrap();
        response.status.unwrap().allowed
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const LEASES: &str = "coordination.k8s.io";
const CRDS: &str = "apiextensions.k8s.io";
const WEBHOOKS: &str = "admissionregistration.k8s.io";

const REQUIRED_PERMISSIONS: [Permission; 58] = [
    Permission(OPERATOR, "list", "graphcore.ai", "ipujobs", "default"),
    Permission(OPERATOR, "watch", "graphcore.ai", "ipujobs", ""),
    Permission(OPERATOR, "patch", "graphcore.ai", "ipujobs", "default"),
    Permission(OPERATOR, "delete", "graphcore.ai", "ipujobs", "default"),
    Permission(OPERATOR, "update", "graphcore.ai", "ipujobs/status", "default"),
    Permission(
        OPERATOR,
        "update",
        "graphcore.ai",
        "ipujobs/finalizers",
        "default",
    ),
    Permission(OPERATOR, "watch", "graphcore.ai", "ipupartitions", ""),
    Permission(OPERATOR, "patch", "graphcore.ai", "ipupartitions", "default"),
    Permission(OPERATOR, "delete", "graphcore.ai", "ipupartitions", "default"),
    Permission(
        OPERATOR,
        "update",
        "graphcore.ai",
        "ipupartitions/status",
        "default",
    ),
    Permission(
        OPERATOR,
        "update",
        "graphcore.ai",
        "ipupartitions/finalizers",
        "default",
    ),
    Permission(OPERATOR, "create", "", "pods/eviction", "default"),
    Permission(OPERATOR, "delete", "", "configmaps", "default"),
    Permission(OPERATOR, "list", "", "pods", ""),
    Permission(OPERATOR, "watch", "", "pods", ""),
    Permission(OPERATOR, "create", "", "pods", "default"),
    Permission(OPERATOR, "delete", "", "pods", "default"),
    Permission(OPERATOR, "get", "", "pods/log", "default"),
    Permission(OPERATOR, "create", "", "pods/exec", "default"),
    Permission(OPERATOR, "get", "", "pods/exec", "default"),
    Permission(OPERATOR, "create", "", "configmaps", "default"),
    Permission(OPERATOR, "patch", "", "configmaps", "default"),
    Permission(OPERATOR, "create", "", "serviceaccounts", "default"),
    Permission(OPERATOR, "patch", "", "serviceaccounts", "default"),
    Permission(OPERATOR, "create", "", "services", "default"),
    Permission(OPERATOR, "patch", "", "services", "default"),
    Permission(OPERATOR, "create", RBAC, "roles", "default"),
    Permission(OPERATOR, "patch", RBAC, "rolebindings", "default"),
    Permission(OPERATOR, "create", "events.k8s.io", "events", "default"),
    Permission(OPERATOR, "patch", "events.k8s.io", "events", "default"),
    Permission(OPERATOR, "create", "authentication.k8s.io", "tokenreviews", ""),
    Permission(
        OPERATOR,
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews",
        "",
    ),
    Permission(OPERATOR, "create", LEASES, "leases", NAMESPACE),
    Permission(
        OPERATOR,
        "update",
        LEASES,
        "leases:ee82fc7a.graphcore.ai",
        NAMESPACE,
    ),
    Permission(OPERATOR, "create", "", "secrets", NAMESPACE),
    Permission(OPERATOR, "get", "", "secrets:ipu-operator-admission", NAMESPACE),
    Permission(OPERATOR, "patch", "", "secrets:ipu-operator-admission", NAMESPACE),
    Permission(OPERATOR, "get", "", "secrets:ipu-operator-vipu-proxy", NAMESPACE),
    Permission(
        OPERATOR,
        "watch",
        "",
        "secrets:ipu-operator-vipu-proxy",
        NAMESPACE,
    ),
    Permission(
        OPERATOR,
        "patch",
        "",
        "secrets:ipu-operator-vipu-proxy",
        NAMESPACE,
    ),
    Permission(OPERATOR, "watch", "", "secrets:ipu-operator-admission", NAMESPACE),
    Permission(
        OPERATOR,
        "watch",
        WEBHOOKS,
        "mutatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Permission(
        OPERATOR,
        "watch",
        WEBHOOKS,
        "validatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Permission(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "mutatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Permission(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "validatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Permission(OPERATOR, "create", CRDS, "customresourcedefinitions", ""),
    Permission(
        OPERATOR,
        "get",
        CRDS,
        "customresourcedefinitions:ipujobs.graphcore.ai",
        "",
    ),
    Permission(
        OPERATOR,
        "patch",
        CRDS,
        "customresourcedefinitions:ipujobs.graphcore.ai",
        "",
    ),
    Permission(PROXY, "list", "graphcore.ai", "ipupartitions", "default"),
    Permission(PROXY, "create", "", "configmaps", NAMESPACE),
    Permission(PROXY, "patch", "", "configmaps:ipu-partitions-tracker", NAMESPACE),
    Permission(
        PROXY,
        "patch",
        "",
        "configmaps:ipu-partitions-tracker-usage-15",
        NAMESPACE,
    ),
    Permission(
        PROXY,
        "watch",
        "",
        "configmaps:ipu-operator-vipu-controllers",
        NAMESPACE,
    ),
    Permission(PROXY, "create", "coordination.k8s.io", "leases", NAMESPACE),
    Permission(
        PROXY,
        "update",
        "coordination.k8s.io",
        "leases:ipu-partitions-tracker",
        NAMESPACE,
    ),
    Permission(PROXY, "create", "authentication.k8s.io", "tokenreviews", ""),
    Permission(PROXY, "get", "graphcore.ai", "ipujobs", "default"),
    Permission(PROXY, "list", "graphcore.ai", "ipujobs", ""),
];

const FORBIDDEN_PERMISSIONS: [Permission; 22] = [
    Permission(OPERATOR, "get", "", "secrets", "default"),
    Permission(OPERATOR, "list", "", "secrets", NAMESPACE),
    Permission(OPERATOR, "get", "", "secrets:another", NAMESPACE),
    Permission(OPERATOR, "create", "", "secrets", "default"),
    Permission(OPERATOR, "list", "", "configmaps", "default"),
    Permission(OPERATOR, "create", "", "serviceaccounts/token", "default"),
    Permission(OPERATOR, "escalate", RBAC, "roles", "default"),
    Permission(OPERATOR, "bind", RBAC, "roles", "default"),
    Permission(OPERATOR, "create", RBAC, "clusterroles", ""),
    Permission(OPERATOR, "create", RBAC, "clusterrolebindings", ""),
    Permission(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "validatingwebhookconfigurations:another",
        "",
    ),
    Permission(OPERATOR, "patch", CRDS, "customresourcedefinitions:another", ""),
    Permission(
        OPERATOR,
        "delete",
        CRDS,
        "customresourcedefinitions:ipujobs.graphcore.ai",
        "",
    ),
    Permission(OPERATOR, "create", "graphcore.ai", "ipujobs", "default"),
    Permission(OPERATOR, "get", "", "nodes", ""),
    Permission(PROXY, "get", "", "secrets", NAMESPACE),
    Permission(PROXY, "list", "", "configmaps", NAMESPACE),
    Permission(
        PROXY,
        "delete",
        "",
        "configmaps:ipu-partitions-tracker",
        NAMESPACE,
    ),
    Permission(PROXY, "create", "", "configmaps", "default"),
    Permission(PROXY, "patch", "graphcore.ai", "ipujobs", "default"),
    Permission(PROXY, "create", "", "pods", "default"),
    Permission(
        PROXY,
        "patch",
        "",
        "configmaps:ipu-operator-vipu-controllers",
        NAMESPACE,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn operator_and_proxy_have_exactly_the_required_permissions() {
    let name = "operator_and_proxy_have_exactly_the_required_permissions";
    let Some(cluster) = installed(name) else {
        return;
    };
    let api = Api::all(Client::try_from(config(&cluster).await).unwrap());
    for permission in &REQUIRED_PERMISSIONS {
        assert!(
            permission.is_granted(&api).await,
            "denied: {}",
            permission.review()
        );
    }
    for permission in &FORBIDDEN_PERMISSIONS {
        assert!(
            !permission.is_granted(&api).await,
            "granted: {}",
            permission.review()
        );
    }

    // The operator holds all rights that it grants to a launcher, and cannot grant others.
    let as_operator = ["--server-side", "--as", OPERATOR];
    let exec = "{apiGroups: [''], resources: [pods], verbs: [get, list, watch]}, \
                {apiGroups: [''], resources: [pods/exec], resourceNames: [mnist-worker-0], verbs: [create, get]}";
    apply(&cluster, &ROLE.replace("RULES", exec), &as_operator).unwrap();
    let secrets = "{apiGroups: [''], resources: [secrets], verbs: [get]}";
    let error = apply(&cluster, &ROLE.replace("RULES", secrets), &as_operator).unwrap_err();
    assert!(
        error.contains("attempting to grant RBAC permissions not currently held"),
        "{error}"
    );

    // Metrics require a binding to the role with this label.
    let roles = get(&cluster, &["clusterroles", "-l", "component=metrics-reader"]);
    let role = roles["items"][0]["metadata"]["name"].as_str().unwrap();
    let can = |user: &str| {
        let arguments = ["auth", "can-i", "get", "/metrics", "--as", user];
        cluster.kubectl(&arguments).is_ok()
    };
    let reader = "system:serviceaccount:default:prometheus";
    assert!(!can(reader));
    let arguments = ["create", "clusterrolebinding", "metrics", "--clusterrole", role];
    let account = "--serviceaccount=default:prometheus";
    cluster.kubectl(&[&arguments[..], &[account]].concat()).unwrap();
    assert!(can(reader));
}

#[test]
fn deployments_services_and_webhooks_of_the_manifests_are_consistent() {
    let name = "deployments_services_and_webhooks_of_the_manifests_are_consistent";
    let Some(cluster) = installed(name) else {
        return;
    };
    let in_namespace = ["--namespace", NAMESPACE];
    let deployments = get(&cluster, &[&in_namespace[..], &["deployments"]].concat());
    let templates: Vec<&Value> = deployments["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|deployment| &deployment["spec"]["template"])
        .collect();
    assert_eq!(templates.len(), 2);
    for template in &templates {
        // The Pods comply with the restricted profile that the namespace enforces.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "tried", "namespace": NAMESPACE, "labels": template["metadata"]["labels"]},
            "spec": template["spec"],
        });
        apply(&cluster, &pod.to_string(), &["--dry-run=server"]).unwrap();
    }
    for (service, port, target) in [
        ("ipu-operator-vipu-proxy", 80, 8080),
        ("ipu-operator-vipu-proxy", 443, 8443),
        ("ipu-operator-webhook-svc", 443, 9443),
        ("ipu-operator-controller-manager-metrics", 8443, 8443),
    ] {
        let service = get(&cluster, &[&in_namespace[..], &["service", service]].concat());
        let ports = service["spec"]["ports"].as_array().unwrap();
        let ports = ports.iter().find(|ports| ports["port"] == port).unwrap();
        let selector = service["spec"]["selector"].as_object().unwrap();
        let selected = |template: &&&Value| {
            let labels = &template["metadata"]["labels"];
            selector.iter().all(|(label, value)| labels[label] == *value)
        };
        let selected: Vec<_> = templates.iter().filter(selected).collect();
        assert_eq!(selected.len(), 1, "{service}");
        let open = selected[0]["spec"]["containers"][0]["ports"].as_array().unwrap();
        let named = open.iter().find(|open| open["name"] == ports["targetPort"]);
        assert_eq!(named.unwrap()["containerPort"], target);
    }
    for (kind, path) in [
        (
            "mutatingwebhookconfiguration",
            "/mutate-graphcore-ai-v1alpha1-ipujob",
        ),
        (
            "validatingwebhookconfiguration",
            "/validate-graphcore-ai-v1alpha1-ipujob",
        ),
    ] {
        let webhook = &get(&cluster, &[kind, "ipu-operator-admission"])["webhooks"][0];
        let service = &webhook["clientConfig"]["service"];
        assert_eq!(service["name"], "ipu-operator-webhook-svc");
        assert_eq!(service["namespace"], NAMESPACE);
        assert_eq!(service["path"], path);
    }
}

#[test]
fn the_overlay_of_the_guide_sets_the_documented_values() {
    let name = "the_overlay_of_the_guide_sets_the_documented_values";
    let Some(cluster) = shared(name) else {
        return;
    };
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubernetes.md")).unwrap();
    let overlay = guide
        .split("```yaml\n# my-cluster/kustomization.yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let folder = cluster.directory().join("my-cluster");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("kustomization.yaml"), overlay).unwrap();
    let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy");
    std::os::unix::fs::symlink(deploy, cluster.directory().join("deploy")).unwrap();
    let output = cluster.kubectl(&["kustomize", folder.to_str().unwrap()]).unwrap();
    for line in [
        "image: registry.example.com/ipu-operator:0.1.0",
        "image: registry.example.com/vipu-proxy:0.1.0",
        "value: registry.example.com/ipu-launcher:0.1.0",
        "controllers.yaml: pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2",
        // Other settings are unchanged.
        "- --proxy-token-file=/var/run/secrets/vipu-proxy/token",
    ] {
        assert!(output.contains(line), "{line}");
    }
}

#[test]
fn without_an_operator_jobs_cannot_be_created_or_scaled_but_deleted_and_labelled() {
    let name = "without_an_operator_jobs_cannot_be_created_or_scaled_but_deleted_and_labelled";
    let Some(cluster) = private(name) else {
        return;
    };
    install(&cluster);
    apply(&cluster, JOB, &[]).unwrap();
    cluster.kubectl(&["apply", "-k", MANIFESTS]).unwrap();
    // The API server observes a webhook with a delay, and calls it for a dry run too.
    let other_job = JOB.replace("name: mnist", "name: other");
    let wait_for_rejection = |attempt: &dyn Fn() -> Result<String, String>| {
        let refused = std::iter::repeat_with(attempt).take(200).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.contains("failed calling webhook")));
    };
    wait_for_rejection(&|| apply(&cluster, &other_job, &["--dry-run=server"]));
    let scale = ["scale", "ipujob", "mnist", "--replicas=2"];
    wait_for_rejection(&|| cluster.kubectl(&scale).map_err(|error| error.to_string()));

    // An update without spec changes calls no webhook, even if the job is not being deleted.
    let patched = |patch: &str| {
        let patched = cluster.kubectl(&["patch", "ipujob", "mnist", "--type=merge", "-p", patch]);
        patched.map_err(|error| error.to_string())
    };
    let remove_finalizers = r#"{"metadata": {"finalizers": null}}"#;
    patched(r#"{"metadata": {"labels": {"seen": "true"}}}"#).unwrap();
    patched(remove_finalizers).unwrap();
    let refused =
        patched(r#"{"metadata": {"labels": {"seen": "twice"}}, "spec": {"priority": 1}}"#).unwrap_err();
    assert!(refused.contains("failed calling webhook"), "{refused}");
    let job = get(&cluster, &["ipujob", "mnist"]);
    assert_eq!(job["metadata"]["labels"], json!({"seen": "true"}));
    assert!(job["metadata"]["finalizers"].is_null() && job["spec"]["priority"].is_null());
    cluster
        .kubectl(&["scale", "ipujob", "mnist", "--replicas=1"])
        .unwrap();

    patched(r#"{"metadata": {"finalizers": ["ipu.finalizers.graphcore.ai"]}}"#).unwrap();
    cluster
        .kubectl(&["delete", "ipujob", "mnist", "--wait=false"])
        .unwrap();
    patched(remove_finalizers).unwrap();
    assert_eq!(cluster.kubectl(&["get", "ipujobs", "-o", "name"]).unwrap(), "");
}

#[test]
fn the_labels_of_a_jobs_pod_cannot_change() {
    let Some(cluster) = installed("the_labels_of_a_jobs_pod_cannot_change") else {
        return;
    };
    let pod = |name: &str, uid: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, finalizers: [graphcore.ai/ipujob-tracking], labels: \
             {{graphcore.ai/role: worker, graphcore.ai/instance: '0'{uid}}}}}, spec: {{containers: [{{name: main, image: x}}]}}}}"
        )
    };
    cluster.kubectl(&["create", "serviceaccount", "default"]).unwrap();
    apply(&cluster, &pod("tracked", ", graphcore.ai/ipujob-uid: u"), &[]).unwrap();
    apply(&cluster, &pod("other", ""), &[]).unwrap();
    let patched = |pod: &str, metadata: &str| {
        let patch = format!("{{\"metadata\": {metadata}}}");
        let patched = cluster.kubectl(&["patch", "pod", pod, "--type=merge", "-p", &patch]);
        patched.map_err(|error| error.to_string())
    };
    let own = r#"{"labels": {"graphcore.ai/instance": "1"}}"#;
    // The API server observes a policy with a delay, and until then each patch must change a label.
    let refused = (2..400).find_map(|instance| {
        let metadata = format!(r#"{{"labels": {{"graphcore.ai/instance": "{instance}"}}}}"#);
        patched("tracked", &metadata).err()
    });
    assert!(refused.unwrap().contains("cannot change"));
    for metadata in [
        own,
        r#"{"labels": null}"#,
        r#"{"labels": {"graphcore.ai/role": null}}"#,
        r#"{"labels": {"graphcore.ai/instance": "1"}, "finalizers": null}"#,
    ] {
        let refused = patched("tracked", metadata).unwrap_err();
        assert!(
            refused.contains("Delete the Pod instead"),
            "{metadata}: {refused}"
        );
    }
    patched("other", own).unwrap();
    patched(
        "tracked",
        r#"{"labels": {"team": "a"}, "annotations": {"seen": "true"}}"#,
    )
    .unwrap();
    // The operator removes the finalizer before the process has ended.
    patched("tracked", r#"{"finalizers": null}"#).unwrap();
    patched("tracked", own).unwrap_err();
}

#[test]
fn operator_and_proxy_of_the_manifests_use_tls_between_them() {
    let name = "operator_and_proxy_of_the_manifests_use_tls_between_them";
    let Some(cluster) = installed(name) else {
        return;
    };
    let container = |deployment: &str| {
        let arguments = ["--namespace", NAMESPACE, "deployment", deployment];
        get(&cluster, &arguments)["spec"]["template"]["spec"].take()
    };
    let has = |pod: &Value, argument: &str| {
        let arguments = pod["containers"][0]["args"].as_array().unwrap();
        arguments.iter().any(|found| found == argument)
    };
    let (proxy, operator) = (
        container("ipu-operator-vipu-proxy"),
        container("ipu-operator-controller-manager"),
    );
    for argument in [
        "--tls-cert=/var/run/secrets/vipu-proxy-certificate/tls.crt",
        "--tls-key=/var/run/secrets/vipu-proxy-certificate/tls.key",
        "--reading=closed",
    ] {
        assert!(has(&proxy, argument), "{argument}");
    }
    assert!(!proxy.to_string().contains("allow-plain-http"));
    assert_eq!(
        proxy["volumes"][0]["secret"]["secretName"],
        "ipu-operator-vipu-proxy"
    );
    for argument in [
        "--vipu-proxy-svc=https://ipu-operator-vipu-proxy.$(POD_NAMESPACE).svc",
        "--proxy-secret=ipu-operator-vipu-proxy",
    ] {
        assert!(has(&operator, argument), "{argument}");
    }
    // Only the operator may connect to the port that accepts tokens.
    let policy = get(
        &cluster,
        &[
            "--namespace",
            NAMESPACE,
            "networkpolicy",
            "ipu-operator-vipu-proxy",
        ],
    );
    let rules = policy["spec"]["ingress"].as_array().unwrap();
    let open: Vec<_> = rules.iter().filter(|rule| rule["from"].is_null()).collect();
    assert_eq!(open.len(), 1, "{policy}");
    assert_eq!(open[0]["ports"][0]["port"], "http");
}
