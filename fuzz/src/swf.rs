//! Job traces in the Standard Workload Format.

use ipu_testkit::{SwfOptions, Trace};

use crate::error_messages::check_error;

/// Parses the input as a trace, with the default options.
///
/// # Panics
///
/// If the parsed jobs do not round-trip, or an error has no rule or fix.
pub fn swf(bytes: &[u8]) {
    match Trace::parse_swf(bytes, &SwfOptions::default()) {
        Ok(trace) => {
            let reparsed = Trace::parse_swf(trace.to_swf(), &SwfOptions::default());
            assert_eq!(reparsed.as_ref().map(Trace::jobs), Ok(trace.jobs()));
        }
        Err(error) => {
            check_error(&error, 400);
            assert!(error.line >= 1 && !error.rule.is_empty() && !error.fix.is_empty());
        }
    }
}
