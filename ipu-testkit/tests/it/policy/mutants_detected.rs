//! Every mutant and the property that it violates.

use ipu_core::placement::PlacementPolicy;
use ipu_testkit::{PolicyCheck, PolicyProperty};

use super::mutants;

/// Asserts that `check` detects this property violation and names the case.
fn assert_detected<P: PlacementPolicy + Default>(check: PolicyCheck, property: PolicyProperty) {
    let failure = check.seed(0).run(P::default).unwrap_err();
    assert_eq!(failure.property, property, "{failure}");
    let case = failure.case.as_deref().unwrap();
    assert!(
        case.starts_with("topology ") && case.contains("\nplace "),
        "{failure}"
    );
}

/// Mutant, property, check.
macro_rules! detected {
    ($($name:ident: $policy:ident, $property:ident, $check:expr;)*) => {$(
        #[test]
        fn $name() {
            assert_detected::<mutants::$policy>($check, PolicyProperty::$property);
        }
    )*};
}

detected! {
    held_ipus_are_detected: Overlaps, NotHeld, PolicyCheck::new();
    cordoned_ipus_are_detected: IgnoresCordons, NotCordoned, PolicyCheck::new();
    misaligned_blocks_are_detected: Misaligned, Aligned, PolicyCheck::new();
    halves_of_link_domains_are_detected: TakesHalves, Aligned, PolicyCheck::new();
    a_wrong_size_is_detected: Generous, RightSize, PolicyCheck::new();
    ipus_that_do_not_exist_are_detected: Invents, Exists, PolicyCheck::new();
    blocks_of_two_clusters_are_detected: SpansClusters, OneCluster, PolicyCheck::new();
    blocks_of_two_allocations_are_detected: CrossesAllocations, OneAllocation, PolicyCheck::new();
    another_allocation_is_detected: AnyAllocation, RequestedAllocation, PolicyCheck::new();
    an_early_end_of_the_search_is_detected: GivesUpEarly, FindsWhatFits, PolicyCheck::new();
    alternating_choices_are_detected: TakesTurns, SameAnswerTwice, PolicyCheck::new();
    a_memory_of_requests_is_detected: Remembers, ViewAlone, PolicyCheck::new();
    a_dependence_on_the_history_is_detected: LooksInside, IgnoresHistory, PolicyCheck::new();
    a_panic_is_detected: PanicsOnFull, NeverPanics, PolicyCheck::new();
    a_costly_choice_is_detected: LastFit, CostsLeast, PolicyCheck::new().minimises(|_, _, block| block.clone());
}
