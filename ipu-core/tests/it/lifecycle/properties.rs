//! Invariants of the plan of any job in any observation, and over whole life cycles.

use ipu_core::{Observation, Plan, plan};
use ipu_testkit::strategies::{jobs, observations};
use ipu_testkit::{PlannerOptions, try_check_planner};
use proptest::prelude::*;

#[test]
fn every_plan_is_valid_and_every_job_finishes_after_faults_and_holds_nothing() {
    // A subset of the cases; the tests of ipu-testkit run all of them and check their coverage.
    if let Err(failure) = try_check_planner(plan, PlannerOptions::default().with_cases(80)) {
        panic!("{failure}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_round_trips_through_json(job in jobs(), observation in observations()) {
        let parsed: Observation = serde_json::from_str(&serde_json::to_string(&observation).unwrap()).unwrap();
        prop_assert_eq!(&parsed, &observation);
        let expected = plan(&job, &observation);
        let actual: Plan = serde_json::from_str(&serde_json::to_string(&expected).unwrap()).unwrap();
        prop_assert_eq!(actual, expected);
    }
}
