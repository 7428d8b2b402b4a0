//! Validated quantities: a number of IPUs is a power of two, a time is milliseconds since the Unix epoch.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use alloc::format;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// The number of IPUs of a partition: a power of two from 1 to [`IpuCount::MAX`].
///
/// Source: partition sizes are powers of two (V-IPU user guide, "Partitions").
///
/// ```
/// use ipu_core::IpuCount;
///
/// assert_eq!(IpuCount::try_from(16)?.get(), 16);
/// assert!(IpuCount::try_from(12).is_err());
/// # Ok::<(), ipu_core::IpuCountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "u32", into = "u32")]
pub struct IpuCount(u32);

impl IpuCount {
    /// The largest partition that any documented system could form: 1,024 racks of 64 IPUs (IPU-POD64 data
    /// sheet).
    pub const MAX: Self = Self(65_536);
    /// One IPU, the smallest partition.
    pub const ONE: Self = Self(1);
    /// The IPUs of one link domain, the largest partition that does not use a GW-link.
    pub const LINK_DOMAIN: Self = Self(64);

    /// Returns the count as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the exponent k of 2^k.
    #[must_use]
    pub const fn order(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Returns the count 2^`order`, if it is at most [`IpuCount::MAX`].
    #[must_use]
    pub const fn from_order(order: u32) -> Option<Self> {
        if order <= Self::MAX.order() {
            Some(Self(1 << order))
        } else {
            None
        }
    }
}

/// The reason that a number is not a valid number of IPUs of a partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IpuCountError {
    /// Not a power of two.
    #[error("{value} is not a power of two from 1 to {}; {}", IpuCount::MAX.get(), valid_count(*value, *next))]
    NotAPowerOfTwo {
        /// The given value.
        value: u64,
        /// The smallest valid count that is at least `value` (the largest one if there is none).
        next: u32,
    },
    /// Not a number.
    #[error("{text:?} is not a whole number")]
    NotANumber {
        /// The given text.
        text: String,
    },
}

fn valid_count(value: u64, next: u32) -> String {
    if value > u64::from(next) {
        format!("the largest is {next}")
    } else {
        format!("the next one up is {next}")
    }
}

impl TryFrom<u32> for IpuCount {
    type Error = IpuCountError;

    fn try_from(value: u32) -> Result<Self, Self::Error> {
        if value.is_power_of_two() && value <= Self::MAX.0 {
            return Ok(Self(value));
        }
        let next = value
            .checked_next_power_of_two()
            .unwrap_or(u32::MAX)
            .min(Self::MAX.0);
        Err(IpuCountError::NotAPowerOfTwo {
            value: u64::from(value),
            next,
        })
    }
}

impl From<IpuCount> for u32 {
    fn from(count: IpuCount) -> Self {
        count.0
    }
}

impl FromStr for IpuCount {
    type Err = IpuCountError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim().parse::<u32>() {
            Ok(value) => Self::try_from(value),
            Err(_) => Err(IpuCountError::NotANumber { text: text.into() }),
        }
    }
}

impl fmt::Display for IpuCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A point in time: milliseconds since the Unix epoch. This crate never reads a clock; the caller passes
/// `now`.
///
/// ```
/// use core::time::Duration;
/// use ipu_core::Timestamp;
///
/// let start = Timestamp::from_millis(1_000);
/// assert_eq!(start.plus(Duration::from_secs(2)).since(start), Duration::from_secs(2));
/// assert_eq!(start.since(start.plus(Duration::from_secs(2))), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Creates the time `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the Unix epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later (clocks step back).
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns whether less than `duration` lies between the two times, in either direction: after the clock
    /// was set back, a time that is further in the future has passed.
    #[must_use]
    pub fn is_near(self, other: Self, duration: Duration) -> bool {
        self.since(other).max(other.since(self)) < duration
    }

    /// Returns the time `duration` later; the last representable one if it overflows.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        let millis = duration.as_millis();
        if millis > (u64::MAX - self.0) as u128 {
            Self(u64::MAX)
        } else {
            Self(self.0 + millis as u64)
        }
    }
}

/// A point in time of a clock that never steps and counts the time for which the host is suspended, such as
/// `CLOCK_BOOTTIME` of Linux, in milliseconds. It is compared only within one run of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

impl BootTime {
    /// Creates the time `millis` milliseconds after the start of the clock.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns the milliseconds since the start of the clock.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the duration since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `duration` later; the last representable one if it overflows.
    #[must_use]
    pub const fn plus(self, duration: Duration) -> Self {
        Self(Timestamp(self.0).plus(duration).0)
    }
}

/// Serializes a `Duration` as a whole number of milliseconds, for `#[serde(with = "crate::units::millis")]`.
#[cfg(any(feature = "allocator", feature = "job"))]
pub(crate) mod millis {
    #[cfg(feature = "job")]
    use core::time::Duration;

    #[cfg(feature = "job")]
    use serde::{Deserialize, Deserializer, Serializer};

    #[cfg(feature = "job")]
    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    #[cfg(feature = "job")]
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }

    /// Serializes an optional duration.
    pub(crate) mod option {
        use core::time::Duration;

        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        #[expect(clippy::ref_option, reason = "the signature that serde asks for")]
        pub(crate) fn serialize<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
            value
                .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
                .serialize(to)
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_powers_of_two_up_to_the_maximum_are_counts() {
        for value in 0..=200_000_u32 {
            let valid = value.count_ones() == 1 && value <= 65_536;
            assert_eq!(IpuCount::try_from(value).is_ok(), valid, "{value}");
        }
    }

    #[test]
    fn an_invalid_count_error_names_the_next_valid_one_or_the_largest() {
        for (count, advice) in [
            ("0", "the next one up is 1"),
            ("3", "the next one up is 4"),
            ("65537", "the largest is 65536"),
            ("4294967295", "the largest is 65536"),
        ] {
            let error = count.parse::<IpuCount>().unwrap_err();
            let expected = std::format!("{count} is not a power of two from 1 to 65536; {advice}");
            assert_eq!(std::format!("{error}"), expected);
        }
        assert!("three".parse::<IpuCount>().is_err());
    }

    #[test]
    fn a_time_is_near_another_one_in_both_directions() {
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        let minute = Duration::from_secs(60);
        for (other, expected) in [(100, true), (159, true), (160, false), (41, true), (40, false)] {
            assert_eq!(at(100).is_near(at(other), minute), expected, "{other}");
        }
    }

    #[test]
    fn time_never_underflows_or_overflows() {
        let (early, late) = (Timestamp::from_millis(5), Timestamp::from_millis(u64::MAX - 1));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(
            late.plus(Duration::from_secs(9)),
            Timestamp::from_millis(u64::MAX)
        );
    }
}
