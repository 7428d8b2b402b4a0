//! The alerts and dashboards of `deploy/monitoring` use metrics that exist, and every alert has a runbook.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Beginnings of the metrics of this repository.
const PREFIXES: [&str; 5] = ["ipu_operator_", "ipu_slurm_", "ipujob", "process_", "vipu_proxy_"];

#[test]
fn alerts_and_dashboards_use_only_metrics_that_a_program_exports() {
    let exported = exported_series();
    for file in ["alerts.yaml", "fleet.json", "programs.json"] {
        let used = used_series(&read(&format!("deploy/monitoring/{file}")));
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&exported).collect();
        assert!(
            unknown.is_empty(),
            "{file} uses {unknown:?}, which no program exports"
        );
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_test_that_fires_and_one_that_does_not() {
    let (pages, tests) = (
        read("docs/how-to/alerts.md"),
        read("services/vipu-proxy/tests/alerts_test.yaml"),
    );
    let rules: Value = serde_saphyr::from_str(&read("deploy/monitoring/alerts.yaml")).unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let section = pages
            .split("\n## ")
            .find(|section| section.lines().next() == Some(name));
        let lines = section.map_or(0, |section| section.trim().lines().count());
        assert!((7..=9).contains(&lines), "{name}: the runbook has {lines} lines");
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(
            url.ends_with(&format!("/docs/how-to/alerts.md#{}", name.to_lowercase())),
            "{url}"
        );
        let (quiet, firing) = (
            format!("alertname: {name}, exp_alerts: []"),
            format!("alertname: {name}\n"),
        );
        for case in [quiet, firing] {
            assert!(tests.contains(&case), "alerts_test.yaml has no {case:?}");
        }
    }
    assert_eq!(
        pages.matches("\n## Ipu").count(),
        rules.len(),
        "a runbook has no alert"
    );
}

/// Returns the names of the series of all programs: the tests of these keep their tables of metrics true.
fn exported_series() -> BTreeSet<String> {
    let agent = read("services/slurm/src/agent/withhold.rs");
    let of_agent = agent
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let mut series: BTreeSet<String> = of_agent.map(|(name, _)| name.to_owned()).collect();
    for page in ["docs/metrics.md", "docs/reference/operator-metrics.md"] {
        for row in read(page).lines() {
            let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
            let suffixes: &[&str] = match cells[..] {
                [_, _, "gauge", ..] => &[""],
                [_, _, "counter", ..] => &["_total"],
                [_, _, "histogram", ..] => &["_bucket", "_count", "_sum"],
                _ => continue,
            };
            series.extend(suffixes.iter().map(|suffix| format!("{}{suffix}", cells[1])));
        }
    }
    series
}

/// Returns the names in `text` that begin as those of metrics.
fn used_series(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_series = |word: &&str| {
        PREFIXES
            .iter()
            .any(|prefix| word.starts_with(prefix) && word != prefix)
    };
    words.filter(is_series).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
