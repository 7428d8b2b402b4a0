//! Strict parsing of paths, queries and bodies: unknown names are errors.

use std::time::Duration;

use http::{StatusCode, Uri};
use ipu_allocator::{InvalidUsagePosition, UsagePosition};
use ipu_core::{PartitionId, Timestamp};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use crate::partition_api::parse_name;
use crate::problem::Problem;

/// Maximum `wait` of a request: clients and intermediaries time out after about a minute.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// Maximum number of records of a page: about half a megabyte.
pub(crate) const MAX_PAGE: usize = 2_000;

/// Query parameters, in order.
pub(crate) type Query = Vec<(String, String)>;

/// Parsed query parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// Time to wait for the completion of the operation.
    pub(crate) wait: Duration,
    /// Fail instead of joining the queue.
    pub(crate) nowait: bool,
    /// Newest attempt that the request applies to.
    pub(crate) attempt: Option<u32>,
    /// Expected uid of the owner.
    pub(crate) uid: Option<String>,
    /// Release a quarantined partition.
    pub(crate) quarantined: bool,
    /// False if the controller must not be forced to remove the partition.
    pub(crate) force: Option<bool>,
    /// Deadline of the client, in milliseconds since 1970: the proxy refuses a request that it reads later.
    pub(crate) not_after: Option<Timestamp>,
    /// Start of the period, in milliseconds since 1970.
    pub(crate) since: u64,
    /// Maximum number of records of a page.
    pub(crate) limit: usize,
    /// Name of a controller.
    pub(crate) controller: Option<String>,
    /// Number of a GCD.
    pub(crate) gcd: Option<u32>,
    /// Position of the last record of the previous page.
    pub(crate) after: Option<UsagePosition>,
}

impl Params {
    /// Parses a query that allows these parameters, each once.
    pub(crate) fn parse(query: Query, allowed: &[&str]) -> Result<Self, Problem> {
        let mut params = Self {
            limit: MAX_PAGE,
            ..Self::default()
        };
        let mut names: Vec<String> = Vec::new();
        for (name, value) in query {
            if !allowed.contains(&name.as_str()) {
                let rule = if allowed.is_empty() {
                    "no parameters are allowed here".to_owned()
                } else {
                    format!("allowed parameters are {}", allowed.join(", "))
                };
                return Err(Problem::invalid("query", name, rule, "remove it"));
            }
            if names.contains(&name) {
                return Err(Problem::invalid(name, value, "must occur once", "remove one"));
            }
            match name.as_str() {
                "wait" => params.wait = duration(&value)?,
                "nowait" => params.nowait = flag("nowait", &value)?,
                "quarantined" => params.quarantined = flag("quarantined", &value)?,
                "force" => params.force = Some(flag("force", &value)?),
                "since" => params.since = number("since", &value)?,
                "notAfter" => params.not_after = Some(Timestamp::from_millis(number("notAfter", &value)?)),
                "limit" => params.limit = limit(&value)?,
                "continue" => params.after = Some(position(&value)?),
                "controller" => params.controller = Some(value),
                "gcd" => params.gcd = Some(number("gcd", &value)?),
                "attempt" => params.attempt = Some(number("attempt", &value)?),
                _ => params.uid = Some(value),
            }
            names.push(name);
        }
        if params.nowait && !params.wait.is_zero() {
            let rule = "and wait exclude each other";
            return Err(Problem::invalid("nowait", "true", rule, "remove one"));
        }
        Ok(params)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    let rule = "must be a whole number in range";
    value
        .parse()
        .map_err(|_| Problem::invalid(name, value, rule, "use a number such as 0"))
}

fn limit(value: &str) -> Result<usize, Problem> {
    let parsed = value.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    parsed.ok_or_else(|| {
        let rule = format!("must be a whole number from 1 to {MAX_PAGE}");
        Problem::invalid(
            "limit",
            value,
            rule,
            format!("use {MAX_PAGE}, and follow `continue`"),
        )
    })
}

fn position(value: &str) -> Result<UsagePosition, Problem> {
    value.parse().map_err(|error: InvalidUsagePosition| {
        let fix =
            "send `continue` of the previous response unchanged, or remove it to start at the first page";
        Problem::invalid("continue", value, error.to_string(), fix)
    })
}

/// Parses a flag: present without a value, `true` or `false`.
fn flag(name: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Problem::invalid(
            name,
            value,
            "must be true or false",
            "use one of them",
        )),
    }
}

/// Parses `30s`, `1500ms`, `1m`, or seconds without a unit.
fn duration(text: &str) -> Result<Duration, Problem> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: Option<u64> = digits.parse().ok().filter(|_| !digits.starts_with('+'));
    let parsed = match (number, &text[digits.len()..]) {
        (Some(number), "ms") => Some(Duration::from_millis(number)),
        (Some(number), "s" | "") => Some(Duration::from_secs(number)),
        (Some(number), "m") => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    };
    let max_seconds = MAX_WAIT.as_secs();
    parsed.filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| {
        let rule = format!("must be a number with ms, s or m, at most {max_seconds}s");
        Problem::invalid("wait", text, rule, "use 30s, and repeat the request")
    })
}

/// Returns whether the query has a `notAfter`.
pub(crate) fn has_deadline(uri: &Uri) -> bool {
    let mut query = uri.query().unwrap_or_default().split('&');
    query.any(|pair| pair.starts_with("notAfter="))
}

/// Returns whether the query has a `wait`.
pub(crate) fn has_wait(uri: &Uri) -> bool {
    let mut query = uri.query().unwrap_or_default().split('&');
    query.any(|pair| decode(pair.split('=').next().unwrap_or_default()) == "wait")
}

/// Decodes a path segment.
pub(crate) fn decode(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// Parses the partition id of a path.
pub(crate) fn id_of(segment: &str) -> Result<PartitionId, Problem> {
    parse_name("id", decode(segment))
}

/// Parses the partition id of a new request from its path.
pub(crate) fn requested_id_of(segment: &str) -> Result<PartitionId, Problem> {
    let text = decode(segment);
    PartitionId::requested(&*text).map_err(|error| Problem::invalid("id", text, error.rule, "use a valid id"))
}

/// Parses a JSON body. The problem distinguishes invalid JSON from JSON of another shape.
pub(crate) fn json_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let (status, code) = if error.is_data() {
            (StatusCode::UNPROCESSABLE_ENTITY, "InvalidBody")
        } else {
            (StatusCode::BAD_REQUEST, "NotJson")
        };
        Problem::new(status, code, format!("invalid body: {error}"))
            .with_fix("see the operation in /openapi.json")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Params, Problem> {
        let query = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (name.to_owned(), value.to_owned())
        });
        Params::parse(query.collect(), &["wait", "nowait", "attempt"])
    }

    #[test]
    fn a_wait_is_a_number_with_a_unit_and_bounded() {
        let wait = |text: &str| parse(&format!("wait={text}")).ok().map(|params| params.wait);
        assert_eq!(wait("30s"), Some(Duration::from_secs(30)));
        assert_eq!(wait("30"), Some(Duration::from_secs(30)));
        assert_eq!(wait("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(wait("1m"), Some(Duration::from_secs(60)));
        for broken in [
            "",
            "s",
            "-1s",
            "+1s",
            "1h",
            "61s",
            "2m",
            "1.5s",
            "99999999999999999999s",
            "307445734561825861m",
        ] {
            assert_eq!(wait(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_page_has_at_most_2000_records() {
        assert_eq!(parse("").unwrap().limit, 2_000);
    }

    #[test]
    fn each_parameter_is_allowed_once() {
        assert!(parse("nowait").unwrap().nowait);
        assert!(!parse("nowait=false").unwrap().nowait);
        assert_eq!(parse("attempt=7").unwrap().attempt, Some(7));
        for broken in [
            "wiat=3s",
            "attempt=1&attempt=1",
            "nowait&wait=3s",
            "attempt=-1",
            "uid=x",
        ] {
            assert!(parse(broken).is_err(), "{broken}");
        }
    }
}
