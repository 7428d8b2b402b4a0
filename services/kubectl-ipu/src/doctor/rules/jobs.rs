//! Namespaces and Pods of jobs.

use std::collections::{BTreeMap, BTreeSet};

use ipu_k8s::crd::IpuJob;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, LimitRange, Pod};
use kube::ResourceExt as _;

use crate::doctor::facts::{Facts, JobFacts, known, phase};
use crate::doctor::finding::{CheckResult, Finding, Fix};
use crate::doctor::fixes;
use crate::installation::{Installation, is_name};

const ENFORCE_LABEL: &str = "pod-security.kubernetes.io/enforce";
/// Lower-case parts of log lines about the memory that RDMA locks.
const MEMLOCK_PARTS: [&str; 3] = ["memlock", "ibv_reg_mr", "ibv_create_cq"];
/// Lower-case parts of log lines about a failure.
const ERROR_PARTS: [&str; 8] = [
    "cannot",
    "could not",
    "unable",
    "fail",
    "enomem",
    "too small",
    "not permitted",
    // The warning of libibverbs about a small limit.
    "severely limit",
];

/// Returns kind, namespace and name of a Pod.
fn title(pod: &Pod) -> String {
    format!("Pod {}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

pub(super) fn pods_left(facts: &Facts) -> CheckResult {
    if !known(&facts.operators)?.is_empty() {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    for pod in known(&facts.pods)?
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
    {
        let own = IpuJob::POD_FINALIZER;
        if let Some(index) = pod.finalizers().iter().position(|finalizer| finalizer == own) {
            findings.push(Finding::new(
                title(pod),
                format!("is being deleted, with the finalizer {own}"),
                Fix::run(format!(
                    "kubectl -n {} patch pod {} --type=json -p \
                     '[{{\"op\": \"remove\", \"path\": \"/metadata/finalizers/{index}\"}}]'",
                    pod.namespace().unwrap_or_default(),
                    pod.name_any()
                ))
                .with_note("Only if no operator will come back: it records the outcome of the Pod first."),
            ));
        }
    }
    Ok(findings)
}

/// Returns the namespaces with jobs that the installation reconciles, and those that it is given.
fn namespaces(facts: &Facts) -> Result<BTreeSet<&str>, String> {
    let mut namespaces: BTreeSet<&str> = facts.own_jobs()?.map(|job| job.namespace.as_str()).collect();
    namespaces.extend(known(&facts.installation)?.watch_namespaces());
    Ok(namespaces)
}

pub(super) fn namespace_restricted(facts: &Facts) -> CheckResult {
    let jobs = facts.own_jobs()?;
    // Jobs without the host network run at these levels.
    let declined = |namespace: &str| {
        let mut jobs = jobs.clone().filter(|job| job.namespace == namespace).peekable();
        jobs.peek().is_some() && jobs.all(|job| job.declines_host_network)
    };
    let mut findings = Vec::new();
    if !known(&facts.installation)?.uses_host_network() {
        return Ok(findings);
    }
    for name in namespaces(facts)? {
        let Some(namespace) = facts.namespace(name)? else {
            continue;
        };
        let level = namespace.labels().get(ENFORCE_LABEL).map_or("", String::as_str);
        if matches!(level, "restricted" | "baseline") && !declined(name) {
            findings.push(Finding::new(
                format!("Namespace {name}"),
                format!("enforces the level {level}"),
                Fix::run(format!("kubectl label namespace {name} {ENFORCE_LABEL}=privileged --overwrite")).with_note(
                    "It lets every user who may create Pods there run privileged ones. Do not run it if the level is \
                     your hardening.",
                ),
            ));
        }
    }
    Ok(findings)
}

pub(super) fn namespace_not_watched(facts: &Facts) -> CheckResult {
    let operators = known(&facts.operators)?.iter();
    let operators: Vec<_> = operators
        .map(|operator| Installation::new(operator.clone(), None))
        .collect();
    let mut namespaces: BTreeSet<&str> = known(&facts.jobs)?.iter().map(|job| &*job.namespace).collect();
    if operators.is_empty() {
        // Another rule has a finding.
        return Ok(Vec::new());
    }
    namespaces.retain(|namespace| !operators.iter().any(|operator| operator.watches(namespace)));
    let finding = |namespace| {
        Finding::new(
            format!("Namespace {namespace}"),
            "has IPUJobs, and no operator watches it",
            Fix::inspect(format!("kubectl -n {namespace} get ipujobs"))
                .with_note("Add the namespace to `watchNamespaces` of an installation."),
        )
    };
    Ok(namespaces.into_iter().map(finding).collect())
}

pub(super) fn quota_without_limit_range(facts: &Facts) -> CheckResult {
    let namespaces = namespaces(facts)?;
    let has_default = |range: &LimitRange| {
        let mut limits = range.spec.iter().flat_map(|spec| &spec.limits);
        limits.any(|limit| limit.type_ == "Container" && limit.default.is_some())
    };
    let ranges: Vec<&LimitRange> = known(&facts.limit_ranges)?
        .iter()
        .filter(|range| has_default(range))
        .collect();
    let mut findings = Vec::new();
    for quota in known(&facts.quotas)? {
        let namespace = quota.namespace().unwrap_or_default();
        // Scopes may exclude the Pods of jobs.
        let spec = quota
            .spec
            .as_ref()
            .filter(|spec| spec.scopes.is_none() && spec.scope_selector.is_none());
        let mut keys = spec
            .iter()
            .flat_map(|spec| spec.hard.iter().flatten())
            .map(|(key, _)| key.as_str());
        let Some(key) = keys.find(|key| key.ends_with("cpu") || key.ends_with("memory")) else {
            continue;
        };
        let has_range = ranges
            .iter()
            .any(|range| range.namespace().as_ref() == Some(&namespace));
        if has_range || !namespaces.contains(namespace.as_str()) {
            continue;
        }
        findings.push(Finding::new(
            format!("ResourceQuota {namespace}/{}", quota.name_any()),
            format!("limits {key}, and no LimitRange of the namespace has defaults"),
            Fix::run(format!(
                "echo '{{\"apiVersion\": \"v1\", \"kind\": \"LimitRange\", \"metadata\": {{\"name\": \"ipu-defaults\"}}, \
                 \"spec\": {{\"limits\": [{{\"type\": \"Container\", \"defaultRequest\": {{\"cpu\": \"100m\", \
                 \"memory\": \"64Mi\"}}, \"default\": {{\"cpu\": \"1\", \"memory\": \"1Gi\"}}}}]}}}}' | kubectl -n \
                 {namespace} apply -f -"
            )),
        ));
    }
    Ok(findings)
}

/// Returns the message of a container whose image cannot be pulled.
fn pull_error(status: &ContainerStatus) -> Option<String> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let is_pull = [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
    ]
    .contains(&reason);
    is_pull.then(|| format!("{reason}: {message}"))
}

pub(super) fn launcher_image(facts: &Facts) -> CheckResult {
    let installation = known(&facts.installation)?;
    let image = installation
        .launcher_image()
        .ok_or("the operator does not name the image of the launcher")?;
    let error = |pod: &Pod| {
        let containers = pod
            .spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten());
        let launchers = containers.filter(|container| container.image.as_ref() == Some(&image));
        let launchers: BTreeSet<&str> = launchers.map(|container| container.name.as_str()).collect();
        let status = pod.status.as_ref()?;
        let mut statuses = status.init_container_statuses.iter().flatten();
        statuses.find_map(|status| launchers.contains(&*status.name).then(|| pull_error(status))?)
    };
    let Some((pod, error)) = facts.own_pods()?.find_map(|pod| Some((pod, error(pod)?))) else {
        return Ok(Vec::new());
    };
    const IMAGE: &str = "REGISTRY/ipu-launcher:TAG";
    let (namespace, operator) = (&installation.namespace, installation.operator.name_any());
    let fix =
        fixes::set_value(installation, &format!("--set global.launcherImage={IMAGE}")).unwrap_or_else(|| {
            Fix::template(format!(
                "kubectl -n {namespace} set env deployment/{operator} IPU_OPERATOR_LAUNCHER_IMAGE={IMAGE}"
            ))
        });
    let actual = format!("{}: {error}", title(pod));
    Ok(vec![Finding::new(format!("image {image}"), actual, fix)])
}

pub(super) fn pod_network_failed(facts: &Facts) -> CheckResult {
    let pods: Vec<&Pod> = facts
        .own_pods()?
        .filter(|pod| phase(pod) == Some("Pending"))
        .collect();
    let mut events = BTreeMap::<String, &Event>::new();
    // Events last an hour: the Pod may run by now, or be another one.
    for event in known(&facts.sandbox_events)? {
        let object = &event.involved_object;
        let is_of = |pod: &&&Pod| {
            pod.metadata.namespace == object.namespace
                && pod.metadata.name == object.name
                && (object.uid.is_none() || pod.metadata.uid == object.uid)
        };
        if let Some(pod) = pods.iter().find(is_of) {
            events.insert(title(pod), event);
        }
    }
    let finding = |(title, event): (String, &Event)| {
        let (namespace, name) = (&event.involved_object.namespace, &event.involved_object.name);
        let (namespace, name) = (
            namespace.as_deref().unwrap_or_default(),
            name.as_deref().unwrap_or_default(),
        );
        Finding::new(
            title,
            event.message.as_deref().unwrap_or_default(),
            Fix::inspect(format!("kubectl -n {namespace} describe pod {name}")),
        )
    };
    Ok(events.into_iter().map(finding).collect())
}

/// Returns the line of a log that says that memory could not be locked.
fn memlock_error(log: &str) -> Option<&str> {
    let mut lines = log.lines().map(str::trim);
    lines.find(|line| {
        let line = line.to_lowercase();
        let has = |parts: &[&str]| parts.iter().any(|part| line.contains(part));
        has(&MEMLOCK_PARTS) && has(&ERROR_PARTS)
    })
}

pub(super) fn memlock(facts: &Facts) -> CheckResult {
    let finding = |job: &JobFacts| {
        let failure = job.first_failure.as_ref()?;
        let line = memlock_error(&failure.log)?;
        let node = failure
            .node
            .as_deref()
            .filter(|node| is_name(node))
            .unwrap_or("of the Pod");
        Some(Finding::new(
            format!("node {node}"),
            format!("{} of IPUJob {}/{}: {line}", failure.name, job.namespace, job.name),
            Fix::template("ipuctl render memlock --runtime RUNTIME").with_note(
                "RUNTIME: the container runtime of the node, `containerd`, `k3s`, `k3s-agent` or `docker`. The output is \
                 a file for the node.",
            ),
        ))
    };
    Ok(facts.own_jobs()?.filter_map(finding).collect())
}
