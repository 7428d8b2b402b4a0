//! Where the rules put what they find, and the checks that many fields share.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use core::time::Duration;

use crate::job::limits::JobOrigin;
use crate::job::raw::IntOrString;
use crate::job::violation::{Violation, Warning};

/// What is found so far.
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

    /// What cannot run.
    pub(super) fn refuse(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.violations.push(Violation::new(field, value, rule, fix));
    }

    /// What could run but is not allowed to a new job. A stored one is only warned about.
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

    /// What runs, but perhaps not as its writer thinks.
    pub(super) fn warn(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) {
        self.warnings.push(Warning::new(field, value, rule, fix));
    }

    /// The whole number in `value`; none if it is absent or (a violation) none.
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

    /// `value` if it lies in `range`; outside of it the job cannot run.
    pub(super) fn within(&mut self, field: &str, value: i64, range: RangeInclusive<u32>) -> Option<u32> {
        let number = u32::try_from(value).ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (rule, fix) = bounds(value, &range);
            self.refuse(field, Some(&value.to_string()), rule, fix);
        }
        number
    }

    /// `value` if it lies in `range`; outside of it a stored job gets the nearest bound.
    pub(super) fn clamped(&mut self, field: &str, value: i64, range: RangeInclusive<u32>) -> u32 {
        let nearest = value.clamp(i64::from(*range.start()), i64::from(*range.end()));
        if nearest != value {
            let (rule, fix) = bounds(value, &range);
            self.forbid(field, Some(&value.to_string()), rule, fix);
        }
        u32::try_from(nearest).unwrap_or(*range.end())
    }

    /// A number that the custom resource holds in 32 bits, with a sign.
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

    /// A duration in seconds of at least `least`.
    pub(super) fn seconds(
        &mut self,
        field: &str,
        value: Option<&IntOrString>,
        least: u32,
    ) -> Option<Duration> {
        let value = self.whole(field, value)?;
        let seconds = self.clamped(field, value, least..=MAX_SECONDS);
        Some(Duration::from_secs(u64::from(seconds)))
    }
}

/// The longest duration of a job, 68 years: what the 32 bits of the custom resource 1.2.0 hold.
const MAX_SECONDS: u32 = i32::MAX.unsigned_abs();

fn bounds(value: i64, range: &RangeInclusive<u32>) -> (String, String) {
    let (least, most) = (range.start(), range.end());
    let nearest = if value < i64::from(*least) { least } else { most };
    (
        format!("must be from {least} to {most}"),
        format!("use {nearest}, for example"),
    )
}
