//! `/metrics`: its output matches the guide, and its counters match the held IPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use ipu_core::PartitionId;
use serde_json::json;

use crate::support::{Harness, request_body};

const GUIDE: &str = include_str!("../../../../docs/metrics.md");

/// Metrics by name: kind, help text and labels.
type MetricDescriptions = BTreeMap<String, (String, String, BTreeSet<String>)>;

/// Parses the table of the guide.
fn documented() -> MetricDescriptions {
    let rows = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("| `vipu_proxy_"));
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
        let name = format!("vipu_proxy_{}", name.trim_end_matches('`'));
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

#[tokio::test(start_paused = true)]
async fn the_guide_describes_every_metric_as_it_is_printed() {
    let harness = Harness::new();
    harness.put("training", "mnist", 4).await;
    harness.put("large", "large", 32).await;
    let text = harness.text("/metrics").await;
    let (mut documented, printed) = (documented(), printed(&text));
    // Metrics without a series are not printed: there was no repair, the fake controller has no connection,
    // and no controller has two names.
    for (name, label) in [
        ("vipu_proxy_repair_actions", &["action"][..]),
        ("vipu_proxy_same_controller", &["controller", "other"][..]),
        (
            "vipu_proxy_controller_call_seconds",
            &["controller", "operation", "outcome"][..],
        ),
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

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= other.abs() * 0.001
}

/// Holds partitions of several sizes and accounts for minutes, and compares the metrics with the controller.
#[tokio::test(start_paused = true)]
async fn metrics_and_usage_records_match_the_controller_to_a_thousandth() {
    let harness = Harness::new();
    let jobs = [
        ("a", 4, 700_u64),
        ("b", 8, 1_300),
        ("c", 2, 300),
        ("d", 16, 2_000),
    ];
    let mut expected: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, size, _) in jobs {
        let mut body = request_body(name, size);
        body["account"] = json!(format!("account-{name}"));
        let path = format!("/v1/partitions/{name}?wait=5s");
        let (status, created) = harness.call("PUT", &path, &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{created}");
    }
    let step = Duration::from_millis(100);
    let mut elapsed = 0.0;
    while elapsed < 2_100.0 {
        for (name, _, until) in jobs {
            let id: PartitionId = name.parse().unwrap();
            let ipus = u32::try_from(harness.controller.ipus(&id).len()).unwrap();
            *expected.entry(name).or_default() += f64::from(ipus) * step.as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            if ipus > 0 && elapsed >= until as f64 {
                let path = format!("/v1/partitions/{name}?wait=5s");
                assert_eq!(harness.call("DELETE", &path, "").await.0, StatusCode::OK);
            }
        }
        tokio::time::sleep(step).await;
        elapsed += step.as_secs_f64();
    }
    let text = harness.text("/metrics").await;
    let records = harness.get("/v1/usage?since=0").await;
    for (name, _, _) in jobs {
        let labels = format!("{{namespace=\"default\",account=\"account-{name}\"}}");
        let counted = value(&text, &format!("vipu_proxy_ipu_seconds_total{labels}"));
        assert!(
            is_near(counted, expected[name]),
            "{name}: {counted} and {}",
            expected[name]
        );
        let record = records["records"]
            .as_array()
            .unwrap()
            .iter()
            .find(|record| record["id"] == name);
        let record = record.unwrap();
        let number = |key: &str| record[key].as_f64().unwrap();
        let recorded = number("size") * (number("releasedAt") - number("heldSince")) / 1_000.0;
        assert!(
            is_near(recorded, expected[name]),
            "{name}: {recorded} and {}",
            expected[name]
        );
    }
    // Creation and removal took some of the time.
    assert!(value(&text, "vipu_proxy_idle_ipu_seconds_total{state=\"intent\"}") > 0.0);
    assert!(value(&text, "vipu_proxy_idle_ipu_seconds_total{state=\"releasing\"}") > 0.0);
}

#[tokio::test(start_paused = true)]
async fn held_ipus_are_counted_continuously_and_failed_partitions_as_idle() {
    let harness = Harness::new();
    harness.put("held", "held", 4).await;
    let series = "vipu_proxy_ipu_seconds_total{namespace=\"default\",account=\"\"}";
    let before = value(&harness.text("/metrics").await, series);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let after = value(&harness.text("/metrics").await, series);
    assert!(is_near(after - before, 400.0), "{before} and {after}");

    harness.controller.lose_partitions();
    let (_, problem) = harness.put("held", "held", 4).await;
    assert_eq!(problem["code"], "PartitionFailed", "{problem}");
    tokio::time::sleep(Duration::from_secs(50)).await;
    let idle = value(
        &harness.text("/metrics").await,
        "vipu_proxy_idle_ipu_seconds_total{state=\"failed\"}",
    );
    assert!(is_near(idle, 200.0), "{idle}");
}

#[tokio::test(start_paused = true)]
async fn a_preemption_is_counted_once() {
    let harness = Harness::with(None, |options| options.queue.preemption = true);
    let put = async |id: &str, key: &str, value: serde_json::Value| {
        let mut body = request_body(id, 32);
        body[key] = value;
        let path = format!("/v1/partitions/{id}?wait=5s");
        harness.call("PUT", &path, &body.to_string()).await.1
    };
    let spare = put("spare", "preemptible", json!(true)).await;
    assert_eq!(spare["state"], "active", "{spare}");
    for _ in 0..2 {
        let queued = put("urgent", "priority", json!(5)).await;
        assert_eq!(queued["state"], "waiting", "{queued}");
    }
    let text = harness.text("/metrics").await;
    assert!(
        is_near(value(&text, "vipu_proxy_preemptions_total"), 1.0),
        "{text}"
    );
}
