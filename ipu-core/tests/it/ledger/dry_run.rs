//! Dry runs: they record nothing.

use ipu_core::{IpuCount, Topology};

use super::{LedgerHarness, request};

#[test]
fn a_dry_run_places_all_sizes_together_and_ignores_the_ended_holders() {
    let mut harness = LedgerHarness::new(&Topology::pod16());
    let (half, quarter) = (request("n", "half", 8), request("n", "quarter", 4));
    harness.submit(&half);
    harness.submit(&quarter);
    let before = harness.state.clone();
    let fits = |sizes: &[u32], ended: &[_]| {
        let sizes: Vec<IpuCount> = sizes.iter().map(|size| (*size).try_into().unwrap()).collect();
        let results = harness.state.dry_run(&harness.snapshot(), &sizes, ended);
        let fits = |result: &ipu_core::DryRun| {
            assert_eq!(
                result.controller.is_some(),
                result.reasons.is_empty(),
                "{result:?}"
            );
            result.controller.is_some()
        };
        results.iter().map(fits).collect::<Vec<_>>()
    };
    assert_eq!(fits(&[4, 4], &[]), [true, false]);
    assert_eq!(fits(&[8], &[]), [false]);
    assert_eq!(fits(&[8, 4], std::slice::from_ref(&half.id)), [true, true]);
    assert_eq!(
        fits(&[16, 1], &[half.id.clone(), quarter.id.clone()]),
        [true, false]
    );
    assert_eq!(fits(&[32], &[half.id.clone(), quarter.id.clone()]), [false]);
    assert_eq!(harness.state, before);
}
