//! Synthetic traces, and the example.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ipu_core::hardware::Topology;
use ipu_testkit::{JobClass, SyntheticOptions, Trace};

use super::policies::count;

#[allow(dead_code, reason = "the example's `main` is not called here")]
#[path = "../../../examples/score_policies.rs"]
mod example;

#[test]
fn the_load_matches_the_options_and_arrivals_are_poisson() {
    for load in [0.3, 0.9, 1.5] {
        let mut options = SyntheticOptions::inference(3, 20_000, 256);
        options.load = load;
        let trace = Trace::synthetic(&options);
        let actual = trace.load(256).unwrap();
        assert!((actual / load - 1.0).abs() < 0.05, "{actual} for {load}");
        let gaps: Vec<f64> = trace
            .jobs()
            .windows(2)
            .map(|pair| (pair[1].submit - pair[0].submit).as_secs_f64())
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let longer = gaps.iter().filter(|gap| **gap > mean).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.02, "{longer}");
    }
}

#[test]
fn sizes_follow_the_weights_and_run_times_their_median() {
    let classes = vec![
        JobClass::new(3, count(1), Duration::from_secs(100), 2.0),
        JobClass::new(1, count(8), Duration::from_secs(1000), 1.0),
        JobClass::new(0, count(64), Duration::from_secs(1), 1.0),
    ];
    let trace = Trace::synthetic(&SyntheticOptions::new(5, 20_000, 64, classes));
    let mut runtimes: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for job in trace.jobs() {
        runtimes
            .entry(job.size.get())
            .or_default()
            .push(job.runtime.as_secs());
    }
    assert_eq!(runtimes.keys().copied().collect::<Vec<_>>(), [1, 8]);
    assert!((runtimes[&1].len() as f64 / 15_000.0 - 1.0).abs() < 0.03);
    let small = runtimes.get_mut(&1).unwrap();
    small.sort_unstable();
    let median = small[small.len() / 2];
    assert!((95..105).contains(&median), "{median}");
    assert!(runtimes[&8].iter().all(|seconds| (999..=1000).contains(seconds)));
}

#[test]
fn a_seed_determines_the_trace() {
    let trace = |seed| Trace::synthetic(&SyntheticOptions::training(seed, 100, 1024));
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn presets_fit_the_hardware() {
    for ipus in [1, 4, 64] {
        for options in [
            SyntheticOptions::inference(1, 50, ipus),
            SyntheticOptions::mixed(1, 50, ipus),
        ] {
            assert!(
                Trace::synthetic(&options)
                    .jobs()
                    .iter()
                    .all(|job| job.size.get() <= ipus)
            );
        }
    }
}

#[test]
fn the_placement_page_shows_the_output_of_the_example() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/placement.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = example::compare(&example::synthetic_trace(), &Topology::pod256());
    assert!(page.contains(&table), "docs/placement.md must contain:\n{table}");
}
