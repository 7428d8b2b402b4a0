//! Every mutant, its violated property, and its generated test: the test compiles, fails for the mutant and
//! passes for a correct policy. `UPDATE=1` rewrites these tests.

use std::path::Path;

use ipu_core::{FirstFit, PlacementPolicy};
use ipu_testkit::{PolicyCheck, PolicyProperty};

use super::mutants;

/// Asserts that `check` detects this property violation and generates the test in the file.
fn is_detected<P: PlacementPolicy + Default>(name: &str, check: PolicyCheck, property: PolicyProperty) {
    let failure = check
        .seed(0)
        .with_constructor(format!("{name}::default()"))
        .run(P::default)
        .unwrap_err();
    assert_eq!(failure.property, property, "{failure}");
    let text = failure.reproduction.unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/policy/{name}.txt"));
    // Included below as a function: with the attribute, it would run as a failing test.
    let text = text.strip_prefix("#[test]\n").unwrap();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(
        text,
        std::fs::read_to_string(&path).unwrap(),
        "{}",
        path.display()
    );
}

/// Mutant, correct policy, property, name of the generated test, check.
macro_rules! detected {
    ($($module:ident: $policy:ident, $good:ident, $property:ident, $test:ident, $check:expr;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn is_detected() {
                super::is_detected::<mutants::$policy>(stringify!($policy), $check, PolicyProperty::$property);
            }

            #[allow(
                clippy::default_constructed_unit_structs,
                reason = "the generated test does not know the fields of the policy"
            )]
            mod shown {
                use super::mutants::$policy;
                include!(concat!("../../../testdata/policy/", stringify!($policy), ".txt"));

                #[test]
                #[should_panic]
                fn fails_the_generated_test() {
                    $test();
                }
            }

            #[allow(
                clippy::default_constructed_unit_structs,
                reason = "the generated test does not know the fields of the policy"
            )]
            mod good {
                use super::$good as $policy;
                include!(concat!("../../../testdata/policy/", stringify!($policy), ".txt"));

                #[test]
                fn a_correct_policy_passes_the_generated_test() {
                    $test();
                }
            }
        }
    )*};
}

detected! {
    overlaps: Overlaps, FirstFit, NotHeld, the_policy_chooses_free_ipus, PolicyCheck::new();
    ignores_cordons: IgnoresCordons, FirstFit, NotCordoned, the_policy_chooses_ipus_without_a_cordon, PolicyCheck::new();
    misaligned: Misaligned, FirstFit, Aligned, the_policy_chooses_aligned_blocks, PolicyCheck::new();
    takes_halves: TakesHalves, FirstFit, Aligned, the_policy_chooses_aligned_blocks, PolicyCheck::new();
    generous: Generous, FirstFit, RightSize, the_policy_chooses_the_requested_size, PolicyCheck::new();
    invents: Invents, FirstFit, Exists, the_policy_chooses_existing_ipus, PolicyCheck::new();
    spans_clusters: SpansClusters, FirstFit, OneCluster, the_policy_stays_in_one_cluster, PolicyCheck::new();
    crosses_allocations: CrossesAllocations, FirstFit, OneAllocation, the_policy_stays_in_one_allocation, PolicyCheck::new();
    any_allocation: AnyAllocation, FirstFit, RequestedAllocation, the_policy_stays_in_the_requested_allocation, PolicyCheck::new();
    gives_up_early: GivesUpEarly, FirstFit, FindsWhatFits, the_policy_finds_each_free_block, PolicyCheck::new();
    takes_turns: TakesTurns, FirstFit, SameAnswerTwice, the_policy_repeats_its_choice, PolicyCheck::new();
    remembers: Remembers, FirstFit, ViewAlone, the_policy_does_not_depend_on_earlier_requests, PolicyCheck::new();
    looks_inside: LooksInside, FirstFit, IgnoresHistory, the_policy_does_not_depend_on_the_history, PolicyCheck::new();
    panics_on_full: PanicsOnFull, FirstFit, NeverPanics, the_policy_does_not_panic, PolicyCheck::new();
    last_fit: LastFit, FirstFit, CostsLeast, the_policy_minimises_the_cost, PolicyCheck::new().minimises(|_, _, block| block.clone());
}
