//! The documents of observations and plans.

use ipu_core::job::{Observation, Plan, plan};
use ipu_testkit::strategies::{jobs, observations};
use proptest::prelude::*;

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
