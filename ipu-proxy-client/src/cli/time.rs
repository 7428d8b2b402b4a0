//! Times in UTC, and ages.

use ipu_core::Timestamp;
use jiff::{SignedDuration, civil};

/// Accepted formats of a time, for error messages.
pub const FORMATS: &str = "use 24h or 7d (ago), 2026-11-01, or 2026-11-01T08:30:00Z";

/// Parses a duration before `now` (`7d`), a date, or a date and time. Returns none for anything else, and for
/// times before 1970.
///
/// ```
/// use ipu_core::Timestamp;
/// use ipu_proxy_client::cli::time;
///
/// let now = Timestamp::from_millis(1_795_982_442_520);
/// let parse = |text| time::parse(text, now).map(time::format);
/// assert_eq!(parse("7d").as_deref(), Some("2026-11-22T20:00:42Z"));
/// assert_eq!(parse("2026-11-01").as_deref(), Some("2026-11-01T00:00:00Z"));
/// // A time of day needs a zone.
/// assert_eq!(parse("2026-11-01T08:30:00"), None);
/// assert_eq!(time::FORMATS, "use 24h or 7d (ago), 2026-11-01, or 2026-11-01T08:30:00Z");
/// ```
#[must_use]
pub fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    let time: jiff::Timestamp = match ago(text) {
        Some(duration) => {
            let duration = SignedDuration::from_secs(i64::try_from(duration).ok()?);
            return Some(of_jiff(moment(now).checked_sub(duration).ok()?).unwrap_or_default());
        }
        None => text.parse().ok().or_else(|| {
            // The parser of dates would drop a time without a zone.
            let date = civil::Date::strptime("%Y-%m-%d", text).ok()?;
            let start = date.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
            Some(start.timestamp())
        })?,
    };
    of_jiff(time)
}

/// Parses a number of seconds with a unit: s, m, h, d or w.
fn ago(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        'w' => 7 * 86_400,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_plain)?.checked_mul(unit)
}

/// Converts a time; none before 1970.
#[must_use]
pub fn of_jiff(time: jiff::Timestamp) -> Option<Timestamp> {
    u64::try_from(time.as_millisecond())
        .ok()
        .map(Timestamp::from_millis)
}

/// Converts a time; the last that can be written for a later one, as in a damaged record.
fn moment(time: Timestamp) -> jiff::Timestamp {
    let millis = i64::try_from(time.as_millis()).ok();
    let time = millis.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    time.unwrap_or(jiff::Timestamp::MAX)
}

/// Formats a time as `2026-11-01T08:30:00Z`, rounded down to seconds.
#[must_use]
pub fn format(at: Timestamp) -> String {
    format!("{:.0}", moment(at))
}

/// Returns the month of a time in UTC, as `2026-11`, and the beginning of the next one.
///
/// ```
/// use ipu_core::Timestamp;
/// use ipu_proxy_client::cli::time;
///
/// let (month, next) = time::month(Timestamp::from_millis(1_795_982_442_520));
/// assert_eq!((month.as_str(), time::format(next).as_str()), ("2026-11", "2026-12-01T00:00:00Z"));
/// ```
#[must_use]
pub fn month(at: Timestamp) -> (String, Timestamp) {
    let date = moment(at).to_zoned(jiff::tz::TimeZone::UTC).date();
    let next = date.last_of_month().tomorrow().ok();
    let next = next.and_then(|next| next.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let next = next.and_then(|next| of_jiff(next.timestamp()));
    (
        date.strftime("%Y-%m").to_string(),
        next.unwrap_or(Timestamp::from_millis(u64::MAX)),
    )
}

/// Formats the time from `since` to `now` as kubectl does: `59s`, `5m`, `30h`, `12d`. Zero if the clocks
/// disagree.
#[must_use]
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(since).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit() {
        let at = |seconds: u64| Timestamp::from_millis(seconds * 1_000);
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7_199, "119m"),
            (7_200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            assert_eq!(age(at(10), at(10 + seconds)), text);
        }
        assert_eq!(age(at(10), at(0)), "0s");
    }

    #[test]
    fn a_time_is_a_duration_ago_a_date_or_a_moment() {
        let now = Timestamp::from_millis(10 * 86_400_000);
        let read = |text: &str| parse(text, now).map(format);
        for (text, expected) in [
            ("2d", "1970-01-09T00:00:00Z"),
            ("1w", "1970-01-04T00:00:00Z"),
            ("90m", "1970-01-10T22:30:00Z"),
            ("9w", "1970-01-01T00:00:00Z"),
            ("2026-11-21", "2026-11-21T00:00:00Z"),
            ("2024-02-29T23:59:59Z", "2024-02-29T23:59:59Z"),
        ] {
            assert_eq!(read(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "d",
            "+1d",
            "-7d",
            "7",
            "1y",
            "2023-02-29",
            "2026-13-01",
            "2026-11-21T08:30:00",
            "1969-12-31",
            "99999999999999999999d",
            "é",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
