//! Healthy snapshots: by manifests, by the chart, several replicas with few namespaces, and without the host
//! network.

use ipu_proxy_client::ControllerStatus;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::doctor::facts::{Certificates, Fact, Facts, JobFacts, Webhook, WebhookConfiguration};
use crate::installation::{Installation, Origin};

/// Time of all snapshots.
pub(super) const NOW: &str = "2026-11-25T12:00:00Z";

/// Version of all snapshots, that of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Converts JSON to an object.
pub(super) fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Returns a self-signed certificate that ends after this time.
pub(super) fn certificate(not_after_days: i64) -> Vec<u8> {
    certificate_of("ca", not_after_days)
}

/// Returns a self-signed certificate with the name of its subject.
pub(super) fn certificate_of(name: &str, not_after_days: i64) -> Vec<u8> {
    let now: jiff::Timestamp = NOW.parse().unwrap();
    let end = now.as_second() + not_after_days * 86_400;
    let mut parameters = rcgen::CertificateParams::new(vec!["ca".into()]).unwrap();
    let days = end / 86_400;
    parameters
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    parameters.not_before = rcgen::date_time_ymd(2020, 1, 1);
    parameters.not_after =
        rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(days as u64 * 86_400);
    let key = rcgen::KeyPair::generate().unwrap();
    parameters.self_signed(&key).unwrap().pem().into_bytes()
}

/// Shape of an installation.
struct Shape {
    namespace: &'static str,
    prefix: &'static str,
    instance: &'static str,
    replicas: i32,
    watched: &'static str,
    host_network: bool,
}

fn labels(shape: &Shape, component: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "ipu-operator", "app.kubernetes.io/instance": shape.instance,
        "app.kubernetes.io/component": component, "control-plane": component,
    })
}

fn deployment(shape: &Shape, name: &str, component: &str, account: &str, args: &Value, env: &Value) -> Value {
    let image = format!("registry.example.com/{component}:{VERSION}");
    json!({
        "metadata": {"name": name, "namespace": shape.namespace, "labels": labels(shape, component)},
        "spec": {
            "replicas": shape.replicas, "selector": {"matchLabels": labels(shape, component)},
            "template": {"spec": {
                "serviceAccountName": account,
                "containers": [{"name": "main", "image": image, "args": args, "env": env}],
            }},
        },
        "status": {"readyReplicas": shape.replicas},
    })
}

fn operator(shape: &Shape) -> Value {
    let Shape {
        prefix,
        host_network,
        watched,
        ..
    } = shape;
    let args = json!([
        format!("--vipu-proxy-svc=https://{prefix}-vipu-proxy.$(POD_NAMESPACE).svc"),
        format!("--proxy-secret={prefix}-vipu-proxy"),
        format!("--webhook-service={prefix}-webhook-svc"),
        format!("--webhook-secret={prefix}-admission"),
        format!("--mutating-webhook-configuration={prefix}-admission"),
        format!("--validating-webhook-configuration={prefix}-admission"),
    ]);
    let env = json!([
        {"name": "IPU_OPERATOR_LAUNCHER_IMAGE", "value": "registry.example.com/ipu-launcher:0.1.0"},
        {"name": "IPU_OPERATOR_HOST_NETWORK", "value": host_network.to_string()},
        {"name": "IPU_OPERATOR_WATCH_NAMESPACES", "value": watched},
    ]);
    let (name, account) = (
        format!("{prefix}-controller-manager"),
        format!("{prefix}-controller"),
    );
    deployment(shape, &name, "controller-manager", &account, &args, &env)
}

fn webhooks(shape: &Shape, kind: &'static str, path: &str, ca: &[u8]) -> WebhookConfiguration {
    let service = format!("{}-webhook-svc", shape.prefix);
    WebhookConfiguration {
        kind,
        name: format!("{}-admission", shape.prefix),
        instance: Some(shape.instance.into()),
        origin: Origin::Manifests,
        release_namespace: None,
        certificate: None,
        has_others: false,
        webhooks: vec![Webhook {
            name: "ipujob.graphcore.ai".into(),
            index: 0,
            service: Some((shape.namespace.into(), service, path.into())),
            ca_bundle: ca.to_vec(),
        }],
    }
}

/// Returns the owner of a job in namespace `team`.
pub(super) fn owner(name: &str, uid: &str) -> Value {
    json!({"kind": "IPUJob", "job": {"namespace": "team", "name": name, "uid": uid}})
}

/// Returns a ledger with an active partition of these fields.
pub(super) fn ledger(id: &str, fields: &Value) -> Fact<Option<k8s_openapi::api::core::v1::ConfigMap>> {
    let mut entry = json!({
        "id": id, "spec": {"size": 4}, "phase": {"is": "active"}, "controller": "pod1:8090", "ticket": 1, "since": 0,
    });
    for (field, value) in fields.as_object().unwrap() {
        entry[field] = value.clone();
    }
    Fact::Read(Some(object(
        json!({"data": {format!("partition.{id}"): entry.to_string()}}),
    )))
}

/// Returns a phase of 900,000 bytes.
pub(super) fn large_phase() -> Value {
    json!({"is": "failed", "errors": ["y".repeat(900_000)]})
}

fn facts(shape: &Shape) -> Facts {
    let prefix = shape.prefix;
    let proxy_args = json!([
        "--store=kubernetes",
        format!("--controllers-configmap={prefix}-vipu-controllers"),
        "--tracker=ipu-partitions-tracker",
    ]);
    let name = format!("{prefix}-vipu-proxy");
    let proxy = deployment(shape, &name, "vipu-proxy", &name, &proxy_args, &json!([]));
    let (operator, proxy) = (object(operator(shape)), object(proxy));
    let ca = certificate(80);
    Facts {
        now: NOW.parse().unwrap(),
        api_time: Fact::Read(NOW.parse().unwrap()),
        installation: Fact::Read(Installation::new(&operator, Some(&proxy)).unwrap()),
        operators: Fact::Read(vec![operator]),
        others: Fact::Read(Vec::new()),
        proxies: Fact::Read(vec![proxy.clone()]),
        proxy: Fact::Read(Some(proxy)),
        crd: Fact::Read(Some(object(json!({
            "metadata": {"name": "ipujobs.graphcore.ai", "annotations": {"graphcore.ai/crd-version": VERSION}},
            "spec": {"group": "graphcore.ai", "scope": "Namespaced", "names": {"kind": "IPUJob", "plural": "ipujobs"},
                "versions": []},
        })))),
        mutating: Fact::Read(vec![webhooks(
            shape,
            "MutatingWebhookConfiguration",
            "/mutate-graphcore-ai-v1alpha1-ipujob",
            &ca,
        )]),
        validating: Fact::Read(vec![webhooks(
            shape,
            "ValidatingWebhookConfiguration",
            "/validate-graphcore-ai-v1alpha1-ipujob",
            &ca,
        )]),
        webhook_service: Fact::Read(Some(object(json!({"metadata": {"name": "webhooks"}})))),
        webhook_certificates: Fact::Read(Certificates {
            ca,
            server: Vec::new(),
        }),
        lease: Fact::Read(Some(object(json!({"spec": {
            "holderIdentity": "operator-1", "renewTime": "2026-11-25T11:59:58.000000Z", "leaseDurationSeconds": 3,
        }})))),
        controller_list: Fact::Read(Some(object(json!({
            "data": {"controllers.yaml": "pod1:8090:ipunode=pod1"},
        })))),
        controllers: Fact::Read(vec![controller(json!({"available": true, "version": "1.15.1"}))]),
        tracker: ledger(
            "p-training-0",
            &json!({"owner": owner("training", "uid-1"), "since": 1_700_000_030_000_u64}),
        ),
        jobs: Fact::Read(vec![JobFacts {
            namespace: "team".into(),
            name: "training".into(),
            uid: "uid-1".into(),
            declines_host_network: false,
            first_failure: Ok(None),
        }]),
        pods: Fact::Read(vec![object(pod(&json!({})))]),
        events: Fact::Read(Vec::new()),
        nodes: Fact::Read(vec![object(json!({
            "metadata": {"name": "node-a", "labels": {"ipunode": "pod1"}},
            "status": {"capacity": {"rdma/hca": "1k"}, "allocatable": {"rdma/hca": "1k"}},
        }))]),
        node_leases: Fact::Read(vec![object(json!({
            "metadata": {"name": "node-a"}, "spec": {"renewTime": "2026-11-25T11:59:55.000000Z"},
        }))]),
        namespaces: Fact::Read(vec![
            object(json!({"metadata": {"name": "team"}})),
            object(json!({"metadata": {"name": shape.namespace}})),
        ]),
        quotas: Fact::Read(Vec::new()),
        limit_ranges: Fact::Read(Vec::new()),
        attachments: Fact::Read(None),
        missing_permissions: Fact::Read(Vec::new()),
    }
}

/// Returns a running worker; `extra` replaces its fields.
pub(super) fn pod(extra: &Value) -> Value {
    let mut pod = json!({
        "metadata": {"name": "training-worker-0-0", "namespace": "team"},
        "spec": {"containers": [{"name": "main", "image": "team/training:1"}]},
        "status": {"phase": "Running"},
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        pod[key] = value.clone();
    }
    pod
}

/// Returns the status of the controller pod1:8090 with these fields.
pub(super) fn controller(fields: Value) -> ControllerStatus {
    let mut status = json!({
        "name": "pod1:8090", "host": "pod1", "port": 8090, "nodeLabel": "ipunode=pod1", "available": false,
        "draining": false, "version": null, "free": 16, "largestBlock": 16, "failuresInARow": 0, "error": null,
        "lastSuccessSecondsAgo": 1,
    });
    for (key, value) in fields.as_object().unwrap() {
        status[key] = value.clone();
    }
    object(status)
}

/// Returns a healthy installation by the manifests.
pub(super) fn by_manifests() -> Facts {
    facts(&Shape {
        namespace: "ipu-operator-system",
        prefix: "ipu-operator",
        instance: "ipu-operator",
        replicas: 1,
        watched: "",
        host_network: true,
    })
}

/// Returns a healthy installation without the host network, with a second network for Pods.
pub(super) fn without_host_network() -> Facts {
    let mut facts = facts(&Shape {
        namespace: "ipu",
        prefix: "gc-ipu-operator",
        instance: "gc",
        replicas: 1,
        watched: "",
        host_network: false,
    });
    let restricted = json!({"name": "team", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}});
    let installed = json!({"metadata": {"name": "ipu"}});
    facts.namespaces = Fact::Read(vec![object(json!({"metadata": restricted})), object(installed)]);
    let status = json!([{"interface": "eth0"}, {"interface": "ib0"}]).to_string();
    let annotations = json!({
        "k8s.v1.cni.cncf.io/networks": "ipu/macvlan@ib0", "k8s.v1.cni.cncf.io/network-status": status,
    });
    let resources = json!({"limits": {"rdma/hca": "1"}});
    let pod = pod(&json!({
        "metadata": {"name": "training-worker-0-0", "namespace": "team", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": resources}]},
    }));
    facts.pods = Fact::Read(vec![object(pod)]);
    facts.attachments = Fact::Read(Some(vec!["ipu/macvlan".into()]));
    facts
}

/// Returns all healthy installations with their names.
pub(super) fn healthy() -> [(&'static str, Facts); 4] {
    let chart = Shape {
        namespace: "ipu",
        prefix: "gc-ipu-operator",
        instance: "gc",
        replicas: 1,
        watched: "",
        host_network: true,
    };
    let shared = Shape {
        replicas: 3,
        watched: "team, other",
        ..chart
    };
    let mut with_quota = facts(&shared);
    with_quota.quotas = Fact::Read(vec![object(json!({
        "metadata": {"name": "compute", "namespace": "team"}, "spec": {"hard": {"limits.cpu": "8"}},
    }))]);
    with_quota.limit_ranges = Fact::Read(vec![object(json!({
        "metadata": {"name": "defaults", "namespace": "team"},
        "spec": {"limits": [{"type": "Container", "default": {"cpu": "1"}}]},
    }))]);
    // A job that was deleted a moment ago is no leak.
    with_quota.tracker = ledger(
        "p-gone-0",
        &json!({"owner": owner("gone", "uid-9"), "since": 1_795_607_990_000_u64}),
    );
    [
        ("by manifests", by_manifests()),
        ("by the chart", facts(&chart)),
        ("with few namespaces and a quota", with_quota),
        ("without host network", without_host_network()),
    ]
}
