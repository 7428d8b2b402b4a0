//! Invariants of the plan of any job in any observation, and over whole lives.

use ipu_core::{Observation, Plan, plan};
use ipu_testkit::strategies::{jobs, observations};
use ipu_testkit::{PlannerOptions, try_check_planner};
use proptest::prelude::*;

#[test]
fn every_plan_is_sound_and_after_any_trouble_a_job_comes_to_its_end_and_holds_nothing() {
    // A part of the cases: the tests of ipu-testkit try all of them, and see what they reach.
    if let Err(failure) = try_check_planner(plan, PlannerOptions::default().with_cases(80)) {
        panic!("{failure}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_survives_the_way_through_json(job in jobs(), seen in observations()) {
        let again: Observation = serde_json::from_str(&serde_json::to_string(&seen).unwrap()).unwrap();
        prop_assert_eq!(&again, &seen);
        let made = plan(&job, &seen);
        let read: Plan = serde_json::from_str(&serde_json::to_string(&made).unwrap()).unwrap();
        prop_assert_eq!(read, made);
    }
}
