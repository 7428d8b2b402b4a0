//! `/metrics`: what it prints is what the guide says, and it counts what was held.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::StatusCode;
use ipu_core::PartitionId;
use serde_json::json;

use crate::support::{Bench, wanted};

const GUIDE: &str = include_str!("../../../../docs/metrics.md");

/// A metric: its kind, what it tells, and its labels.
type Described = BTreeMap<String, (String, String, BTreeSet<String>)>;

/// What the table of the guide says.
fn documented() -> Described {
    let rows = GUIDE
        .lines()
        .filter_map(|line| line.strip_prefix("| `vipu_proxy_"));
    let mut all = Described::new();
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

/// What `text` says of itself.
fn printed(text: &str) -> Described {
    let mut all = Described::new();
    for line in text.lines() {
        let words = |prefix: &str| {
            let (name, rest) = line.strip_prefix(prefix)?.split_once(' ')?;
            Some((name.to_owned(), rest.to_owned()))
        };
        if let Some((name, help)) = words("# HELP ") {
            // The library ends every sentence.
            all.entry(name).or_default().1 = help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = words("# TYPE ") {
            all.entry(name).or_default().0 = kind;
        } else if let Some((series, labels)) = line.split_once('{') {
            let (_, _, known) = all
                .iter_mut()
                .filter(|(name, _)| series.starts_with(name.as_str()))
                .max_by_key(|(name, _)| name.len())
                .map(|(_, described)| described)
                .unwrap();
            let (labels, _) = labels.rsplit_once('}').unwrap();
            let names = labels.split("\",").map(|label| label.split('=').next().unwrap());
            known.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn the_guide_describes_every_metric_as_it_is_printed() {
    let bench = Bench::new();
    bench.put("training", "mnist", 4).await;
    bench.put("large", "large", 32).await;
    let text = bench.text("/metrics").await;
    let (mut documented, printed) = (documented(), printed(&text));
    // Nothing was repaired here, and the fake controller is not asked over a wire: without a series nothing is printed.
    // No controller has two names.
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

/// The value of the series `series`.
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

/// Jobs of several sizes and accounts, held for minutes: what the proxy counts is what the controller saw.
#[tokio::test(start_paused = true)]
async fn what_was_used_is_what_the_controller_saw_to_a_thousandth() {
    let bench = Bench::new();
    let jobs = [
        ("a", 4, 700_u64),
        ("b", 8, 1_300),
        ("c", 2, 300),
        ("d", 16, 2_000),
    ];
    let mut seen: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, size, _) in jobs {
        let mut body = wanted(name, size);
        body["account"] = json!(format!("account-{name}"));
        let path = format!("/v1/partitions/{name}?wait=5s");
        let (status, made) = bench.call("PUT", &path, &body.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{made}");
    }
    let step = Duration::from_millis(100);
    let mut passed = 0.0;
    while passed < 2_100.0 {
        for (name, _, until) in jobs {
            let id: PartitionId = name.parse().unwrap();
            let ipus = u32::try_from(bench.controller.ipus(&id).len()).unwrap();
            *seen.entry(name).or_default() += f64::from(ipus) * step.as_secs_f64();
            #[expect(clippy::cast_precision_loss, reason = "thousands")]
            if ipus > 0 && passed >= until as f64 {
                let path = format!("/v1/partitions/{name}?wait=5s");
                assert_eq!(bench.call("DELETE", &path, "").await.0, StatusCode::OK);
            }
        }
        tokio::time::sleep(step).await;
        passed += step.as_secs_f64();
    }
    let text = bench.text("/metrics").await;
    let records = bench.get("/v1/usage?since=0").await;
    for (name, _, _) in jobs {
        let labels = format!("{{namespace=\"default\",account=\"account-{name}\"}}");
        let counted = value(&text, &format!("vipu_proxy_ipu_seconds_total{labels}"));
        assert!(
            is_near(counted, seen[name]),
            "{name}: {counted} and {}",
            seen[name]
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
            is_near(recorded, seen[name]),
            "{name}: {recorded} and {}",
            seen[name]
        );
    }
    // Making and removing took some of it.
    assert!(value(&text, "vipu_proxy_idle_ipu_seconds_total{state=\"intent\"}") > 0.0);
    assert!(value(&text, "vipu_proxy_idle_ipu_seconds_total{state=\"releasing\"}") > 0.0);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_counts_while_it_is_held_and_what_failed_counts_as_idle() {
    let bench = Bench::new();
    bench.put("held", "held", 4).await;
    let series = "vipu_proxy_ipu_seconds_total{namespace=\"default\",account=\"\"}";
    let before = value(&bench.text("/metrics").await, series);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let after = value(&bench.text("/metrics").await, series);
    assert!(is_near(after - before, 400.0), "{before} and {after}");

    bench.controller.lose_partitions();
    let (_, problem) = bench.put("held", "held", 4).await;
    assert_eq!(problem["code"], "PartitionFailed", "{problem}");
    tokio::time::sleep(Duration::from_secs(50)).await;
    let idle = value(
        &bench.text("/metrics").await,
        "vipu_proxy_idle_ipu_seconds_total{state=\"failed\"}",
    );
    assert!(is_near(idle, 200.0), "{idle}");
}
