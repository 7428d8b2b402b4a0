//! Violations and warnings of a job: each names the field, its value, the rule and the fix.

use alloc::string::String;
use core::error::Error;
use core::fmt;

use serde::{Deserialize, Serialize};

/// Maximum number of characters of a value that a message repeats: enough to recognise it, bounded because
/// any client may send it.
const MAX_SHOWN: usize = 80;

/// Maximum number of characters of a rule or a fix, which may repeat a part of the value.
const MAX_TEXT: usize = 600;

/// Maximum number of characters of the path of a field: a Pod template has no longer one.
const MAX_FIELD: usize = 200;

/// A rule that a job breaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Violation {
    /// The path of the field, such as `spec.ipusPerJobInstance`.
    pub field: String,
    /// The given value, shortened; none if the field is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The rule.
    pub rule: String,
    /// The fix.
    pub fix: String,
}

/// A valid value that may not have the effect that its author expects: `rule` says how it is handled.
pub type Warning = Violation;

impl Violation {
    /// Creates the violation of `rule` by `field`, which is `value` or absent.
    #[must_use]
    pub fn new(field: &str, value: Option<&str>, rule: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            field: one_line(field, MAX_FIELD),
            value: value.map(|value| one_line(value, MAX_SHOWN)),
            rule: one_line(&rule.into(), MAX_TEXT),
            fix: one_line(&fix.into(), MAX_TEXT),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            field,
            value,
            rule,
            fix,
        } = self;
        match value {
            Some(value) => write!(f, "{field} = {value}: {rule}; {fix}"),
            None => write!(f, "{field} is absent: {rule}; {fix}"),
        }
    }
}

impl Error for Violation {}

/// Returns `text` on one line and limited to `max` characters.
fn one_line(text: &str, max: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut line: String = text.chars().take(max).map(plain).collect();
    if text.chars().nth(max).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_violation_displays_field_value_rule_and_fix() {
        let violation = Violation::new("spec.a", Some("3"), "must be even", "use 2 or 4");
        assert_eq!(
            std::format!("{violation}"),
            "spec.a = 3: must be even; use 2 or 4"
        );
        let absent = Violation::new("spec.a", None, "every job has one", "add it");
        assert_eq!(
            std::format!("{absent}"),
            "spec.a is absent: every job has one; add it"
        );
    }

    #[test]
    fn a_value_is_shown_on_one_line_and_bounded() {
        let long = std::format!("a\nb{}", "x".repeat(1000));
        let violation = Violation::new("f", Some(&long), "r", "x");
        let value = violation.value.unwrap();
        assert!(value.starts_with("a\u{fffd}b") && value.chars().count() == MAX_SHOWN + 1);
    }
}
