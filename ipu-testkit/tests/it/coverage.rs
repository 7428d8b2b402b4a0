//! Rule coverage of the planner check, which must reach every verdict of every rule.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ipu_core::plan;
use ipu_testkit::{RuleVerdict, check_planner, rule_verdicts};

type Counts = BTreeMap<RuleVerdict, u64>;

#[test]
fn every_rule_and_every_verdict_is_reached_by_the_default_number_of_cases() {
    let report = check_planner(plan);
    println!("{report}");
    assert_eq!(report.unreached(), [], "{report}");
    compare_with_the_document(&report.rules);
}

/// Compares rows, not counts: `UPDATE=1` writes the counts.
fn compare_with_the_document(counts: &Counts) {
    const BEGIN: &str = "<!-- rules: begin -->\n";
    const END: &str = "<!-- rules: end -->";
    let path = root().join("docs/dev/coverage.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let mut fresh = String::from("| rule | verdict | what shows it | plans |\n|---|---|---|---|\n");
    for (verdict, shown_by) in rule_verdicts() {
        let plans = magnitude(counts, verdict);
        let RuleVerdict { rule, verdict, .. } = verdict;
        writeln!(fresh, "| {rule} | {verdict} | {shown_by} | {plans} |").unwrap();
    }
    let rows = |table: &str| -> Vec<String> {
        let without_counts = |line: &str| line.rsplitn(3, '|').last().unwrap_or_default().to_string();
        table.lines().map(without_counts).collect()
    };
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{fresh}{END}{after}")).unwrap();
    } else {
        assert_eq!(rows(table), rows(&fresh), "UPDATE=1 writes docs/dev/coverage.md");
    }
}

/// Returns the number of times a verdict was reached, rounded down to a power of ten.
fn magnitude(counts: &Counts, verdict: RuleVerdict) -> String {
    let count = counts.get(&verdict).copied().unwrap_or_default();
    match count.checked_ilog10() {
        None => "never".to_string(),
        Some(0) => "1".to_string(),
        Some(zeros) => format!("10^{zeros}"),
    }
}

#[test]
fn every_documented_rule_and_every_verdict_in_its_source_has_an_entry() {
    let entries: BTreeSet<(&str, &str)> = rule_verdicts()
        .map(|(verdict, _)| (verdict.rule, verdict.verdict))
        .collect();
    let index = fs::read_to_string(root().join("ipu-core/src/rules.rs")).unwrap();
    let documented = fs::read_to_string(root().join("docs/rules.md")).unwrap();
    let rules: Vec<&str> = index
        .lines()
        .filter_map(|line| line.strip_prefix("pub(crate) mod ")?.strip_suffix(';'))
        .collect();
    assert!(rules.len() >= 12, "{rules:?}");
    for rule in rules {
        assert!(
            documented.contains(&format!("`ipu-core/src/rules/{rule}.rs`")),
            "{rule}"
        );
        assert!(
            entries.iter().any(|(other, _)| *other == rule),
            "the rule {rule} has no entry in rules_reached"
        );
        let source = fs::read_to_string(root().join(format!("ipu-core/src/rules/{rule}.rs"))).unwrap();
        for verdict in verdicts(&source) {
            assert!(
                entries.contains(&(rule, verdict)),
                "the verdict {verdict} of the rule {rule} has no entry in rules_reached"
            );
        }
    }
    let described: BTreeSet<&str> = rule_verdicts().map(|(_, shown_by)| shown_by).collect();
    assert!(
        described.len() + 1 >= entries.len(),
        "two verdicts have the same evidence"
    );
}

/// Returns the variants of the result enums of a rule.
fn verdicts(source: &str) -> Vec<&str> {
    const RESULT_TYPES: [&str; 13] = [
        "CleanupDecision",
        "Retention",
        "DeadlineStatus",
        "FinalizeStep",
        "Session",
        "OrphanDecision",
        "RequestDecision",
        "ResetDecision",
        "RestartDecision",
        "GiveUp",
        "ScaleDecision",
        "StartDeadlineStatus",
        "SuspendDecision",
    ];
    let mut found = Vec::new();
    for result_type in RESULT_TYPES {
        let Some((_, rest)) = source.split_once(&format!("pub(crate) enum {result_type} {{\n")) else {
            continue;
        };
        let (body, _) = rest.split_once("\n}").unwrap();
        let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//"));
        found.extend(lines.map(|line| line.split(['(', ',']).next().unwrap_or(line)));
    }
    found
}

#[test]
fn the_verdicts_of_a_rule_are_found_in_its_source() {
    let source = "/// A.\npub(crate) enum DeadlineStatus {\n    /// None.\n    Unlimited,\n    /// Until.\n    Until(Timestamp),\n}\n";
    assert_eq!(verdicts(source), ["Unlimited", "Until"]);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
