//! Requests as method, path and body: pure.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::error::VipuError;
use crate::wire;

/// One request, without the address of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestRequest {
    pub(crate) method: Method,
    /// Path and query, percent-encoded.
    pub(crate) path: String,
    /// JSON.
    pub(crate) body: Option<Vec<u8>>,
}

/// Everything but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const PARTITIONS: &str = "/v1/partitions";

fn bare(method: Method, path: impl Into<String>) -> RestRequest {
    RestRequest {
        method,
        path: path.into(),
        body: None,
    }
}

fn with_body(path: impl Into<String>, message: &impl Serialize) -> Result<RestRequest, VipuError> {
    let body = serde_json::to_vec(message).map_err(|error| VipuError::Refused {
        detail: format!("the request has no JSON form: {error}"),
    })?;
    Ok(RestRequest {
        method: Method::POST,
        path: path.into(),
        body: Some(body),
    })
}

/// The path of one partition. The ids `.` and `..` are directions in a URL and would address something else.
fn partition(id: &str) -> Result<String, VipuError> {
    if matches!(id, "." | "..") {
        return Err(VipuError::Refused {
            detail: format!("partition id {id:?} cannot stand in a URL; use gRPC"),
        });
    }
    Ok(format!("{PARTITIONS}/{}", encoded(id)))
}

fn encoded(text: &str) -> impl core::fmt::Display {
    utf8_percent_encode(text, ENCODED)
}

fn with_query(path: String, pairs: &[(&str, &str)]) -> String {
    let mut path = path;
    for (index, (key, value)) in pairs.iter().enumerate() {
        path.push(if index == 0 { '?' } else { '&' });
        path.push_str(&format!("{key}={}", encoded(value)));
    }
    path
}

pub(crate) fn version() -> RestRequest {
    bare(Method::GET, "/v1/version")
}

pub(crate) fn list(message: &wire::ListPartitionsRequest) -> RestRequest {
    let id = message.allocation_id.as_str();
    let pairs: &[_] = if id.is_empty() {
        &[]
    } else {
        &[("allocationId", id)]
    };
    bare(Method::GET, with_query(PARTITIONS.into(), pairs))
}

pub(crate) fn create(message: &wire::CreatePartitionRequest) -> Result<RestRequest, VipuError> {
    // An id that no later call could name must not be made either.
    let id = message
        .requirements
        .as_ref()
        .map_or("", |wanted| wanted.id.as_str());
    partition(id)?;
    with_body(PARTITIONS, message)
}

pub(crate) fn status(message: &wire::GetPartitionStatusRequest) -> Result<RestRequest, VipuError> {
    let path = partition(&message.partition_id)?;
    Ok(bare(Method::GET, format!("{path}/status")))
}

pub(crate) fn ipuof_config(message: &wire::GetPartitionIpuofConfigRequest) -> Result<RestRequest, VipuError> {
    let path = format!("{}/ipuof-config", partition(&message.partition_id)?);
    let gcd = message.gcd_id.map(|gcd| gcd.id.to_string());
    let pairs: Vec<_> = gcd.iter().map(|gcd| ("gcdId", gcd.as_str())).collect();
    Ok(bare(Method::GET, with_query(path, &pairs)))
}

pub(crate) fn reset(message: &wire::ResetPartitionRequest) -> Result<RestRequest, VipuError> {
    with_body(format!("{}/reset", partition(&message.partition_id)?), message)
}

pub(crate) fn remove(message: &wire::RemovePartitionRequest) -> Result<RestRequest, VipuError> {
    let pairs: &[_] = if message.force { &[("force", "true")] } else { &[] };
    let path = partition(&message.partition_id)?;
    Ok(bare(Method::DELETE, with_query(path, pairs)))
}

/// A filter of several agents repeats the key, as the HTTP mapping of repeated proto3 fields does.
pub(crate) fn attributes(message: &wire::ListIpuAttributesRequest) -> RestRequest {
    let pairs: Vec<_> = message
        .agents
        .iter()
        .map(|agent| ("agents", agent.as_str()))
        .collect();
    bare(Method::GET, with_query("/v1/ipu-attributes".into(), &pairs))
}

#[cfg(test)]
mod tests {
    use ipu_core::{AgentId, AllocationId, IpuCount, IpuPlace, PartitionId, PartitionSpec};

    use super::*;
    use crate::controller::CreatePartition;
    use crate::request as ask;

    fn id(text: &str) -> PartitionId {
        PartitionId::new(text).unwrap()
    }

    #[track_caller]
    fn check(request: &RestRequest, expected: &str) {
        let body = request.body.clone().unwrap_or_default();
        let line = format!(
            "{} {} {}",
            request.method,
            request.path,
            String::from_utf8(body).unwrap()
        );
        assert_eq!(line.trim_end(), expected);
    }

    #[test]
    fn every_call_has_its_route() {
        let p1 = id("p-1_a.b");
        check(&version(), "GET /v1/version");
        check(&list(&ask::list(None)), "GET /v1/partitions");
        check(
            &status(&ask::status(&p1)).unwrap(),
            "GET /v1/partitions/p-1_a.b/status",
        );
        check(
            &ipuof_config(&ask::ipuof_config(&p1, None)).unwrap(),
            "GET /v1/partitions/p-1_a.b/ipuof-config",
        );
        check(
            &ipuof_config(&ask::ipuof_config(&p1, Some(0))).unwrap(),
            "GET /v1/partitions/p-1_a.b/ipuof-config?gcdId=0",
        );
        check(
            &reset(&ask::reset(&p1)).unwrap(),
            r#"POST /v1/partitions/p-1_a.b/reset {"partitionId":"p-1_a.b"}"#,
        );
        check(
            &remove(&ask::remove(&p1, false)).unwrap(),
            "DELETE /v1/partitions/p-1_a.b",
        );
        check(
            &remove(&ask::remove(&p1, true)).unwrap(),
            "DELETE /v1/partitions/p-1_a.b?force=true",
        );
        check(&attributes(&ask::attributes(&[])), "GET /v1/ipu-attributes");
    }

    #[test]
    fn a_partition_is_asked_for_in_canonical_json() {
        let request = CreatePartition {
            id: id("p1"),
            spec: PartitionSpec::of_size(IpuCount::try_from(2).unwrap()),
            ipus: vec![
                IpuPlace {
                    link_domain: 0,
                    ipu: 2,
                },
                IpuPlace {
                    link_domain: 0,
                    ipu: 3,
                },
            ],
        };
        check(
            &create(&ask::create(&request)).unwrap(),
            r#"POST /v1/partitions {"requirements":{"id":"p1","size":2,"numIpulinkSegments":1,"numGcds":1,"numReplicas":1,"ipus":[{"topologyId":2},{"topologyId":3,"routingId":1}]}}"#,
        );
    }

    #[test]
    fn names_cannot_break_out_of_their_place() {
        let odd = AllocationId::new("a/b?c&d=e#f%20+!").unwrap();
        check(
            &list(&ask::list(Some(&odd))),
            "GET /v1/partitions?allocationId=a%2Fb%3Fc%26d%3De%23f%2520%2B%21",
        );
        let agents = ["ag1", "a&b"].map(|agent| AgentId::new(agent).unwrap());
        check(
            &attributes(&ask::attributes(&agents)),
            "GET /v1/ipu-attributes?agents=ag1&agents=a%26b",
        );
    }

    #[test]
    fn ids_that_are_directions_in_a_url_are_refused() {
        for text in [".", ".."] {
            assert!(
                matches!(
                    remove(&ask::remove(&id(text), true)),
                    Err(VipuError::Refused { .. })
                ),
                "{text}"
            );
            assert!(
                matches!(status(&ask::status(&id(text))), Err(VipuError::Refused { .. })),
                "{text}"
            );
        }
        assert!(status(&ask::status(&id("..."))).is_ok());
    }
}
