//! What stands in paths, queries and bodies, parsed strictly: what is not known is an error.

use std::time::Duration;

use http::{StatusCode, Uri};
use ipu_core::{PartitionId, Timestamp};
use ipu_ledger::{InvalidUsagePosition, UsagePosition};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;

use crate::partition_api::named;
use crate::problem::Problem;

/// The longest that a request may wait: clients and what lies between give up on an answer after a minute or so.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);

/// Most records of a page: half a megabyte or so.
pub(crate) const MAX_PAGE: usize = 2_000;

/// Query parameters, in their order.
pub(crate) type Query = Vec<(String, String)>;

/// What a request may say in its query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// How long to wait for the end of what is asked for.
    pub(crate) wait: Duration,
    /// Do not join the line.
    pub(crate) nowait: bool,
    /// The newest attempt that is meant.
    pub(crate) attempt: Option<u32>,
    /// The uid that the owner has to have.
    pub(crate) uid: Option<String>,
    /// Give back what is in quarantine.
    pub(crate) quarantined: bool,
    /// When the client gives up, in milliseconds since 1970: a request that is read later is refused.
    pub(crate) not_after: Option<Timestamp>,
    /// From when on, in milliseconds since 1970.
    pub(crate) since: u64,
    /// Most records of a page.
    pub(crate) limit: Option<usize>,
    /// The last record of the page before.
    pub(crate) after: Option<UsagePosition>,
}

impl Params {
    /// Parses a query in which these parameters may occur, each once.
    pub(crate) fn parse(query: Query, known: &[&str]) -> Result<Self, Problem> {
        let mut params = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in query {
            if !known.contains(&name.as_str()) {
                let rule = if known.is_empty() {
                    "no parameters are known here".to_owned()
                } else {
                    format!("known parameters are {}", known.join(", "))
                };
                return Err(Problem::invalid("query", name, rule, "leave it out"));
            }
            if seen.contains(&name) {
                return Err(Problem::invalid(
                    name,
                    value,
                    "may be given once",
                    "leave one out",
                ));
            }
            match name.as_str() {
                "wait" => params.wait = duration(&value)?,
                "nowait" => params.nowait = flag("nowait", &value)?,
                "quarantined" => params.quarantined = flag("quarantined", &value)?,
                "since" => params.since = number("since", &value)?,
                "notAfter" => params.not_after = Some(Timestamp::from_millis(number("notAfter", &value)?)),
                "limit" => params.limit = Some(limit(&value)?),
                "continue" => params.after = Some(position(&value)?),
                "attempt" => params.attempt = Some(number("attempt", &value)?),
                _ => params.uid = Some(value),
            }
            seen.push(name);
        }
        if params.nowait && !params.wait.is_zero() {
            let rule = "and wait exclude each other";
            return Err(Problem::invalid("nowait", "true", rule, "leave one out"));
        }
        Ok(params)
    }
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, Problem> {
    let rule = "must be a whole number that is not too large";
    value
        .parse()
        .map_err(|_| Problem::invalid(name, value, rule, "give a number such as 0"))
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
        let fix = "send `continue` of the answer before as it is, or leave it out to start at the first page";
        Problem::invalid("continue", value, error.to_string(), fix)
    })
}

/// A flag is there, or says whether it is.
fn flag(name: &str, value: &str) -> Result<bool, Problem> {
    match value {
        "" | "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Problem::invalid(
            name,
            value,
            "must be true or false",
            "leave the value out",
        )),
    }
}

/// `30s`, `1500ms`, `1m`, or seconds without a unit.
fn duration(text: &str) -> Result<Duration, Problem> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: Option<u64> = digits.parse().ok().filter(|_| !digits.starts_with('+'));
    let parsed = match (number, &text[digits.len()..]) {
        (Some(number), "ms") => Some(Duration::from_millis(number)),
        (Some(number), "s" | "") => Some(Duration::from_secs(number)),
        (Some(number), "m") => number.checked_mul(60).map(Duration::from_secs),
        _ => None,
    };
    let longest = MAX_WAIT.as_secs();
    parsed.filter(|wait| *wait <= MAX_WAIT).ok_or_else(|| {
        let rule = format!("must be a number with ms, s or m, at most {longest}s");
        Problem::invalid("wait", text, rule, "use 30s, and ask again")
    })
}

/// Whether the query of a request has a `notAfter`.
pub(crate) fn expires(uri: &Uri) -> bool {
    let mut query = uri.query().unwrap_or_default().split('&');
    query.any(|pair| pair.starts_with("notAfter="))
}

/// Whether the query of a request has a `wait`.
pub(crate) fn waits(uri: &Uri) -> bool {
    let mut query = uri.query().unwrap_or_default().split('&');
    query.any(|pair| decoded(pair.split('=').next().unwrap_or_default()) == "wait")
}

/// A part of a path as it was meant.
pub(crate) fn decoded(segment: &str) -> String {
    percent_decode_str(segment).decode_utf8_lossy().into_owned()
}

/// The partition that a path names.
pub(crate) fn id_of(segment: &str) -> Result<PartitionId, Problem> {
    named("id", decoded(segment))
}

/// The partition that a path names for a new request.
pub(crate) fn requested_id_of(segment: &str) -> Result<PartitionId, Problem> {
    let text = decoded(segment);
    PartitionId::requested(&*text)
        .map_err(|error| Problem::invalid("id", text, error.rule, "give another one"))
}

/// A JSON body. What is no JSON is told from JSON of another shape.
pub(crate) fn json_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let (status, code) = if error.is_data() {
            (StatusCode::UNPROCESSABLE_ENTITY, "InvalidBody")
        } else {
            (StatusCode::BAD_REQUEST, "NotJson")
        };
        Problem::new(status, code, format!("the body is not understood: {error}"))
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
    fn parameters_are_known_and_given_once() {
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
