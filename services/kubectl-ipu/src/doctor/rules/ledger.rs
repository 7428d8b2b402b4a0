//! The ledger in its ConfigMap, and its partitions.

use std::collections::BTreeSet;

use ipu_core::allocator::{Entry, Phase};
use ipu_core::{JobKey, PartitionId};
use ipu_k8s::crd::IpuJob;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;

use crate::doctor::facts::{Facts, JobFacts, known, phase};
use crate::doctor::finding::{CheckResult, Finding, Fix};
use crate::installation::Installation;

/// Maximum size of the values that the API server accepts, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Share of it from which new requests may soon be refused, in percent.
const NEARLY_FULL_PERCENT: usize = 80;
/// Prefix of the keys of entries, which is followed by the partition id.
const ENTRY_PREFIX: &str = "partition.";
/// Time after the last change from which an entry without a job counts as leaked, in milliseconds: the proxy
/// repairs every 30 seconds.
const LEAKED_AFTER_MILLIS: i64 = 10 * 60 * 1000;

fn ledger(facts: &Facts) -> Result<(&Installation, &ConfigMap), String> {
    let map = known(&facts.ledger)?.as_ref();
    // The proxy creates it at its start, and again after a deletion.
    Ok((
        known(&facts.installation)?,
        map.ok_or("the ledger is absent, or its proxy has never been ready")?,
    ))
}

/// Returns the keys and values of the entries.
fn values(map: &ConfigMap) -> impl Iterator<Item = (&str, &String)> {
    let data = map.data.iter().flatten();
    data.filter_map(|(key, text)| Some((key.strip_prefix(ENTRY_PREFIX)?, text)))
}

/// Returns the entries.
///
/// # Errors
///
/// The id of an entry that this version cannot read.
fn entries(map: &ConfigMap) -> Result<Vec<Entry>, String> {
    values(map)
        .map(|(id, text)| {
            serde_json::from_str(text).map_err(|_| format!("entry {id} of the ledger is unreadable"))
        })
        .collect()
}

pub(super) fn nearly_full(facts: &Facts) -> CheckResult {
    let (installation, map) = ledger(facts)?;
    let bytes: usize = map
        .data
        .iter()
        .flatten()
        .map(|(key, text)| key.len() + text.len())
        .sum();
    if bytes * 100 < MAX_BYTES * NEARLY_FULL_PERCENT {
        return Ok(Vec::new());
    }
    let object = format!("ConfigMap {}/{}", installation.namespace, installation.ledger()?);
    let actual = format!("{bytes} bytes, and {MAX_BYTES} are the maximum");
    let fix = Fix::inspect("kubectl get ipujobs --all-namespaces");
    Ok(vec![Finding::new(object, actual, fix)])
}

pub(super) fn quarantined(facts: &Facts) -> CheckResult {
    let entries = entries(ledger(facts)?.1)?.into_iter();
    let finding = |Entry { id, controller, .. }: Entry| {
        let controller = controller.map_or_else(|| "unknown".to_owned(), |name| name.to_string());
        let (user, fix) = user_of(id.as_str(), facts);
        let actual = format!("quarantined at controller {controller}; {user}");
        Finding::new(format!("partition {id}"), actual, fix)
    };
    Ok(entries
        .filter(|entry| entry.phase == Phase::Quarantined)
        .map(finding)
        .collect())
}

/// Returns the user of a quarantined partition as far as the cluster shows it, and the next check.
///
/// The entry has no owner, and a partition id does not reveal it. So no partition is certainly unused: the
/// fix is never a release.
fn user_of(id: &str, facts: &Facts) -> (String, Fix) {
    let jobs = facts.jobs.as_deref().unwrap_or_default();
    if let Some(JobFacts { namespace, name, .. }) = jobs.iter().find(|job| has_partition(job, id)) {
        return (
            format!("its id is that of IPUJob {namespace}/{name}, which exists"),
            Fix::inspect(format!("kubectl ipu -n {namespace} why {name}")).with_note(
                "Do not release it: the job gets it on its next request, or releases it at its end.",
            ),
        );
    }
    let mut pods = facts.pods.as_deref().unwrap_or_default().iter();
    if let Some(pod) = pods.find(|pod| uses_partition(pod, id)) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        return (
            format!("Pod {namespace}/{name} uses it"),
            Fix::inspect(format!("kubectl -n {namespace} get pod {name} -o wide"))
                .with_note("Do not release it while this Pod exists."),
        );
    }
    const NOTE: &str = "Release it only if no host that reaches the controller has a process with this \
                        IPUOF_VIPU_API_PARTITION_ID: another cluster, another installation or Slurm may use it.";
    let user = match (&facts.jobs, &facts.pods) {
        (Err(reason), _) | (_, Err(reason)) => format!("its user is not known: {reason}"),
        _ => "no IPUJob or Pod of this cluster uses it".into(),
    };
    (
        user,
        Fix::inspect("kubectl get ipujobs --all-namespaces").with_note(NOTE),
    )
}

/// Returns whether the id is that of an instance of the job.
fn has_partition(job: &JobFacts, id: &str) -> bool {
    let key = JobKey::new(&*job.namespace, &*job.name, &*job.uid);
    let id = PartitionId::new(id);
    key.is_ok_and(|key| id.is_ok_and(|id| id.is_derived_from(&key)))
}

/// Returns whether a container of an unfinished Pod is given the partition.
fn uses_partition(pod: &Pod, id: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let names_it = variables.any(|variable| {
        variable.name == "IPUOF_VIPU_API_PARTITION_ID" && variable.value.as_deref() == Some(id)
    });
    names_it && !matches!(phase(pod), Some("Succeeded" | "Failed"))
}

pub(super) fn leaked(facts: &Facts) -> CheckResult {
    let (installation, map) = ledger(facts)?;
    let uids: BTreeSet<&str> = known(&facts.jobs)?.iter().map(|job| job.uid.as_str()).collect();
    let now = known(&facts.now)?.as_millisecond();
    let mut findings = Vec::new();
    for entry in entries(map)? {
        let owner = entry.owner.filter(|owner| owner.kind == IpuJob::KIND);
        let Some(job) = owner.map(|owner| owner.job) else {
            continue;
        };
        let age = now.saturating_sub(entry.since.as_millis().try_into().unwrap_or(i64::MAX));
        // The operator of this installation does not act on jobs of other namespaces.
        let is_own = installation.watches(job.namespace.as_str());
        if is_own && age > LEAKED_AFTER_MILLIS && !uids.contains(job.uid.as_str()) {
            findings.push(Finding::new(
                format!("partition {}", entry.id),
                format!(
                    "{} for IPUJob {}/{}, which does not exist",
                    entry.phase, job.namespace, job.name
                ),
                Fix::run(format!(
                    "kubectl ipu --operator-namespace {} repair",
                    installation.namespace
                )),
            ));
        }
    }
    Ok(findings)
}
