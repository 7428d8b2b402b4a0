//! Exit statuses of processes, and sets of exit codes.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Exit status of a process: an exit code, or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Exit {
    /// Exited with this code.
    Code(u8),
    /// Terminated by this signal.
    Signal(u8),
}

impl Exit {
    /// Returns the code that a shell would report: the code itself, or 128 plus the signal's number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }

    /// Returns whether the process succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal} (exit code {})", self.code()),
        }
    }
}

/// A set of exit codes, written as codes and ranges: `128-255,42`.
///
/// ```
/// use ipu_core::job::ExitCodeSet;
///
/// let retryable: ExitCodeSet = "1-3,137".parse()?;
/// assert!(retryable.contains(137) && !retryable.contains(4));
/// # Ok::<(), ipu_core::job::ExitCodeSetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct ExitCodeSet {
    /// Inclusive, in order, neither overlapping nor adjacent.
    ranges: Vec<(u8, u8)>,
}

/// The reason that a text is not a set of exit codes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?} is not an exit code from 0 to 255 or a rising range of them such as 128-255")]
#[non_exhaustive]
pub struct ExitCodeSetError {
    /// The invalid part between commas.
    pub part: String,
}

impl ExitCodeSet {
    /// Returns the exit codes that are retried unless a job sets others: 128 to 255 (V-IPU guide §6.7.2).
    #[must_use]
    pub fn default_retryable() -> Self {
        Self {
            ranges: [(128, 255)].into(),
        }
    }

    /// Returns whether `code` is in the set.
    #[must_use]
    pub fn contains(&self, code: u8) -> bool {
        self.ranges.iter().any(|(from, to)| (*from..=*to).contains(&code))
    }
}

impl FromStr for ExitCodeSet {
    type Err = ExitCodeSetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut listed = Vec::new();
        for part in text.split(',') {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            match (from.trim().parse::<u8>(), to.trim().parse::<u8>()) {
                (Ok(from), Ok(to)) if from <= to => listed.push((from, to)),
                _ => return Err(ExitCodeSetError { part: part.into() }),
            }
        }
        listed.sort_unstable();
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for (from, to) in listed {
            match ranges.last_mut() {
                Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
                _ => ranges.push((from, to)),
            }
        }
        Ok(Self { ranges })
    }
}

impl TryFrom<String> for ExitCodeSet {
    type Error = ExitCodeSetError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ExitCodeSet> for String {
    fn from(set: ExitCodeSet) -> Self {
        alloc::format!("{set}")
    }
}

impl fmt::Display for ExitCodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, to)) in self.ranges.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if from == to {
                write!(f, "{comma}{from}")?
            } else {
                write!(f, "{comma}{from}-{to}")?
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_signal_has_the_exit_code_128_plus_its_number() {
        assert_eq!(Exit::Signal(9).code(), 137);
        assert_eq!(std::format!("{}", Exit::Signal(15)), "signal 15 (exit code 143)");
    }

    #[test]
    fn an_invalid_exit_code_set_is_rejected_with_its_invalid_part() {
        for (text, part) in [
            ("", ""),
            ("256", "256"),
            ("1,x", "x"),
            ("9-3", "9-3"),
            ("1-", "1-"),
        ] {
            assert_eq!(
                text.parse::<ExitCodeSet>(),
                Err(ExitCodeSetError { part: part.into() }),
                "{text}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_set_contains_the_codes_of_its_parts_and_displays_as_itself(parts in prop::collection::vec((any::<u8>(), any::<u8>()), 1..6)) {
            let parts: Vec<(u8, u8)> = parts.iter().map(|(a, b)| (*a.min(b), *a.max(b))).collect();
            let text = parts.iter().map(|(a, b)| std::format!("{a}-{b}")).collect::<Vec<_>>().join(",");
            let set: ExitCodeSet = text.parse().unwrap();
            for code in 0..=255 {
                prop_assert_eq!(set.contains(code), parts.iter().any(|(a, b)| (*a..=*b).contains(&code)));
            }
            // Two sets of the same codes are equal.
            let codes = (0..=255).filter(|code| set.contains(*code));
            let codes: Vec<_> = codes.map(|code| std::format!("{code}")).collect();
            prop_assert_eq!(&codes.join(",").parse::<ExitCodeSet>().unwrap(), &set);
            prop_assert_eq!(&String::from(set.clone()).parse::<ExitCodeSet>().unwrap(), &set);
        }
    }
}
