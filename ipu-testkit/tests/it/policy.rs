//! `check_policy`: ours pass it, and every broken one is caught for what is broken about it.

mod mutants;
mod mutants_detected;

use std::path::Path;

use ipu_core::{Block, InventoryView, PlacementPolicy, PlacementRequest};
use ipu_testkit::{PolicyCheck, PolicyProperty, check_policy, check_policy_with};

use mutants::{Declines, GivesUpEarly, Spread};

/// Asserts that the page on placement shows this text.
#[track_caller]
fn assert_shown(text: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/placement.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains(text),
        "docs/placement.md does not show this:\n{text}"
    );
}

#[test]
fn the_policy_of_the_guide_passes_and_the_guide_shows_what_was_covered() {
    let report = PolicyCheck::new().seed(0).cases(256).check(Spread::default);
    assert_shown(&report.to_string());
}

#[test]
fn the_guide_shows_what_is_said_of_a_broken_policy() {
    let check = PolicyCheck::new()
        .seed(0)
        .cases(256)
        .with_constructor("GivesUpEarly::default()");
    assert_shown(&check.run(GivesUpEarly::default).unwrap_err().to_string());
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
    expected = "the policy GivesUpEarly is broken; this does not hold: it finds a place whenever there is one"
)]
fn a_broken_policy_panics_with_the_property_that_does_not_hold() {
    check_policy::<GivesUpEarly>();
}

#[test]
fn a_policy_that_never_places_anything_is_not_well_covered() {
    let failure = PolicyCheck::new()
        .allow_declining()
        .seed(0)
        .cases(32)
        .run(Declines::default)
        .unwrap_err();
    assert_eq!(failure.property, PolicyProperty::WellCovered);
    assert!(failure.what.contains("answer: fits"), "{failure}");
    assert_eq!(failure.reproduction, None);
}

#[test]
fn a_policy_may_decline_if_it_says_so() {
    let failure = PolicyCheck::new().seed(0).run(Declines::default).unwrap_err();
    assert_eq!(failure.property, PolicyProperty::FindsWhatFits);
}

#[test]
fn the_same_seed_gives_the_same_answer() {
    let one = || PolicyCheck::new().seed(7).cases(48).run(Spread::default);
    assert_eq!(one(), one());
}
