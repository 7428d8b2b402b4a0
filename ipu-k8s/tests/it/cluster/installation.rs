//! The plain manifests on a real API server: what they install fits together, and nobody may do more than he has to.

use std::fs;

use ipu_k8s::kube::api::PostParams;
use ipu_k8s::kube::{Api, Client};
use ipu_test_cluster::{Cluster, private, shared};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use serde_json::{Value, json};

use super::{config, install};

/// What `kubectl apply -k` is given.
const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");

const NAMESPACE: &str = "ipu-operator-system";
const OPERATOR: &str = "system:serviceaccount:ipu-operator-system:ipu-operator-controller";
const PROXY: &str = "system:serviceaccount:ipu-operator-system:ipu-operator-vipu-proxy";

const JOB: &str = "{apiVersion: graphcore.ai/v1alpha1, kind: IPUJob, metadata: {name: mnist, finalizers: \
                   [ipu.finalizers.graphcore.ai]}, spec: {ipusPerJobInstance: 4, workers: {template: {spec: {containers: \
                   [{name: main, image: x}]}}}}}";

/// The role of a launcher, as the operator makes it, but for what it allows.
const ROLE: &str = "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: mnist-launcher, namespace: default}, \
                    rules: [RULES]}";

fn apply(cluster: &Cluster, text: &str, more: &[&str]) -> Result<String, String> {
    let file = cluster.directory().join("applied.yaml");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let words = [&["apply", "-f", file.to_str().unwrap_or_default()], more].concat();
    cluster.kubectl(&words).map_err(|error| error.to_string())
}

fn get(cluster: &Cluster, words: &[&str]) -> Value {
    let words = [&["get", "-o", "json"], words].concat();
    serde_json::from_str(&cluster.kubectl(&words).unwrap()).unwrap()
}

/// The manifests on a cluster of their own: their webhooks answer nobody.
fn installed(test: &str) -> Option<Cluster> {
    let cluster = private(test)?;
    cluster
        .kubectl(&["apply", "--validate=strict", "-k", MANIFESTS])
        .unwrap();
    Some(cluster)
}

/// Who may do what: user, verb, group, resource (`resource/subresource`, `resource:name`), namespace.
struct Right(
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

impl Right {
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
        let answer = api.create(&PostParams::default(), &review).await.unwrap();
        answer.status.unwrap().allowed
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const LEASES: &str = "coordination.k8s.io";
const WEBHOOKS: &str = "admissionregistration.k8s.io";

const NEEDED: [Right; 44] = [
    Right(OPERATOR, "list", "graphcore.ai", "ipujobs", "default"),
    Right(OPERATOR, "watch", "graphcore.ai", "ipujobs", ""),
    Right(OPERATOR, "patch", "graphcore.ai", "ipujobs", "default"),
    Right(OPERATOR, "delete", "graphcore.ai", "ipujobs", "default"),
    Right(OPERATOR, "update", "graphcore.ai", "ipujobs/status", "default"),
    Right(
        OPERATOR,
        "update",
        "graphcore.ai",
        "ipujobs/finalizers",
        "default",
    ),
    Right(OPERATOR, "list", "", "pods", ""),
    Right(OPERATOR, "watch", "", "pods", ""),
    Right(OPERATOR, "create", "", "pods", "default"),
    Right(OPERATOR, "delete", "", "pods", "default"),
    Right(OPERATOR, "get", "", "pods/log", "default"),
    Right(OPERATOR, "create", "", "pods/exec", "default"),
    Right(OPERATOR, "get", "", "pods/exec", "default"),
    Right(OPERATOR, "create", "", "configmaps", "default"),
    Right(OPERATOR, "patch", "", "configmaps", "default"),
    Right(OPERATOR, "create", "", "serviceaccounts", "default"),
    Right(OPERATOR, "patch", "", "serviceaccounts", "default"),
    Right(OPERATOR, "create", RBAC, "roles", "default"),
    Right(OPERATOR, "patch", RBAC, "rolebindings", "default"),
    Right(OPERATOR, "create", "events.k8s.io", "events", "default"),
    Right(OPERATOR, "patch", "events.k8s.io", "events", "default"),
    Right(OPERATOR, "create", "authentication.k8s.io", "tokenreviews", ""),
    Right(
        OPERATOR,
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews",
        "",
    ),
    Right(OPERATOR, "create", LEASES, "leases", NAMESPACE),
    Right(
        OPERATOR,
        "update",
        LEASES,
        "leases:ee82fc7a.graphcore.ai",
        NAMESPACE,
    ),
    Right(OPERATOR, "create", "", "secrets", NAMESPACE),
    Right(OPERATOR, "get", "", "secrets:ipu-operator-admission", NAMESPACE),
    Right(OPERATOR, "patch", "", "secrets:ipu-operator-admission", NAMESPACE),
    Right(OPERATOR, "get", "", "secrets:ipu-operator-vipu-proxy", NAMESPACE),
    Right(
        OPERATOR,
        "watch",
        "",
        "secrets:ipu-operator-vipu-proxy",
        NAMESPACE,
    ),
    Right(
        OPERATOR,
        "patch",
        "",
        "secrets:ipu-operator-vipu-proxy",
        NAMESPACE,
    ),
    Right(
        OPERATOR,
        "watch",
        LEASES,
        "leases:ee82fc7a.graphcore.ai",
        NAMESPACE,
    ),
    Right(OPERATOR, "watch", "", "secrets:ipu-operator-admission", NAMESPACE),
    Right(
        OPERATOR,
        "watch",
        WEBHOOKS,
        "mutatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Right(
        OPERATOR,
        "watch",
        WEBHOOKS,
        "validatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Right(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "mutatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Right(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "validatingwebhookconfigurations:ipu-operator-admission",
        "",
    ),
    Right(PROXY, "create", "", "configmaps", NAMESPACE),
    Right(PROXY, "patch", "", "configmaps:ipu-partitions-tracker", NAMESPACE),
    Right(
        PROXY,
        "patch",
        "",
        "configmaps:ipu-partitions-tracker-usage-15",
        NAMESPACE,
    ),
    Right(
        PROXY,
        "watch",
        "",
        "configmaps:ipu-operator-vipu-controllers",
        NAMESPACE,
    ),
    Right(PROXY, "create", "authentication.k8s.io", "tokenreviews", ""),
    Right(PROXY, "get", "graphcore.ai", "ipujobs", "default"),
    Right(PROXY, "list", "graphcore.ai", "ipujobs", ""),
];

const DENIED: [Right; 21] = [
    Right(OPERATOR, "get", "", "secrets", "default"),
    Right(OPERATOR, "list", "", "secrets", NAMESPACE),
    Right(OPERATOR, "get", "", "secrets:another", NAMESPACE),
    Right(OPERATOR, "create", "", "secrets", "default"),
    Right(OPERATOR, "list", "", "configmaps", "default"),
    Right(
        OPERATOR,
        "delete",
        "",
        "configmaps:ipu-partitions-tracker",
        NAMESPACE,
    ),
    Right(OPERATOR, "create", "", "serviceaccounts/token", "default"),
    Right(OPERATOR, "escalate", RBAC, "roles", "default"),
    Right(OPERATOR, "bind", RBAC, "roles", "default"),
    Right(OPERATOR, "create", RBAC, "clusterroles", ""),
    Right(OPERATOR, "create", RBAC, "clusterrolebindings", ""),
    Right(
        OPERATOR,
        "patch",
        WEBHOOKS,
        "validatingwebhookconfigurations:another",
        "",
    ),
    Right(OPERATOR, "create", "graphcore.ai", "ipujobs", "default"),
    Right(OPERATOR, "get", "", "nodes", ""),
    Right(PROXY, "get", "", "secrets", NAMESPACE),
    Right(PROXY, "list", "", "configmaps", NAMESPACE),
    Right(
        PROXY,
        "delete",
        "",
        "configmaps:ipu-partitions-tracker",
        NAMESPACE,
    ),
    Right(PROXY, "create", "", "configmaps", "default"),
    Right(PROXY, "patch", "graphcore.ai", "ipujobs", "default"),
    Right(PROXY, "create", "", "pods", "default"),
    Right(
        PROXY,
        "patch",
        "",
        "configmaps:ipu-operator-vipu-controllers",
        NAMESPACE,
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn operator_and_proxy_may_do_what_they_have_to_and_nothing_else() {
    let name = "operator_and_proxy_may_do_what_they_have_to_and_nothing_else";
    let Some(cluster) = installed(name) else {
        return;
    };
    let api = Api::all(Client::try_from(config(&cluster).await).unwrap());
    for right in &NEEDED {
        assert!(right.is_granted(&api).await, "denied: {}", right.review());
    }
    for right in &DENIED {
        assert!(!right.is_granted(&api).await, "granted: {}", right.review());
    }

    // What the operator gives to a launcher it has itself, and it can give nothing else.
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

    // Metrics are for those who are bound to the role that one finds by its label.
    let roles = get(&cluster, &["clusterroles", "-l", "component=metrics-reader"]);
    let role = roles["items"][0]["metadata"]["name"].as_str().unwrap();
    let can = |user: &str| {
        let words = ["auth", "can-i", "get", "/metrics", "--as", user];
        cluster.kubectl(&words).is_ok()
    };
    let reader = "system:serviceaccount:default:prometheus";
    assert!(!can(reader));
    let words = ["create", "clusterrolebinding", "metrics", "--clusterrole", role];
    let account = "--serviceaccount=default:prometheus";
    cluster.kubectl(&[&words[..], &[account]].concat()).unwrap();
    assert!(can(reader));
}

#[test]
fn deployments_services_and_webhooks_of_the_manifests_fit_together() {
    let name = "deployments_services_and_webhooks_of_the_manifests_fit_together";
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
        // The strictest profile, which the namespace enforces, lets them in.
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
fn the_overlay_of_the_guide_sets_what_it_says() {
    let name = "the_overlay_of_the_guide_sets_what_it_says";
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
    let made = cluster.kubectl(&["kustomize", folder.to_str().unwrap()]).unwrap();
    for line in [
        "image: registry.example.com/ipu-operator:0.1.0",
        "image: registry.example.com/vipu-proxy:0.1.0",
        "value: registry.example.com/ipu-launcher:0.1.0",
        "controllers.yaml: pod1:8090:ipunode=pod1,pod2:8090:ipunode=pod2",
        "value: \"false\"",
        // What is not spoken of stays.
        "- --proxy-token-file=/var/run/secrets/vipu-proxy/token",
    ] {
        assert!(made.contains(line), "{line}");
    }
}

#[test]
fn without_an_operator_no_job_is_taken_or_scaled_and_none_is_kept_from_going_or_from_a_label() {
    let name = "without_an_operator_no_job_is_taken_or_scaled_and_none_is_kept_from_going_or_from_a_label";
    let Some(cluster) = private(name) else {
        return;
    };
    install(&cluster);
    apply(&cluster, JOB, &[]).unwrap();
    cluster.kubectl(&["apply", "-k", MANIFESTS]).unwrap();
    // It takes the API server a moment to hear of a webhook, and it asks it for a dry run, too.
    let tried = JOB.replace("name: mnist", "name: other");
    let refused_at_last = |attempt: &dyn Fn() -> Result<String, String>| {
        let refused = std::iter::repeat_with(attempt).take(200).find_map(Result::err);
        assert!(refused.is_some_and(|error| error.contains("failed calling webhook")));
    };
    refused_at_last(&|| apply(&cluster, &tried, &["--dry-run=server"]));
    let scale = ["scale", "ipujob", "mnist", "--replicas=2"];
    refused_at_last(&|| cluster.kubectl(&scale).map_err(|error| error.to_string()));

    // What leaves the spec as it is asks nobody, also while the job is not being deleted.
    let patched = |patch: &str| {
        let patched = cluster.kubectl(&["patch", "ipujob", "mnist", "--type=merge", "-p", patch]);
        patched.map_err(|error| error.to_string())
    };
    let free = r#"{"metadata": {"finalizers": null}}"#;
    patched(r#"{"metadata": {"labels": {"seen": "true"}}}"#).unwrap();
    patched(free).unwrap();
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
    patched(free).unwrap();
    assert_eq!(cluster.kubectl(&["get", "ipujobs", "-o", "name"]).unwrap(), "");
}

#[test]
fn operator_and_proxy_of_the_manifests_speak_tls_with_each_other() {
    let name = "operator_and_proxy_of_the_manifests_speak_tls_with_each_other";
    let Some(cluster) = installed(name) else {
        return;
    };
    let container = |deployment: &str| {
        let words = ["--namespace", NAMESPACE, "deployment", deployment];
        get(&cluster, &words)["spec"]["template"]["spec"].take()
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
    // The operator alone may connect to the port that takes tokens.
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
