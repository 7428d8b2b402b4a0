//! Parses and formats times in UTC, and ages.

use std::time::Duration;

use ipu_core::Timestamp;

/// Accepted formats of a time, for error messages.
pub(crate) const FORMATS: &str = "use 24h or 7d (ago), 2026-11-01, or 2026-11-01T08:30:00Z";

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Parses a duration before `now` (`7d`), a date, or a date and time. Returns none for anything else.
pub(crate) fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some(duration) = duration(text) {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        return Some(Timestamp::from_millis(now.as_millis().saturating_sub(millis)));
    }
    let (date, time) = match text.split_once('T') {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let valid = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let days = days_before(year, month) + day.checked_sub(1)?;
    // A day that the month does not have would be normalized to one of the next month.
    if !valid || civil(days) != (year, month, day) {
        return None;
    }
    let seconds = days * DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp::from_millis(seconds * 1000))
}

/// Parses a number with a unit: s, m, h, d or w.
fn duration(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => DAY,
        'w' => 7 * DAY,
        _ => return None,
    };
    let number = &text[..text.len() - 1];
    let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| plain)?;
    Some(Duration::from_secs(number.checked_mul(unit)?))
}

/// Parses three numbers with the given numbers of digits.
fn numbers(text: &str, separator: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut numbers = [0; 3];
    let mut parts = text.split(separator);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        let plain = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| plain)?;
    }
    parts.next().is_none().then_some(numbers)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

/// Returns the number of days of a month.
const fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns the number of days from 1970-01-01 to the first day of the month.
fn days_before(year: u64, month: u64) -> u64 {
    let years: u64 = (1970..year)
        .map(|year| if is_leap(year) { 366 } else { 365 })
        .sum();
    let months: u64 = (1..month.min(13)).map(|month| days_of_month(year, month)).sum();
    years + months
}

/// Returns year, month and day of a number of days since 1970-01-01.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if days < length {
            break;
        }
        days -= length;
        year += 1;
    }
    let mut month = 1;
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

/// Formats a time as `2026-11-01T08:30:00Z`, rounded down to seconds.
pub(crate) fn format(at: Timestamp) -> String {
    let seconds = at.as_millis() / 1000;
    // Bounds the loop over years for a damaged record.
    let (year, month, day) = civil((seconds / DAY).min(DAY * 100));
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats the time from `since` to `now` as kubectl does: `59s`, `5m`, `30h`, `12d`. Zero if the clocks
/// disagree.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.since(since).as_secs();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / DAY),
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
    fn times_are_parsed_and_formatted() {
        let now = Timestamp::from_millis(10 * DAY * 1000);
        let read = |text: &str| parse(text, now).map(format);
        assert_eq!(read("2d").as_deref(), Some("1970-01-09T00:00:00Z"));
        assert_eq!(read("1w").as_deref(), Some("1970-01-04T00:00:00Z"));
        assert_eq!(read("90m").as_deref(), Some("1970-01-10T22:30:00Z"));
        for text in [
            "2024-02-29T23:59:59Z",
            "1970-01-01T00:00:00Z",
            "2100-03-01T12:00:00Z",
        ] {
            assert_eq!(read(text).as_deref(), Some(text));
        }
        assert_eq!(read("2026-11-21").as_deref(), Some("2026-11-21T00:00:00Z"));
        assert_eq!(
            parse("2026-11-21", now),
            Some(Timestamp::from_millis(1_795_219_200_000))
        );
        let broken = [
            "",
            "d",
            "+1d",
            "x",
            "1y",
            "2023-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-11-00",
            "2026-11-1",
            "2026-11-21T08:30:00",
            "2026-11-21T24:00:00Z",
            "1969-12-31",
            "99999999999999999999d",
            "é",
        ];
        for text in broken {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
