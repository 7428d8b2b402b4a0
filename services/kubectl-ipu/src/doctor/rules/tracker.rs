//! The ledger in its ConfigMap, and its partitions.

use std::collections::BTreeSet;

use ipu_core::{Entry, JobKey, PartitionId, Phase};
use ipu_k8s::crd::IpuJob;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;

use super::super::facts::{Facts, JobFacts};
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::is_active;
use crate::installation::{Installation, is_name};

/// Maximum size of the values that the API server accepts, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Share of it from which new requests may soon be refused, in percent.
const NEARLY_FULL_PERCENT: usize = 80;
/// Prefix of the keys of entries, which is followed by the partition id.
const ENTRY_PREFIX: &str = "partition.";
/// Time after the last change from which an entry without a job counts as leaked: the proxy repairs every 30
/// seconds.
const LEAKED_AFTER_MILLIS: i64 = 10 * 60 * 1000;

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "LedgerAbsent",
        condition: "The ConfigMap with the ledger is absent.",
        effect: "The proxy has never been ready, or the ledger was deleted: existing partitions are quarantined \
                 or returned to their jobs.",
        remedy: "The proxy makes it at its first start. Read its log.",
        check: absent,
    },
    Rule {
        code: "LedgerNearlyFull",
        condition: "The ledger uses more than 80 % of the 1 MiB that a ConfigMap may have.",
        effect: "New requests are refused with `LedgerFull`.",
        remedy: "Delete finished and waiting jobs of the named namespace, or limit its queue.",
        check: nearly_full,
    },
    Rule {
        code: "PartitionsQuarantined",
        condition: "A partition exists whose owner is not known.",
        effect: "Its IPUs are not used.",
        remedy: "A Slurm job, another cluster, another installation or processes of a deleted job may use it: a \
                 release takes their IPUs. Doctor names a user that it finds, and never prints a release. The guide \
                 to repair by hand has the checks.",
        check: quarantined,
    },
    Rule {
        code: "PartitionsLeaked",
        condition: "A partition has belonged to a job that does not exist for more than ten minutes.",
        effect: "Its IPUs are not used.",
        remedy: "Repair the ledger. A partition whose controller is unavailable is released later.",
        check: leaked,
    },
];

/// Returns the name of the ConfigMap, and the ConfigMap.
fn tracker(facts: &Facts) -> Result<(&Installation, String, &ConfigMap), String> {
    let installation = facts.installation.get()?;
    let name = format!("ConfigMap {}/{}", installation.namespace, installation.ledger()?);
    match facts.tracker.get()? {
        Some(map) => Ok((installation, name, map)),
        None => Err("the ledger is absent".into()),
    }
}

/// Returns the keys and values of the entries.
fn values(map: &ConfigMap) -> impl Iterator<Item = (&str, &String)> {
    let data = map.data.iter().flatten();
    data.filter_map(|(key, text)| Some((key.strip_prefix(ENTRY_PREFIX)?, text)))
}

/// Returns the readable entries.
fn entries(map: &ConfigMap) -> impl Iterator<Item = Entry> {
    values(map).filter_map(|(_, text)| serde_json::from_str(text).ok())
}

/// Returns the number of entries, readable or not.
pub(super) fn count(map: &ConfigMap) -> usize {
    values(map).count()
}

/// Returns the findings; without any, an entry that this version cannot read makes the rule unchecked.
fn if_readable(map: &ConfigMap, findings: Vec<Finding>) -> Checked {
    let unreadable = values(map).find(|(_, text)| serde_json::from_str::<Entry>(text).is_err());
    match unreadable {
        Some((id, _)) if findings.is_empty() => Err(format!("entry {id} of the ledger is unreadable")),
        _ => Ok(findings),
    }
}

fn absent(facts: &Facts) -> Checked {
    let installation = facts.installation.get()?;
    let Installation { namespace, proxy, .. } = installation;
    let tracker = installation.ledger()?;
    Ok(match facts.tracker.get()? {
        Some(_) => Vec::new(),
        None => vec![Finding::new(
            format!("ConfigMap {namespace}/{tracker}"),
            "absent",
            "made by the proxy",
            Fix::inspect(format!("kubectl -n {namespace} logs deployment/{proxy}")),
        )],
    })
}

fn nearly_full(facts: &Facts) -> Checked {
    let (installation, name, map) = tracker(facts)?;
    let sizes = map
        .data
        .iter()
        .flatten()
        .map(|(key, text)| key.len() + text.len());
    let bytes: usize = sizes.sum();
    if bytes * 100 < MAX_BYTES * NEARLY_FULL_PERCENT {
        return Ok(Vec::new());
    }
    let mut by_namespace = std::collections::BTreeMap::<String, usize>::new();
    for (id, text) in values(map) {
        let entry = serde_json::from_str::<Entry>(text).ok();
        let owner = entry.and_then(|entry| entry.owner);
        let namespace = owner.map_or_else(String::new, |owner| owner.job.namespace.to_string());
        *by_namespace.entry(namespace).or_default() += ENTRY_PREFIX.len() + id.len() + text.len();
    }
    let largest = by_namespace.into_iter().max_by_key(|(_, size)| *size);
    let (namespace, share) = largest.unwrap_or_default();
    let (holder, fix) = if !is_name(&namespace) {
        let Installation { namespace, .. } = installation;
        let ledger = installation.ledger()?;
        let fix = format!("kubectl -n {namespace} get configmap {ledger} -o yaml");
        ("other owners than jobs".to_owned(), fix)
    } else {
        let fix = format!("kubectl -n {namespace} get ipujobs");
        (format!("namespace {namespace}"), fix)
    };
    let actual = format!("{bytes} bytes, of which {share} are of {holder}");
    let expected = format!("less than {} bytes", MAX_BYTES * NEARLY_FULL_PERCENT / 100);
    Ok(vec![Finding::new(name, actual, expected, Fix::inspect(fix))])
}

fn quarantined(facts: &Facts) -> Checked {
    let (_, _, map) = tracker(facts)?;
    let found = entries(map).filter(|entry| entry.phase == Phase::Quarantined);
    let finding = |Entry { id, controller, .. }: Entry| {
        let controller = controller.map_or_else(|| "unknown".to_owned(), |name| name.to_string());
        let (user, fix) = user_of(id.as_str(), facts);
        Finding::new(
            format!("partition {id}"),
            format!("quarantined at controller {controller}; {user}"),
            "released, or with an owner",
            fix,
        )
    };
    if_readable(map, found.map(finding).collect())
}

/// Returns the user of a quarantined partition as far as the cluster shows it, and the next check.
///
/// The entry has no owner, and a partition id does not reveal it. So no partition is certainly unused: the
/// fix is never a release.
fn user_of(id: &str, facts: &Facts) -> (String, Fix) {
    let jobs = facts.jobs.get().map(Vec::as_slice).unwrap_or_default();
    if let Some(JobFacts { namespace, name, .. }) = jobs.iter().find(|job| has_partition(job, id)) {
        let fix = Fix::inspect(format!("kubectl ipu -n {namespace} why {name}"));
        return (
            format!("its id is that of IPUJob {namespace}/{name}, which exists"),
            fix.with_note(
                "Do not release it: the job gets it on its next request, or releases it at its end.",
            ),
        );
    }
    let mut pods = facts.pods.get().into_iter().flatten().filter(is_active);
    if let Some(pod) = pods.find(|pod| names_partition(pod, id)) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let fix = Fix::inspect(format!("kubectl -n {namespace} get pod {name} -o wide"));
        return (
            format!("Pod {namespace}/{name} uses it"),
            fix.with_note("Do not release it while this Pod exists."),
        );
    }
    const NOTE: &str = "Release it only if no host that reaches the controller has a process with this \
                        IPUOF_VIPU_API_PARTITION_ID: another cluster, another installation or Slurm may use it.";
    if let Some(job) = slurm_job(id) {
        let fix = Fix::inspect(format!("scontrol show job {job}"));
        return (
            format!("its id has the form of Slurm job {job}"),
            fix.with_note(format!("Run it on a host of Slurm. {NOTE}")),
        );
    }
    let user = match (facts.jobs.get(), facts.pods.get()) {
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

/// Returns whether a container of the Pod is given the partition.
fn names_partition(pod: &Pod, id: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    variables.any(|variable| {
        variable.name == "IPUOF_VIPU_API_PARTITION_ID" && variable.value.as_deref() == Some(id)
    })
}

/// Returns the Slurm job that an id names: `p-slurm-JOB-…`.
fn slurm_job(id: &str) -> Option<u32> {
    id.strip_prefix("p-slurm-")?.split('-').next()?.parse().ok()
}

fn leaked(facts: &Facts) -> Checked {
    let (installation, _, map) = tracker(facts)?;
    let jobs = facts.jobs.get()?;
    let uids: BTreeSet<&str> = jobs.iter().map(|job| job.uid.as_str()).collect();
    let now = facts.api_time.get()?.as_millisecond();
    let has_several = facts.operators.get().is_ok_and(|operators| operators.len() > 1);
    let operator = if has_several {
        format!(" --operator-namespace {}", installation.namespace)
    } else {
        String::new()
    };
    let mut findings = Vec::new();
    let mut unwatched = None;
    for Entry {
        id,
        owner,
        phase,
        since,
        ..
    } in entries(map)
    {
        let Some(job) = owner
            .filter(|owner| owner.kind == IpuJob::KIND)
            .map(|owner| owner.job)
        else {
            continue;
        };
        let age = now.saturating_sub(since.as_millis().try_into().unwrap_or(i64::MAX));
        if uids.contains(job.uid.as_str()) || age <= LEAKED_AFTER_MILLIS {
            continue;
        }
        let namespace = job.namespace.as_str();
        let job = format!("IPUJob {namespace}/{}", job.name);
        // The operator of this installation does not act on jobs there.
        if !installation.watches(namespace) {
            unwatched.get_or_insert(format!(
                "partition {id} is of {job}, in a namespace that the installation does not watch"
            ));
            continue;
        }
        findings.push(Finding::new(
            format!("partition {id}"),
            format!("{phase} for {job}, which does not exist"),
            "released",
            Fix::run(format!("kubectl ipu{operator} repair")),
        ));
    }
    match unwatched {
        Some(reason) if findings.is_empty() => Err(reason),
        _ => if_readable(map, findings),
    }
}
