//! Namespaces and Pods of jobs.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, LimitRange, Node, Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

use super::super::facts::{Facts, JobFacts};
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::{pods, restore};
use crate::installation::Installation;
use crate::time::age;

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Reasons of a container whose image cannot be pulled.
const PULL_REASONS: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];
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

/// Returns the command that removes the limit of a systemd unit, as `ipuctl render memlock` describes it.
fn memlock_command(unit: &str) -> String {
    let directory = format!("/etc/systemd/system/{unit}.service.d");
    let settings = if unit == "docker" {
        // Docker sets the limits of containers itself.
        r"ExecStart=\nExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock --default-ulimit memlock=-1:-1"
    } else {
        "LimitMEMLOCK=infinity"
    };
    format!(
        "mkdir -p {directory} && printf '[Service]\\n{settings}\\n' >{directory}/memlock.conf && systemctl daemon-reload && \
         systemctl restart {unit}"
    )
}

/// Returns the systemd unit that runs the containers of a node, if the node reports its runtime.
fn runtime_unit(nodes: &[Node], node: &str) -> Option<&'static str> {
    let node = nodes.iter().find(|found| found.name_any() == node)?;
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let version = info.container_runtime_version.as_str();
    let is_server = node
        .labels()
        .contains_key("node-role.kubernetes.io/control-plane");
    Some(match version.split(':').next()? {
        "docker" => "docker",
        "cri-o" => "crio",
        _ if version.contains("k3s") && is_server => "k3s",
        _ if version.contains("k3s") => "k3s-agent",
        "containerd" => "containerd",
        _ => return None,
    })
}

/// Returns the command that removes the limit on a node, or the way to it if the runtime is unknown.
fn remove_memlock(nodes: &[Node], node: &str) -> Fix {
    match runtime_unit(nodes, node) {
        Some("docker") => Fix::run(memlock_command("docker")).with_note(
            "Run it on the node, as root. Drain the node first: a restart of docker ends its containers.",
        ),
        Some(unit) => Fix::run(memlock_command(unit)).with_note("Run it on the node, as root."),
        None => Fix::template("ipuctl render memlock --runtime RUNTIME").with_note(
            "RUNTIME: the container runtime of the node, `containerd`, `k3s`, `k3s-agent` or `docker`. The output is a \
             file for the node.",
        ),
    }
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "NamespaceRestricted",
        condition: "A namespace with jobs enforces the Pod Security level `restricted` or `baseline`, and the \
                    installation uses the host network.",
        effect: "The API server refuses the Pods of its jobs, which use the host network and run privileged.",
        remedy: "Allow the level `privileged`, set `spec.workers.hostNetwork: false` in the jobs, or install with \
                 `worker.hostNetwork=false`.",
        check: restricted,
    },
    Rule {
        code: "NamespaceNotWatched",
        condition: "A namespace has jobs, and no operator watches it.",
        effect: "No operator reconciles its jobs: new ones wait without a reason, others keep their IPUs, and none can be \
                 deleted.",
        remedy: "Add the namespace to `watchNamespaces`. To leave it out, delete its jobs first, while an operator watches \
                 it.",
        check: not_watched,
    },
    Rule {
        code: "QuotaWithoutLimitRange",
        condition: "A namespace with jobs has a ResourceQuota of CPU or memory for all Pods, and no LimitRange with \
                    defaults of these.",
        effect: "The API server refuses Pods without requests and limits, also the launcher's init container.",
        remedy: "Create a LimitRange with defaults.",
        check: quota,
    },
    Rule {
        code: "LauncherImagePullFailed",
        condition: "A node cannot pull the image of the launcher.",
        effect: "Launchers stay Pending, and their jobs hold IPUs.",
        remedy: "Push the image, or correct its name and the pull secrets.",
        check: launcher_image,
    },
    Rule {
        code: "MemlockLimitTooLow",
        condition: "The log of the first failure of a job says that the process could not lock memory.",
        effect: "RDMA to the IPUs fails, and the job with it.",
        remedy: "Remove the limit of the container runtime on the node. Without the host network, root needs only the \
                 capability `IPC_LOCK`, which has no effect for other users.",
        check: memlock,
    },
];

/// Returns the namespaces with jobs that the installation reconciles.
pub(super) fn job_namespaces(facts: &Facts) -> Result<BTreeSet<String>, String> {
    let installation = facts.installation.get()?;
    let jobs = facts.jobs.get()?.iter().map(|job| job.namespace.clone());
    let mut namespaces: BTreeSet<String> = jobs.filter(|namespace| installation.watches(namespace)).collect();
    namespaces.extend(installation.watch_namespaces.iter().cloned());
    Ok(namespaces)
}

fn restricted(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    if !installation.host_network {
        return Ok(Vec::new());
    }
    let of_jobs = job_namespaces(facts)?;
    let jobs = facts.jobs.get()?;
    // Jobs without the host network run at these levels.
    let declined = |namespace: &str| {
        let mut jobs = jobs.iter().filter(|job| job.namespace == namespace).peekable();
        jobs.peek().is_some() && jobs.all(|job| job.declines_host_network)
    };
    let mut findings = Vec::new();
    for namespace in facts.namespaces.get()? {
        let name = namespace.name_any();
        let level = namespace.labels().get(ENFORCE).map_or("", String::as_str);
        if of_jobs.contains(&name) && matches!(level, "restricted" | "baseline") && !declined(&name) {
            findings.push(Finding::new(
                format!("Namespace {name}"),
                format!("enforces the level {level}"),
                "privileged, because jobs use the host network",
                Fix::run(format!(
                    "kubectl label namespace {name} {ENFORCE}=privileged --overwrite"
                ))
                .with_note(
                    "It lets every user who may create Pods there run privileged ones. Do not run it if the level is your \
                     hardening.",
                ),
            ));
        }
    }
    Ok(findings)
}

fn not_watched(facts: &Facts) -> Checked {
    // Without an operator, another rule has a finding.
    facts.installation.get()?;
    let operators = facts.trusted_operators()?.into_iter();
    let installations: Vec<_> = operators
        .filter_map(|operator| Installation::new(operator, None))
        .collect();
    let namespaces: BTreeSet<&str> = facts
        .jobs
        .get()?
        .iter()
        .map(|job| job.namespace.as_str())
        .collect();
    let is_watched = |namespace: &&str| {
        let mut all = installations.iter();
        all.any(|installation| installation.watches(namespace))
    };
    let all = facts.operators.get()?;
    let finding = |namespace: &str| {
        let mut others = all
            .iter()
            .filter_map(|operator| Installation::new(operator, None));
        let untrusted = others.find(|other| other.watches(namespace));
        let (actual, note) = match untrusted {
            None => (
                "has IPUJobs, and no operator watches it".to_owned(),
                "Add the namespace to `watchNamespaces` of an installation.".to_owned(),
            ),
            Some(Installation {
                namespace, operator, ..
            }) => (
                format!("has IPUJobs, and only {namespace}/{operator} watches it, which no webhook leads to"),
                format!(
                    "If that operator is yours, examine it by `--operator-namespace {namespace}`, and do not add the \
                     namespace to another installation."
                ),
            ),
        };
        Finding::new(
            format!("Namespace {namespace}"),
            actual,
            "watched, or without IPUJobs",
            Fix::inspect(format!("kubectl -n {namespace} get ipujobs")).with_note(note),
        )
    };
    Ok(namespaces
        .into_iter()
        .filter(|namespace| !is_watched(namespace))
        .map(finding)
        .collect())
}

/// Returns the keys of a quota of CPU or memory of all Pods. Scopes may exclude the Pods of jobs.
fn compute_keys(quota: &ResourceQuota) -> Vec<&str> {
    let Some(spec) = &quota.spec else {
        return Vec::new();
    };
    if spec.scope_selector.is_some() || spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) {
        return Vec::new();
    }
    let keys = spec.hard.iter().flatten().map(|(key, _)| key.as_str());
    let is_compute = |key: &&str| {
        let name = key.trim_start_matches("requests.").trim_start_matches("limits.");
        matches!(name, "cpu" | "memory")
    };
    keys.filter(is_compute).collect()
}

/// Returns whether a LimitRange gives containers the request or limit that a key of a quota needs.
fn has_default(range: &LimitRange, key: &str) -> bool {
    let (kind, resource) = key.split_once('.').unwrap_or(("requests", key));
    let limits = range.spec.iter().flat_map(|spec| &spec.limits);
    limits.into_iter().any(|limit| {
        let has = |defaults: &Option<BTreeMap<String, Quantity>>| {
            defaults
                .as_ref()
                .is_some_and(|defaults| defaults.contains_key(resource))
        };
        // A limit is the request, too, if there is none.
        let is_covered = has(&limit.default) || kind == "requests" && has(&limit.default_request);
        limit.type_ == "Container" && is_covered
    })
}

fn quota(facts: &Facts) -> Checked {
    let namespaces = job_namespaces(facts)?;
    let ranges = facts.limit_ranges.get()?;
    let mut findings = Vec::new();
    for quota in facts.quotas.get()? {
        let namespace = quota.namespace().unwrap_or_default();
        let mut own = ranges
            .iter()
            .filter(|range| range.namespace().as_ref() == Some(&namespace));
        let missing: Vec<_> = compute_keys(quota)
            .into_iter()
            .filter(|key| !own.clone().any(|range| has_default(range, key)))
            .collect();
        if !namespaces.contains(&namespace) || missing.is_empty() {
            continue;
        }
        let range = if own.next().is_some() {
            "its LimitRanges have no default for it"
        } else {
            "the namespace has no LimitRange"
        };
        findings.push(Finding::new(
            format!("ResourceQuota {namespace}/{}", quota.name_any()),
            format!("limits {}, and {range}", missing.join(", ")),
            "a LimitRange with default requests and limits",
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
    let reason = waiting
        .reason
        .as_deref()
        .filter(|reason| PULL_REASONS.contains(reason))?;
    Some(match waiting.message.as_deref() {
        Some(message) if !message.is_empty() => format!("{reason}: {message}"),
        _ => reason.to_owned(),
    })
}

fn set_launcher_image(installation: &Installation) -> Fix {
    const IMAGE: &str = "REGISTRY/ipu-launcher:TAG";
    let set_env = || {
        Fix::template(format!(
            "kubectl -n {} set env deployment/{} IPU_OPERATOR_LAUNCHER_IMAGE={IMAGE}",
            installation.namespace, installation.operator
        ))
    };
    restore::set_value(installation, &format!("--set global.launcherImage={IMAGE}")).unwrap_or_else(set_env)
}

fn launcher_image(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let Some(image) = &installation.launcher_image else {
        return Err("the operator does not name the image of the launcher".into());
    };
    let error = |pod: &Pod| {
        let of_launcher: BTreeSet<_> = pod
            .spec
            .iter()
            .flat_map(|spec| spec.init_containers.iter().flatten())
            .filter(|container| container.image.as_ref() == Some(image))
            .map(|container| container.name.clone())
            .collect();
        let mut statuses = pod
            .status
            .iter()
            .flat_map(|status| status.init_container_statuses.iter().flatten());
        statuses.find_map(|status| {
            of_launcher
                .contains(&status.name)
                .then(|| pull_error(status))
                .flatten()
        })
    };
    let found = pods(facts)?.find_map(|pod| Some((pod, error(pod)?)));
    let finding = |(pod, error): (&Pod, String)| {
        Finding::new(
            format!("image {image}"),
            format!(
                "Pod {}/{}: {error}",
                pod.namespace().unwrap_or_default(),
                pod.name_any()
            ),
            "pullable by the nodes",
            set_launcher_image(installation),
        )
    };
    Ok(found.map(finding).into_iter().collect())
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

fn memlock(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let mut findings = Vec::new();
    let own = facts
        .jobs
        .get()?
        .iter()
        .filter(|job| installation.watches(&job.namespace));
    let nodes = facts.nodes.get().map(Vec::as_slice).unwrap_or_default();
    let mut unreadable = None;
    for job in own {
        let failure = match &job.first_failure {
            Ok(Some(failure)) => failure,
            Ok(None) => continue,
            Err(error) => {
                let JobFacts { namespace, name, .. } = job;
                unreadable.get_or_insert(format!(
                    "the status of IPUJob {namespace}/{name} is unreadable: {error}"
                ));
                continue;
            }
        };
        let Some(line) = memlock_error(&failure.log) else {
            continue;
        };
        let node = failure.node.as_deref().unwrap_or("of the Pod");
        let time = failure.time.as_ref().and_then(|time| {
            let millis = i64::try_from(time.0.as_millis()).ok()?;
            Timestamp::from_millisecond(millis).ok()
        });
        let age = time.map(|time| format!(", {} ago", age(time, facts.now)));
        findings.push(Finding::new(
            format!("node {node}"),
            format!(
                "{} of IPUJob {}/{}{}: {line}",
                failure.name,
                job.namespace,
                job.name,
                age.unwrap_or_default()
            ),
            "an unlimited memlock of the container runtime",
            remove_memlock(nodes, node),
        ));
    }
    match unreadable {
        Some(reason) if findings.is_empty() => Err(reason),
        _ => Ok(findings),
    }
}
