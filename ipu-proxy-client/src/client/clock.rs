//! Clock of the proxy, by which requests expire.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use http::header::DATE;

/// Maximum clock difference that is not corrected: `Date` has a resolution of seconds, and a response takes
/// time.
const TOLERANCE_MS: i64 = 2_000;

/// Difference between the clocks of the proxy and this host, observed from the `Date` of each response.
#[derive(Debug, Default)]
pub(crate) struct ProxyClock {
    /// Milliseconds by which the clock of the proxy is ahead.
    offset: AtomicI64,
}

impl ProxyClock {
    /// Updates the difference from a response that has just arrived.
    pub(crate) fn observe(&self, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|value| value.to_str().ok());
        if let Some(date) = date.and_then(|text| httpdate::parse_http_date(text).ok()) {
            self.observe_at(date, SystemTime::now());
        }
    }

    fn observe_at(&self, date: SystemTime, now: SystemTime) {
        let ahead = millis(date) - millis(now);
        // `Date` is rounded down to seconds.
        let offset = if ahead.abs() > TOLERANCE_MS {
            ahead + 1_000
        } else {
            0
        };
        self.offset.store(offset, Ordering::Relaxed);
    }

    /// Returns the time of the proxy after `wait`, in milliseconds since 1970.
    pub(crate) fn after(&self, wait: Duration) -> u64 {
        self.after_at(wait, SystemTime::now())
    }

    fn after_at(&self, wait: Duration, now: SystemTime) -> u64 {
        let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
        let then = millis(now)
            .saturating_add(self.offset.load(Ordering::Relaxed))
            .saturating_add(wait);
        u64::try_from(then).unwrap_or_default()
    }
}

fn millis(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn a_request_expires_by_the_clock_of_the_proxy_if_the_clocks_differ() {
        let wait = Duration::from_secs(30);
        for (proxy, expires) in [
            (1_000, 1_030_000),
            (1_002, 1_030_000),
            (998, 1_030_000),
            (1_600, 1_631_000),
            (400, 431_000),
        ] {
            let clock = ProxyClock::default();
            clock.observe_at(at(proxy), at(1_000));
            assert_eq!(clock.after_at(wait, at(1_000)), expires, "proxy at {proxy} s");
        }
    }

    #[test]
    fn an_unlimited_wait_never_expires() {
        let clock = ProxyClock::default();
        assert_eq!(clock.after_at(Duration::MAX, at(1)), i64::MAX.cast_unsigned());
    }
}
