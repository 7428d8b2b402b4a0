//! The ledger in its ConfigMap, and its partitions.

use std::collections::BTreeSet;

use ipu_core::{JobKey, LedgerState, PartitionId};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use serde_json::Value;

use super::super::facts::{Facts, JobFacts};
use super::super::finding::{Checked, Finding, Fix, Rule};
use super::{bundle, is_active};
use crate::installation::{Installation, is_name};

/// Maximum size of the values that the API server accepts, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Share of it from which new requests may soon be refused, in percent.
const NEARLY_FULL_PERCENT: usize = 80;
/// Layout of the ConfigMap that this build knows.
const LAYOUT: u64 = 1;
const LAYOUT_ANNOTATION: &str = "ledger.graphcore.ai/layout";
/// Prefix of the keys of cordons.
const CORDON_PREFIX: &str = ".x";
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
        code: "LedgerNewerFormat",
        condition: "The ledger has entries in a format that is newer than this build.",
        effect: "A proxy of this version or an older one refuses the ledger, and no partition is created.",
        remedy: "Install the proxy of the version that wrote it.",
        check: newer_format,
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

/// Returns the readable entries of partitions, by their id.
fn entries(map: &ConfigMap) -> impl Iterator<Item = (&String, Value)> {
    let data = map.data.iter().flatten();
    data.filter(|(key, _)| !key.starts_with(CORDON_PREFIX))
        .filter_map(|(key, text)| Some((key, serde_json::from_str(text).ok()?)))
}

/// Returns the number of entries of partitions, readable or not.
pub(super) fn count(map: &ConfigMap) -> usize {
    let data = map.data.iter().flatten();
    data.filter(|(key, _)| !key.starts_with(CORDON_PREFIX)).count()
}

/// Returns the findings; without any, an entry that is not JSON makes the rule unchecked.
fn if_readable(map: &ConfigMap, findings: Vec<Finding>) -> Checked {
    let mut data = map.data.iter().flatten();
    let unreadable = data.find(|(_, text)| serde_json::from_str::<serde::de::IgnoredAny>(text).is_err());
    match unreadable {
        Some((key, _)) if findings.is_empty() => Err(format!("entry {key} of the ledger is not JSON")),
        _ => Ok(findings),
    }
}

/// Returns the state of an entry, such as `active`.
fn state(entry: &Value) -> &str {
    entry["s"]
        .as_str()
        .or_else(|| entry["s"]["is"].as_str())
        .unwrap_or_default()
}

/// Returns the `index`-th part of the owner: kind, namespace, name, uid.
fn owner(entry: &Value, index: usize) -> Option<&str> {
    entry["o"][index].as_str()
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
    for (key, entry) in entries(map) {
        let namespace = owner(&entry, 1).unwrap_or_default().to_owned();
        let size = key.len()
            + map
                .data
                .as_ref()
                .and_then(|data| data.get(key))
                .map_or(0, String::len);
        *by_namespace.entry(namespace).or_default() += size;
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

fn newer_format(facts: &Facts) -> Checked {
    let (installation, name, map) = tracker(facts)?;
    // A newer build may write newer formats.
    if let Some(version) = &installation.version
        && bundle::is_older_than(version)
    {
        return Err(format!(
            "kubectl ipu {} is older than the installation: use version {version}",
            env!("CARGO_PKG_VERSION")
        ));
    }
    let layout = map
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(LAYOUT_ANNOTATION));
    let layout: u64 = layout.and_then(|layout| layout.parse().ok()).unwrap_or(LAYOUT);
    // Entries and cordons.
    let values = map.data.iter().flatten().filter_map(|(key, text)| {
        let value: Value = serde_json::from_str(text).ok()?;
        Some((key, value["v"].as_u64().or_else(|| value["format"].as_u64())?))
    });
    let newest = values.max_by_key(|(_, format)| *format);
    let format = newest.map_or(0, |(_, format)| format);
    if layout <= LAYOUT && format <= u64::from(LedgerState::FORMAT) {
        return if_readable(map, Vec::new());
    }
    let actual = match newest {
        Some((key, format)) if layout <= LAYOUT => format!("entry {key} has format {format}"),
        _ => format!("layout {layout}"),
    };
    let Installation { namespace, proxy, .. } = installation;
    Ok(vec![Finding::new(
        name,
        actual,
        format!(
            "format {} and layout {LAYOUT} at most, those of this build",
            LedgerState::FORMAT
        ),
        Fix::inspect(format!(
            "kubectl -n {namespace} rollout history deployment/{proxy}"
        ))
        .with_note("Upgrade the installation to the version that wrote the ledger."),
    )])
}

fn quarantined(facts: &Facts) -> Checked {
    let (_, _, map) = tracker(facts)?;
    let found = entries(map).filter(|(_, entry)| state(entry) == "quarantined");
    let finding = |(id, entry): (&String, Value)| {
        let controller = entry["c"].as_str().unwrap_or("unknown");
        let (user, fix) = user_of(id, facts);
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
    for (id, entry) in entries(map) {
        let part = |index| owner(&entry, index).unwrap_or_default();
        let since = entry["m"].as_i64().unwrap_or(i64::MAX);
        let is_leaked = part(0) == "IPUJob"
            && owner(&entry, 3).is_some_and(|uid| !uids.contains(uid))
            && now.saturating_sub(since) > LEAKED_AFTER_MILLIS;
        if !is_leaked {
            continue;
        }
        let job = format!("IPUJob {}/{}", part(1), part(2));
        // The operator of this installation does not act on jobs there.
        if !installation.watches(part(1)) {
            unwatched.get_or_insert(format!(
                "partition {id} is of {job}, in a namespace that the installation does not watch"
            ));
            continue;
        }
        findings.push(Finding::new(
            format!("partition {id}"),
            format!("{} for {job}, which does not exist", state(&entry)),
            "released",
            Fix::run(format!("kubectl ipu{operator} repair")),
        ));
    }
    match unwatched {
        Some(reason) if findings.is_empty() => Err(reason),
        _ => if_readable(map, findings),
    }
}
