//! What would fit if: nothing is recorded.

use ipu_core::{IpuCount, Topology};

use super::{Bench, request};

#[test]
fn what_would_fit_is_placed_side_by_side_without_those_who_are_thought_away() {
    let mut bench = Bench::new(&Topology::pod16());
    let (half, quarter) = (request("n", "half", 8), request("n", "quarter", 4));
    bench.drive(&half);
    bench.drive(&quarter);
    let before = bench.state.clone();
    let fits = |sizes: &[u32], ended: &[_]| {
        let sizes: Vec<IpuCount> = sizes.iter().map(|size| (*size).try_into().unwrap()).collect();
        let answers = bench.state.dry_run(&bench.world(), &sizes, ended);
        let fits = |answer: &ipu_core::DryRun| {
            assert_eq!(answer.controller.is_some(), answer.why.is_empty(), "{answer:?}");
            answer.controller.is_some()
        };
        answers.iter().map(fits).collect::<Vec<_>>()
    };
    assert_eq!(fits(&[4, 4], &[]), [true, false]);
    assert_eq!(fits(&[8], &[]), [false]);
    assert_eq!(fits(&[8, 4], std::slice::from_ref(&half.id)), [true, true]);
    assert_eq!(
        fits(&[16, 1], &[half.id.clone(), quarter.id.clone()]),
        [true, false]
    );
    assert_eq!(fits(&[32], &[half.id.clone(), quarter.id.clone()]), [false]);
    assert_eq!(bench.state, before);
}
