//! The ledger in its ConfigMap, and its partitions.

use std::collections::BTreeSet;

use ipu_core::LedgerState;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use super::super::facts::Facts;
use super::super::finding::{Checked, Finding, Rule};
use crate::installation::Installation;

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
        remedy: "Check that no process uses the partition, and release it.",
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
    let name = format!("ConfigMap {}/{}", installation.namespace, installation.tracker);
    match facts.tracker.get()? {
        Some(map) => Ok((installation, name, map)),
        None => Err("the ledger is absent".into()),
    }
}

/// Returns the entries of partitions, by their id.
fn entries(map: &ConfigMap) -> impl Iterator<Item = (&String, Value)> {
    let data = map.data.iter().flatten();
    data.filter(|(key, _)| !key.starts_with(CORDON_PREFIX))
        .filter_map(|(key, text)| Some((key, serde_json::from_str(text).ok()?)))
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
    let Installation {
        namespace,
        tracker,
        proxy,
        ..
    } = facts.installation.get()?;
    Ok(match facts.tracker.get()? {
        Some(_) => Vec::new(),
        None => vec![Finding::new(
            format!("ConfigMap {namespace}/{tracker}"),
            "absent",
            "made by the proxy",
            format!("kubectl -n {namespace} logs deployment/{proxy}"),
        )],
    })
}

fn nearly_full(facts: &Facts) -> Checked {
    let (_, name, map) = tracker(facts)?;
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
    let actual = format!("{bytes} bytes, of which {share} are of namespace {namespace}");
    let expected = format!("less than {} bytes", MAX_BYTES * NEARLY_FULL_PERCENT / 100);
    let command = format!("kubectl -n {namespace} get ipujobs");
    Ok(vec![Finding::new(name, actual, expected, command)])
}

fn newer_format(facts: &Facts) -> Checked {
    let (installation, name, map) = tracker(facts)?;
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
        return Ok(Vec::new());
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
        format!("kubectl -n {namespace} rollout undo deployment/{proxy}"),
    )])
}

fn quarantined(facts: &Facts) -> Checked {
    let (_, _, map) = tracker(facts)?;
    let found = entries(map).filter(|(_, entry)| state(entry) == "quarantined");
    let finding = |(id, entry): (&String, Value)| {
        Finding::new(
            format!("partition {id}"),
            format!(
                "quarantined at controller {}",
                entry["c"].as_str().unwrap_or("unknown")
            ),
            "released, or with an owner",
            format!("kubectl ipu release {id} --quarantined"),
        )
    };
    Ok(found.map(finding).collect())
}

fn leaked(facts: &Facts) -> Checked {
    let (_, _, map) = tracker(facts)?;
    let jobs = facts.jobs.get()?;
    let uids: BTreeSet<&str> = jobs.iter().map(|job| job.uid.as_str()).collect();
    let now = facts.api_time.get()?.as_millisecond();
    let is_leaked = |(_, entry): &(&String, Value)| {
        let since = entry["m"].as_i64().unwrap_or(i64::MAX);
        owner(entry, 0) == Some("IPUJob")
            && owner(entry, 3).is_some_and(|uid| !uids.contains(uid))
            && now.saturating_sub(since) > LEAKED_AFTER_MILLIS
    };
    let finding = |(id, entry): (&String, Value)| {
        let part = |index| owner(&entry, index).unwrap_or_default().to_owned();
        Finding::new(
            format!("partition {id}"),
            format!(
                "{} for IPUJob {}/{}, which does not exist",
                state(&entry),
                part(1),
                part(2)
            ),
            "released",
            "kubectl ipu repair",
        )
    };
    Ok(entries(map).filter(is_leaked).map(finding).collect())
}
