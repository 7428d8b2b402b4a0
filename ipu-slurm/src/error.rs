//! The error for output and environments of Slurm that cannot be used.

use ipu_core::job::Violation;

/// A field of Slurm's output or of a hook's environment that cannot be used.
///
/// Displays as `field = value: rule; fix`, on one line.
///
/// ```
/// use ipu_slurm::RunId;
///
/// let error = RunId::from_submit_time("2026-11-25T07:49:16").unwrap_err();
/// assert_eq!(&*error.violation.field, "SubmitTime");
/// assert_eq!(
///     error.to_string(),
///     "SubmitTime = 2026-11-25T07:49:16: must be seconds since 1970; set SLURM_TIME_FORMAT=%s",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{violation}")]
#[non_exhaustive]
pub struct InputError {
    /// The field with its value, the rule and the fix.
    pub violation: Box<Violation>,
}

impl InputError {
    pub(crate) fn new(
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            violation: Box::new(Violation::new(field, value, rule, fix)),
        }
    }
}

/// Parses a decimal number without sign, blanks or leading zeros beyond one digit.
pub(crate) fn decimal<T: core::str::FromStr>(text: &str) -> Option<T> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let canonical = text == "0" || !text.starts_with('0');
    if digits && canonical {
        text.parse().ok()
    } else {
        None
    }
}
