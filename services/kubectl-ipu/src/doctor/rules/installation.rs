//! CRD, operator and proxy, and their rights.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use semver::Version;

use crate::doctor::facts::{Facts, known};
use crate::doctor::finding::{CheckResult, Finding, Fix};
use crate::doctor::fixes;
use crate::installation::Installation;

const CRD: &str = "CustomResourceDefinition ipujobs.graphcore.ai";
const CRD_VERSION: &str = "graphcore.ai/crd-version";
/// Time after which a Lease without a renewal is free, if it does not say.
const LEASE_SECONDS: i32 = 15;

/// Parses `1.2.3` or `v1.2.3`.
fn version(text: &str) -> Option<Version> {
    text.strip_prefix('v').unwrap_or(text).parse().ok()
}

/// Returns the command that applies the CRD of this program's version, unless the other version is newer.
fn apply_crd(other: Option<&str>) -> Fix {
    match other.and_then(version) {
        Some(other) if version(env!("CARGO_PKG_VERSION")).is_none_or(|own| own < other) => Fix::advice(
            format!("Use kubectl ipu of version {other}, with the CRD of its bundle."),
        ),
        _ => {
            Fix::run("kubectl apply --server-side --force-conflicts -f deploy/crd/ipujobs.graphcore.ai.yaml")
        }
    }
}

pub(super) fn crd_absent(facts: &Facts) -> CheckResult {
    let operator = facts.installation.as_ref().ok().and_then(Installation::version);
    Ok(match known(&facts.crd)? {
        Some(_) => Vec::new(),
        None => vec![Finding::new(CRD, "absent", apply_crd(operator))],
    })
}

pub(super) fn crd_older(facts: &Facts) -> CheckResult {
    let crd = known(&facts.crd)?.as_ref().ok_or("there is no CRD")?;
    let operator = known(&facts.installation)?.version().unwrap_or_default();
    let expected = version(operator)
        .ok_or_else(|| format!("the operator's version {operator:?} is not a version such as 1.2.3"))?;
    let annotations = crd.metadata.annotations.as_ref();
    let installed = annotations.and_then(|annotations| annotations.get(CRD_VERSION));
    if installed
        .and_then(|text| version(text))
        .is_some_and(|installed| installed >= expected)
    {
        return Ok(Vec::new());
    }
    let installed = installed.map_or("none", String::as_str);
    let actual = format!("its version is {installed}, and that of the operator {operator}");
    Ok(vec![Finding::new(CRD, actual, apply_crd(Some(operator)))])
}

pub(super) fn operator_absent(facts: &Facts) -> CheckResult {
    if !known(&facts.operators)?.is_empty() {
        return Ok(Vec::new());
    }
    let mut proxies = known(&facts.proxies)?.iter();
    let of_release = proxies.find_map(|proxy| fixes::upgrade(proxy, ""));
    let fix = of_release.unwrap_or_else(|| {
        Fix::template("helm install gc deploy/helm/ipu-operator --namespace ipu --create-namespace").with_note(
            "Set your registry and controllers, too. If a namespace has the ledger of an earlier installation, use that \
             namespace. Without Helm, apply your manifests again.",
        )
    });
    Ok(vec![Finding::new("Deployment of the operator", "absent", fix)])
}

/// Returns the finding about a Deployment with too few ready replicas.
fn not_ready(deployment: &Deployment) -> Option<Finding> {
    let spec = deployment.spec.as_ref()?;
    let requested = spec.replicas.unwrap_or(1);
    let ready = deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    if ready >= requested.max(1) {
        return None;
    }
    let (namespace, name) = (deployment.namespace().unwrap_or_default(), deployment.name_any());
    let labels = spec.selector.match_labels.iter().flatten();
    let labels: Vec<_> = labels.map(|(key, value)| format!("{key}={value}")).collect();
    let fix = if requested == 0 {
        Fix::run(format!(
            "kubectl -n {namespace} scale deployment/{name} --replicas=1"
        ))
    } else {
        Fix::inspect(format!(
            "kubectl -n {namespace} describe pods --selector {}",
            labels.join(",")
        ))
    };
    Some(Finding::new(
        format!("Deployment {namespace}/{name}"),
        format!("{ready} of {requested} replicas are ready"),
        fix,
    ))
}

pub(super) fn operator_not_ready(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    Ok(not_ready(&installation.operator).into_iter().collect())
}

pub(super) fn proxy_not_ready(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let namespace = &installation.namespace;
    Ok(match &installation.proxy {
        Some(deployment) => not_ready(deployment).into_iter().collect(),
        None => vec![Finding::new(
            format!("Deployment {namespace}/{}", installation.proxy_service().1),
            "absent",
            fixes::restore(installation),
        )],
    })
}

pub(super) fn proxy_unreachable(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let Some(error) = known(&facts.proxy_error)? else {
        return Ok(Vec::new());
    };
    let Some(proxy) = installation
        .proxy
        .as_ref()
        .filter(|proxy| not_ready(proxy).is_none())
    else {
        return Err("the proxy is not ready".into());
    };
    let (scheme, name, port) = installation.proxy_service();
    let service = known(&facts.proxy_service)?.as_ref();
    let fault = fixes::service_fault(installation, service, proxy, (i32::from(port), scheme));
    let namespace = &installation.namespace;
    let (actual, fix) = fault.unwrap_or_else(|| {
        let fix = Fix::inspect(format!(
            "kubectl -n {namespace} logs deployment/{}",
            proxy.name_any()
        ));
        (error.clone(), fix)
    });
    let object = format!("Service {namespace}/{name}, port {port}");
    Ok(vec![Finding::new(object, actual, fix)])
}

pub(super) fn no_leader(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let now = *known(&facts.now)?;
    let (namespace, lease) = (&installation.namespace, installation.lease());
    let found = known(&facts.lease)?.as_ref();
    let spec = found.and_then(|lease| lease.spec.as_ref());
    let holder = spec
        .and_then(|spec| spec.holder_identity.as_deref())
        .filter(|holder| !holder.is_empty());
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
    let seconds = spec
        .and_then(|spec| spec.lease_duration_seconds)
        .unwrap_or(LEASE_SECONDS);
    // The clock of the operator may differ a little.
    let allowed = SignedDuration::from_secs(i64::from(seconds.max(LEASE_SECONDS)));
    let actual = match (holder, renewed) {
        (Some(_), Some(renewed)) if now.duration_since(renewed) <= allowed => return Ok(Vec::new()),
        (Some(holder), Some(renewed)) => format!("held by {holder}, last renewed at {renewed:.0}"),
        (None, _) if found.is_none() => "absent".into(),
        _ => "held by no operator".into(),
    };
    Ok(vec![Finding::new(
        format!("Lease {namespace}/{lease}"),
        actual,
        Fix::inspect(format!(
            "kubectl -n {namespace} logs deployment/{}",
            installation.operator.name_any()
        )),
    )])
}

/// Returns one finding for each account and scope: a deleted role takes many rights at once.
pub(super) fn permission_missing(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let mut by_scope = BTreeMap::<(&str, Option<&str>), Vec<&str>>::new();
    for right in known(&facts.missing_rights)? {
        let scope = (right.account.as_str(), right.namespace.as_deref());
        by_scope.entry(scope).or_default().push(&right.text);
    }
    let mut findings = Vec::new();
    for ((account, namespace), rights) in by_scope {
        let mut fix = fixes::restore(installation);
        if let Some(name) = namespace.filter(|name| *name != installation.namespace) {
            match facts.namespace(name)? {
                // A namespace that is gone has no jobs, and its rights went with it.
                None => continue,
                Some(found) if found.metadata.deletion_timestamp.is_some() => {
                    fix = bind_in_cluster(installation);
                }
                Some(_) => {}
            }
        }
        let scope = namespace
            .map(|namespace| format!(" in {namespace}"))
            .unwrap_or_default();
        findings.push(Finding::new(
            format!("ServiceAccount {}/{account}", installation.namespace),
            format!("may not {}{scope}", rights.join(", ")),
            fix,
        ));
    }
    Ok(findings)
}

/// Returns the command that gives the operator its rights in a namespace that is being deleted. The deletion
/// takes the RoleBinding first, and the API server accepts no other one there.
fn bind_in_cluster(installation: &Installation) -> Fix {
    let operator = installation.operator.name_any();
    let prefix = operator.trim_end_matches("controller-manager");
    let binding = format!("{prefix}end-of-namespace");
    Fix::run(format!(
        "kubectl create clusterrolebinding {binding} --clusterrole={prefix}manager --serviceaccount={}:{}",
        installation.namespace,
        installation.operator_account()
    ))
    .with_note(format!(
        "Its jobs hold IPUs until the operator may end them. When the namespace is gone, run `kubectl delete \
         clusterrolebinding {binding}`."
    ))
}

/// Returns the namespaces that both watch, if there are any.
fn shared_namespaces(first: &Installation, second: &Installation) -> Option<String> {
    let (first, second) = (first.watch_namespaces(), second.watch_namespaces());
    let shared: BTreeSet<&str> = match (first.is_empty(), second.is_empty()) {
        (true, true) => return Some("all namespaces".into()),
        (true, false) => second,
        (false, true) => first,
        (false, false) => first.intersection(&second).copied().collect(),
    };
    (!shared.is_empty()).then(|| shared.into_iter().collect::<Vec<_>>().join(", "))
}

pub(super) fn overlap(facts: &Facts) -> CheckResult {
    let all = known(&facts.operators)?.iter();
    let all: Vec<_> = all
        .map(|operator| Installation::new(operator.clone(), None))
        .collect();
    let name = |one: &Installation| format!("{}/{}", one.namespace, one.operator.name_any());
    let mut findings = Vec::new();
    for (index, second) in all.iter().enumerate() {
        let mut earlier = all[..index].iter();
        if let Some((first, shared)) =
            earlier.find_map(|first| Some((first, shared_namespaces(first, second)?)))
        {
            findings.push(Finding::new(
                format!("Deployment {}", name(second)),
                format!("it and {} reconcile the jobs of {shared}", name(first)),
                Fix::inspect(
                    "kubectl get deployments --all-namespaces --selector control-plane=controller-manager",
                ),
            ));
        }
    }
    Ok(findings)
}
