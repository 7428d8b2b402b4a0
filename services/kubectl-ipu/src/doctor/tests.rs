//! Each rule finds its planted fault, and finds nothing in healthy snapshots.

mod commands;
mod faults;
mod harmless;
mod hidden;
mod imitations;
mod reference;
mod snapshots;

use super::facts::{Fact, Facts};
use super::finding::Finding;
use super::report::check;
use super::rules;

/// Returns the findings of the rule with this code.
fn found(code: &str, facts: &Facts) -> Vec<Finding> {
    let rule = rules::all().find(|rule| rule.code == code).unwrap();
    (rule.check)(facts).unwrap_or_else(|reason| panic!("{code} was not checked: {reason}"))
}

/// Returns the only finding of the rule with this code.
fn only(code: &str, facts: &Facts) -> Finding {
    let findings = found(code, facts);
    assert_eq!(findings.len(), 1, "{findings:?}");
    findings.into_iter().next().unwrap()
}

/// Returns a fact that is not hidden.
fn get<T>(fact: &mut Fact<T>) -> &mut T {
    match fact {
        Fact::Read(value) => value,
        Fact::Hidden(reason) => panic!("{reason}"),
    }
}

#[test]
fn healthy_installations_of_four_kinds_have_no_finding_and_all_rules_are_checked() {
    for (name, facts) in snapshots::healthy() {
        let report = check(&facts);
        assert!(report.findings.is_empty(), "{name}: {:?}", report.findings);
        assert!(report.not_checked.is_empty(), "{name}: {:?}", report.not_checked);
    }
}

#[test]
fn codes_are_unique_and_there_are_at_least_24() {
    let mut codes: Vec<_> = rules::all().map(|rule| rule.code).collect();
    let count = codes.len();
    codes.sort_unstable();
    codes.dedup();
    assert_eq!(codes.len(), count);
    assert!(count >= 24, "{count}");
}
