//! Times as people write them, in UTC.

use std::time::Duration;

use ipu_core::Timestamp;

/// What a time looks like, for whoever wrote another one.
pub(crate) const FORMS: &str = "write 24h or 7d (ago), 2026-11-01, or 2026-11-01T08:30:00Z";

const DAY: u64 = 86_400;

/// `7d` before `now`, or a day, or a moment.
pub(crate) fn parse(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some(ago) = ago(text) {
        let millis = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
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
    // A day that its month does not have is one of the next month.
    if !valid || civil(days) != (year, month, day) {
        return None;
    }
    let seconds = days * DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp::from_millis(seconds * 1000))
}

fn ago(text: &str) -> Option<Duration> {
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

/// Three numbers of so many digits.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut found = [0; 3];
    let mut parts = text.split(between);
    for (number, digits) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        let plain = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *number = part.parse().ok().filter(|_| plain)?;
    }
    parts.next().is_none().then_some(found)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400)
}

/// Days of a month.
const fn length(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from the beginning of 1970 to that of the month.
fn days_before(year: u64, month: u64) -> u64 {
    let years: u64 = (1970..year)
        .map(|year| if is_leap(year) { 366 } else { 365 })
        .sum();
    let months: u64 = (1..month.min(13)).map(|month| length(year, month)).sum();
    years + months
}

/// Year, month and day of the day with this number from the beginning of 1970.
fn civil(mut days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    loop {
        let of_year = if is_leap(year) { 366 } else { 365 };
        if days < of_year {
            break;
        }
        days -= of_year;
        year += 1;
    }
    let mut month = 1;
    while days >= length(year, month) {
        days -= length(year, month);
        month += 1;
    }
    (year, month, days + 1)
}

/// `2026-11-01T08:30:00Z`; parts of seconds are cut off.
pub(crate) fn format(at: Timestamp) -> String {
    let seconds = at.as_millis() / 1000;
    // Beyond any calendar: a damaged record is no reason to count for long.
    let (year, month, day) = civil((seconds / DAY).min(DAY * 100));
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
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
