//! Job traces in the Standard Workload Format.

use ipu_testkit::{SwfOptions, Trace};

use crate::error_messages::said_of;

/// A trace, with the options that most use.
///
/// # Panics
///
/// If the jobs that are read do not print as themselves, or an error does not say what is wrong.
pub fn swf(bytes: &[u8]) {
    match Trace::parse_swf(bytes, &SwfOptions::default()) {
        Ok(trace) => {
            let again = Trace::parse_swf(trace.to_swf(), &SwfOptions::default());
            assert_eq!(again.as_ref().map(Trace::jobs), Ok(trace.jobs()));
        }
        Err(error) => {
            said_of(&error, 400);
            assert!(error.line >= 1 && !error.rule.is_empty() && !error.fix.is_empty());
        }
    }
}
