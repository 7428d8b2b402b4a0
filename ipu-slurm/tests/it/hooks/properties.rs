//! Properties: no environment makes a parser panic, and every request keeps the limits.

use proptest::prelude::*;

use super::{captured, epilog, prolog, task};
use crate::scontrol::VERSIONS;

proptest! {
    #[test]
    fn no_environment_makes_the_parsers_panic(
        changes in prop::collection::vec((0_usize..40, prop_oneof![
            "\\PC{0,12}", "[0-9]{0,11}", "pod64:[0-9]{0,6}", Just("(null)".to_owned()),
        ]), 0..6),
        version in prop::sample::select(&VERSIONS[..]),
    ) {
        for hook in ["prolog-slurmctld", "epilog-slurmctld", "task-prolog-batch"] {
            let mut variables = captured(version, hook);
            for (at, value) in &changes {
                let at = at % variables.len();
                variables[at].1 = value.into();
            }
            if let Ok(Some(request)) = prolog(variables.clone()) {
                prop_assert!(request.ipus.ipus.get() <= 64);
                prop_assert_eq!(request.ipus.ipus.get() % request.ipus.gcds, 0);
            }
            let errors = [
                prolog(variables.clone()).err(),
                epilog(variables.clone()).err(),
                task(variables).err(),
            ];
            for error in errors.into_iter().flatten() {
                prop_assert!(!error.to_string().contains(char::is_control));
            }
        }
    }
}
