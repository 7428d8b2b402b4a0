//! Job traces in the Standard Workload Format.

use ipu_testkit::{SwfOptions, Trace};

use crate::error_messages::check_error;

/// Parses the input as a trace, with the default options.
///
/// # Panics
///
/// If the parsed jobs are not sorted, or an error has no rule or fix.
pub fn swf(bytes: &[u8]) {
    match Trace::parse_swf(bytes, &SwfOptions::default()) {
        Ok(trace) => assert!(trace.jobs().is_sorted_by_key(|job| job.submit)),
        Err(error) => {
            check_error(&error, 400);
            assert!(error.line >= 1 && !error.rule.is_empty() && !error.fix.is_empty());
        }
    }
}
