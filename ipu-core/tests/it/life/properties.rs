//! Invariants of the plan of any job in any observation, and over whole lives.

use ipu_core::{Observation, Plan, plan};
use ipu_testkit::check_planner;
use ipu_testkit::strategies::{jobs, observations};
use proptest::prelude::*;

#[test]
fn every_plan_is_sound_and_after_any_trouble_a_job_comes_to_its_end_and_holds_nothing() {
    let report = check_planner(plan);
    assert!(report.plans > 0, "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_survives_the_way_through_json(job in jobs(), seen in observations()) {
        let again: Observation = serde_json::from_str(&serde_json::to_string(&seen).unwrap()).unwrap();
        prop_assert_eq!(&again, &seen);
        let made = plan(&job, &seen);
        let read: Plan = serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap();
        prop_assert_eq!(read, made);
    }
}
