//! Times of the command line, and ages.

use jiff::{SignedDuration, Timestamp, civil};

/// Accepted formats of a time, for error messages.
pub(crate) const FORMATS: &str = "use 24h or 7d (ago), 2026-11-01, or 2026-11-01T08:30:00Z";

/// Parses a duration before `now` (`7d`), a date, or a date and time. Returns none for anything else.
pub(crate) fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some((number, unit)) = text.split_at_checked(text.len().saturating_sub(1))
        && let Ok(number) = number.parse::<u32>()
    {
        let unit = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 86_400,
            "w" => 7 * 86_400,
            _ => return None,
        };
        return now
            .checked_sub(SignedDuration::from_secs(i64::from(number) * unit))
            .ok();
    }
    if let Ok(time) = text.parse() {
        return Some(time);
    }
    let date: civil::Date = text.parse().ok()?;
    let start = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    Some(start.timestamp())
}

/// Returns an age as kubectl prints it: `42s`, `5m`, `3h`, `12d`.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_duration_ago_a_date_or_a_moment() {
        let now: Timestamp = "2026-11-08T12:00:00Z".parse().unwrap();
        let parsed = |text: &str| parse(text, now).map(|time| time.to_string());
        assert_eq!(parsed("7d").as_deref(), Some("2026-11-01T12:00:00Z"));
        assert_eq!(parsed("24h").as_deref(), Some("2026-11-07T12:00:00Z"));
        assert_eq!(parsed("2026-11-01").as_deref(), Some("2026-11-01T00:00:00Z"));
        assert_eq!(
            parsed("2026-11-01T08:30:00Z").as_deref(),
            Some("2026-11-01T08:30:00Z")
        );
        for invalid in ["", "d", "7", "7y", "-7d", "yesterday", "2026-13-01"] {
            assert_eq!(parsed(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn an_age_has_one_unit() {
        let now: Timestamp = "2026-11-08T12:00:00Z".parse().unwrap();
        let of = |seconds: i64| age(now - SignedDuration::from_secs(seconds), now);
        assert_eq!(
            [of(-5), of(42), of(300), of(10_800), of(1_036_800)],
            ["0s", "42s", "5m", "3h", "12d"]
        );
    }
}
