//! Collection of violations and warnings, and the checks that many fields share.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::job::limits::JobOrigin;
use crate::job::raw::IntOrString;
use crate::job::violation::{Violation, Warning};

/// The violations and warnings so far.
pub(super) struct Diagnostics {
    origin: JobOrigin,
    pub(super) violations: Vec<Violation>,
    pub(super) warnings: Vec<Warning>,
}

impl Diagnostics {
    pub(super) const fn new(origin: JobOrigin) -> Self {
        Self {
            origin,
            violations: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds a violation that makes the job unable to run.
    pub(super) fn refuse(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.violations.push(Violation::new(field, value, rule, fix));
    }

    /// Adds a violation of a policy limit: an error for a new job, a warning for a stored one.
    pub(super) fn forbid(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        let violation = Violation::new(field, value, rule, fix);
        match self.origin {
            JobOrigin::New => self.violations.push(violation),
            JobOrigin::Stored => self.warnings.push(violation.into()),
        }
    }

    /// Adds a warning: the job runs, but the field may not have the effect that its author expects.
    pub(super) fn warn(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.warnings.push(Warning::new(field, value, rule, fix));
    }

    /// Returns the whole number in `value`; none if it is absent or not a whole number, which is a violation.
    pub(super) fn whole(&mut self, field: &str, value: Option<&IntOrString>) -> Option<i64> {
        let value = value?;
        let number = value.as_int();
        if number.is_none() {
            self.refuse(
                field,
                Some(&value.to_string()),
                "must be a whole number",
                "write digits only",
            );
        }
        number
    }

    /// Returns `value` if it is in `range`; otherwise the job cannot run.
    pub(super) fn within(&mut self, field: &str, value: i64, range: RangeInclusive<u32>) -> Option<u32> {
        let number = u32::try_from(value).ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (rule, fix) = describe_range(value, &range);
            self.refuse(field, Some(&value.to_string()), rule, fix);
        }
        number
    }

    /// Returns `value` if it is in `range`; otherwise the nearest bound, for a stored job.
    pub(super) fn clamped(&mut self, field: &str, value: i64, range: RangeInclusive<u32>) -> u32 {
        let nearest = value.clamp(i64::from(*range.start()), i64::from(*range.end()));
        if nearest != value {
            let (rule, fix) = describe_range(value, &range);
            self.forbid(field, Some(&value.to_string()), rule, fix);
        }
        u32::try_from(nearest).unwrap_or(*range.end())
    }

    /// Returns a number that fits the 32-bit signed field of the custom resource.
    pub(super) fn int32(&mut self, field: &str, value: i64) -> Option<i32> {
        let number = i32::try_from(value).ok();
        if number.is_none() {
            self.refuse(
                field,
                Some(&value.to_string()),
                format!("must be from {} to {}", i32::MIN, i32::MAX),
                "use a number in that range",
            );
        }
        number
    }

    /// Returns a duration in seconds of at least `min`.
    pub(super) fn seconds(&mut self, field: &str, value: Option<&IntOrString>, min: u32) -> Option<Duration> {
        let value = self.whole(field, value)?;
        let seconds = self.clamped(field, value, min..=MAX_SECONDS);
        Some(Duration::from_secs(u64::from(seconds)))
    }
}

/// Maximum duration in seconds, 68 years: the limit of the 32 bits of the custom resource 1.2.0.
const MAX_SECONDS: u32 = i32::MAX.unsigned_abs();

fn describe_range(value: i64, range: &RangeInclusive<u32>) -> (String, String) {
    let (min, max) = (range.start(), range.end());
    let nearest = if value < i64::from(*min) { min } else { max };
    (
        format!("must be from {min} to {max}"),
        format!("use {nearest}, for example"),
    )
}
