//! `check_policy` accepts the built-in policies and detects every mutant by the intended property.

mod mutants;
mod mutants_detected;

use std::path::Path;

use ipu_core::hardware::{Block, InventoryView};
use ipu_core::placement::{PlacementPolicy, PlacementRequest};
use ipu_testkit::{PolicyCheck, PolicyProperty, check_policy, check_policy_with};

use crate::score::policies::Spread;
use mutants::{Declines, GivesUpEarly};

/// Asserts that the placement page contains this text.
#[track_caller]
fn assert_documented(text: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/placement.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(text), "docs/placement.md must contain:\n{text}");
}

#[test]
fn the_policy_of_the_guide_passes_with_the_documented_coverage() {
    let report = PolicyCheck::new().seed(0).cases(256).check(Spread::default);
    assert_documented(&report.to_string());
}

#[test]
fn the_guide_shows_the_failure_of_a_mutant() {
    let check = PolicyCheck::new().seed(0).cases(256);
    let failure = check.run(GivesUpEarly::default).unwrap_err();
    let text = failure.to_string();
    // The case itself depends on the steps by which proptest shrinks.
    let (detail, case) = (failure.detail, failure.case.unwrap());
    let lines = text.lines().map(str::trim);
    for line in lines.filter(|line| *line != detail && !case.contains(line)) {
        assert_documented(line);
    }
}

#[test]
fn a_policy_with_parameters_passes() {
    struct Either(bool);
    impl PlacementPolicy for Either {
        fn name(&self) -> &'static str {
            "either"
        }
        fn choose(&self, view: &InventoryView<'_>, request: &PlacementRequest) -> Option<Block> {
            if self.0 {
                view.first_fit(request.size)
            } else {
                view.best_fit(request.size)
            }
        }
    }
    let report = check_policy_with(|| Either(true));
    assert!(
        report
            .to_string()
            .starts_with("policy either: every property holds"),
        "{report}"
    );
    assert!(report.classes().all(|(.., count)| count > 0), "{report}");
}

#[test]
#[should_panic(
    expected = "the policy GivesUpEarly violates a property: it finds a block whenever one exists"
)]
fn a_mutant_panics_with_the_violated_property() {
    check_policy::<GivesUpEarly>();
}

#[test]
fn a_policy_that_never_places_has_insufficient_coverage() {
    let failure = PolicyCheck::new()
        .allow_declining()
        .seed(0)
        .cases(32)
        .run(Declines::default)
        .unwrap_err();
    assert_eq!(failure.property, PolicyProperty::WellCovered);
    assert!(failure.detail.contains("result: fits"), "{failure}");
    assert_eq!(failure.case, None);
}

#[test]
fn a_policy_may_decline_if_the_check_allows_it() {
    let failure = PolicyCheck::new().seed(0).run(Declines::default).unwrap_err();
    assert_eq!(failure.property, PolicyProperty::FindsWhatFits);
}

#[test]
fn a_seed_determines_the_report() {
    let one = || PolicyCheck::new().seed(7).cases(48).run(Spread::default);
    assert_eq!(one(), one());
}
