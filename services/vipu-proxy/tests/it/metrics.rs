//! `/metrics`: its output matches the guide, and its counters match the held IPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use http::StatusCode;
use serde_json::json;

use crate::support::{Harness, request_body};

const GUIDE: &str = include_str!("../../../../docs/metrics.md");

/// Metrics by name: kind, help text and labels.
type MetricDescriptions = BTreeMap<String, (String, String, BTreeSet<String>)>;

/// Parses the table of the guide.
fn documented() -> MetricDescriptions {
    let rows = GUIDE.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut all = MetricDescriptions::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [name, kind, labels, help, _] = cells[..] else {
            continue;
        };
        let labels = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let name = name.trim_end_matches('`').to_owned();
        all.insert(name, (kind.to_owned(), help.to_owned(), labels));
    }
    all
}

/// Parses the descriptions in the output of `/metrics`.
fn printed(text: &str) -> MetricDescriptions {
    let mut all = MetricDescriptions::new();
    for line in text.lines() {
        let split = |prefix: &str| {
            let (name, rest) = line.strip_prefix(prefix)?.split_once(' ')?;
            Some((name.to_owned(), rest.to_owned()))
        };
        if let Some((name, help)) = split("# HELP ") {
            // The library appends a period to every help text.
            all.entry(name).or_default().1 = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = split("# TYPE ") {
            all.entry(name).or_default().0 = kind;
        } else if let Some((series, labels)) = line.split_once('{') {
            let (_, _, label_names) = all
                .iter_mut()
                .filter(|(name, _)| series.starts_with(name.as_str()))
                .max_by_key(|(name, _)| name.len())
                .map(|(_, described)| described)
                .unwrap();
            let (labels, _) = labels.rsplit_once('}').unwrap();
            let names = labels.split("\",").map(|label| label.split('=').next().unwrap());
            label_names.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    all
}

#[tokio::test]
async fn the_guide_describes_every_metric_as_it_is_printed() {
    let harness = Harness::with("quotas: [{namespace: default, max-ipus: 64}]").await;
    harness.put("training", "mnist", 4).await;
    harness.put("large", "large", 32).await;
    let text = harness.text("/metrics").await;
    let (mut documented, printed) = (documented(), printed(&text));
    // Metrics without a series are not printed: no repair has acted, no controller has two names, and a file
    // has no limit.
    for (name, label) in [
        ("vipu_proxy_ledger_bytes", &[][..]),
        ("vipu_proxy_ledger_limit_bytes", &[]),
        ("vipu_proxy_repair_actions", &["action"]),
        ("vipu_proxy_same_controller", &["controller", "other"]),
    ] {
        let (_, _, labels) = documented.remove(name).unwrap();
        assert_eq!(labels, label.iter().map(|name| (*name).to_owned()).collect());
    }
    assert_eq!(documented, printed, "{text}");
}

/// Returns the value of the series `series`.
fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
        .trim()
        .parse()
        .unwrap()
}

/// Shortest and longest possible time of a hold, as a client measures it.
struct HoldTimes {
    requested: Instant,
    granted: Instant,
}

impl HoldTimes {
    /// Asserts that `ipu_seconds` are those of `size` IPUs, whose release was requested at `released` and is
    /// confirmed now. The ledger counts whole milliseconds.
    fn assert_counted(&self, ipu_seconds: f64, size: u32, released: Instant) {
        let rounding = Duration::from_millis(2);
        let least = (released - self.granted).saturating_sub(rounding).as_secs_f64() * f64::from(size);
        let most = (self.requested.elapsed() + rounding).as_secs_f64() * f64::from(size);
        assert!(
            (least..=most).contains(&ipu_seconds),
            "{ipu_seconds} is not in {least} to {most}"
        );
    }
}

#[tokio::test]
async fn metrics_and_usage_records_count_the_seconds_of_every_held_ipu() {
    let harness = Harness::new().await;
    let jobs = [("a", 4), ("b", 8), ("c", 2), ("d", 16)];
    let mut holds = Vec::new();
    for (name, size) in jobs {
        let mut body = request_body(name, size);
        body["account"] = json!(format!("account-{name}"));
        let path = format!("/v1/partitions/{name}?wait=30s");
        let requested = Instant::now();
        let (status, created) = harness.call("PUT", &path, &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{created}");
        holds.push(HoldTimes {
            requested,
            granted: Instant::now(),
        });
    }
    // Each partition is held for another time.
    for ((name, size), hold) in jobs.into_iter().zip(&holds) {
        let released = Instant::now();
        let path = format!("/v1/partitions/{name}?wait=30s");
        assert_eq!(harness.call("DELETE", &path, "").await.0, StatusCode::OK);
        let series =
            format!("vipu_proxy_ipu_seconds_total{{namespace=\"default\",account=\"account-{name}\"}}");
        hold.assert_counted(value(&harness.text("/metrics").await, &series), size, released);
        let records = harness.get("/v1/usage?since=0").await;
        let mut records = records["records"].as_array().unwrap().iter();
        let record = records.find(|record| record["id"] == name).unwrap();
        let number = |key: &str| record[key].as_f64().unwrap();
        let recorded = number("size") * (number("releasedAt") - number("heldSince")) / 1_000.0;
        hold.assert_counted(recorded, size, released);
    }
}

#[tokio::test]
async fn held_ipus_are_counted_continuously_and_failed_partitions_as_idle() {
    let harness = Harness::new().await;
    let requested = Instant::now();
    harness.put("held", "held", 4).await;
    let hold = HoldTimes {
        requested,
        granted: Instant::now(),
    };
    let series = "vipu_proxy_ipu_seconds_total{namespace=\"default\",account=\"\"}";
    for _ in 0..3 {
        let read = Instant::now();
        hold.assert_counted(value(&harness.text("/metrics").await, series), 4, read);
    }

    harness.lose_partitions().await;
    let requested = Instant::now();
    let (_, problem) = harness.put("held", "held", 4).await;
    assert_eq!(problem["code"], "PartitionFailed", "{problem}");
    let failure = HoldTimes {
        requested,
        granted: Instant::now(),
    };
    let series = "vipu_proxy_idle_ipu_seconds_total{state=\"failed\"}";
    for _ in 0..3 {
        let read = Instant::now();
        failure.assert_counted(value(&harness.text("/metrics").await, series), 4, read);
    }
}

#[tokio::test]
async fn a_preemption_is_counted_once() {
    let harness = Harness::with("preemption: true").await;
    let put = async |id: &str, key: &str, value: serde_json::Value| {
        let mut body = request_body(id, 32);
        body[key] = value;
        let path = format!("/v1/partitions/{id}?wait=1s");
        harness.call("PUT", &path, &body.to_string()).await.1
    };
    let spare = put("spare", "preemptible", json!(true)).await;
    assert_eq!(spare["state"], "active", "{spare}");
    for _ in 0..2 {
        let queued = put("urgent", "priority", json!(5)).await;
        assert_eq!(queued["state"], "waiting", "{queued}");
    }
    let text = harness.text("/metrics").await;
    assert!(text.contains("vipu_proxy_preemptions_total 1\n"), "{text}");
}
