//! Encodes requests as method, path and body: pure.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use super::JsonRequest;
use crate::error::VipuError;
use crate::wire;

/// Everything but the unreserved characters of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

const PARTITIONS: &str = "/v1/partitions";

fn without_body(method: Method, path: impl Into<String>) -> JsonRequest {
    JsonRequest {
        method,
        path: path.into(),
        body: None,
    }
}

fn with_body(path: impl Into<String>, message: &impl Serialize) -> Result<JsonRequest, VipuError> {
    let body = serde_json::to_vec(message).map_err(|error| VipuError::Refused {
        detail: format!("the request has no JSON form: {error}"),
    })?;
    Ok(JsonRequest {
        method: Method::POST,
        path: path.into(),
        body: Some(body),
    })
}

/// Returns the path of one partition. The ids `.` and `..` are relative path segments and would address
/// another resource.
fn partition(id: &str) -> Result<String, VipuError> {
    if matches!(id, "." | "..") {
        return Err(VipuError::Refused {
            detail: format!("partition id {id:?} is not allowed in a URL; use gRPC"),
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

pub(crate) fn version() -> JsonRequest {
    without_body(Method::GET, "/v1/version")
}

pub(crate) fn list(message: &wire::ListPartitionsRequest) -> JsonRequest {
    let id = message.allocation_id.as_str();
    let pairs: &[_] = if id.is_empty() {
        &[]
    } else {
        &[("allocationId", id)]
    };
    without_body(Method::GET, with_query(PARTITIONS.into(), pairs))
}

pub(crate) fn create(message: &wire::CreatePartitionRequest) -> Result<JsonRequest, VipuError> {
    // An id that no later call could address must not be created.
    let id = message
        .requirements
        .as_ref()
        .map_or("", |requirements| requirements.id.as_str());
    partition(id)?;
    with_body(PARTITIONS, message)
}

pub(crate) fn status(message: &wire::GetPartitionStatusRequest) -> Result<JsonRequest, VipuError> {
    let path = partition(&message.partition_id)?;
    Ok(without_body(Method::GET, format!("{path}/status")))
}

pub(crate) fn ipuof_config(message: &wire::GetPartitionIpuofConfigRequest) -> Result<JsonRequest, VipuError> {
    let path = format!("{}/ipuof-config", partition(&message.partition_id)?);
    let gcd = message.gcd_id.map(|gcd| gcd.id.to_string());
    let pairs: Vec<_> = gcd.iter().map(|gcd| ("gcdId", gcd.as_str())).collect();
    Ok(without_body(Method::GET, with_query(path, &pairs)))
}

pub(crate) fn reset(message: &wire::ResetPartitionRequest) -> Result<JsonRequest, VipuError> {
    with_body(format!("{}/reset", partition(&message.partition_id)?), message)
}

pub(crate) fn remove(message: &wire::RemovePartitionRequest) -> Result<JsonRequest, VipuError> {
    let pairs: &[_] = if message.force { &[("force", "true")] } else { &[] };
    let path = partition(&message.partition_id)?;
    Ok(without_body(Method::DELETE, with_query(path, pairs)))
}

/// Encodes a filter. Several agents repeat the key, as the HTTP mapping of repeated proto3 fields does.
pub(crate) fn attributes(message: &wire::ListIpuAttributesRequest) -> JsonRequest {
    let pairs: Vec<_> = message
        .agents
        .iter()
        .map(|agent| ("agents", agent.as_str()))
        .collect();
    without_body(Method::GET, with_query("/v1/ipu-attributes".into(), &pairs))
}

#[cfg(test)]
mod tests {
    use ipu_core::hardware::{IpuPlace, PartitionSpec};
    use ipu_core::{AgentId, AllocationId, IpuCount, PartitionId};

    use super::*;
    use crate::controller::CreatePartition;
    use crate::request as message;

    fn id(text: &str) -> PartitionId {
        PartitionId::new(text).unwrap()
    }

    #[track_caller]
    fn check(request: &JsonRequest, expected: &str) {
        let body = request.body.clone().unwrap_or_default();
        let text = format!(
            "{} {} {}",
            request.method,
            request.path,
            String::from_utf8(body).unwrap()
        );
        assert_eq!(text.trim_end(), expected);
    }

    #[test]
    fn every_call_maps_to_its_route() {
        let p1 = id("p-1_a.b");
        check(&version(), "GET /v1/version");
        check(&list(&message::list(None)), "GET /v1/partitions");
        check(
            &status(&message::status(&p1)).unwrap(),
            "GET /v1/partitions/p-1_a.b/status",
        );
        check(
            &ipuof_config(&message::ipuof_config(&p1, None)).unwrap(),
            "GET /v1/partitions/p-1_a.b/ipuof-config",
        );
        check(
            &ipuof_config(&message::ipuof_config(&p1, Some(0))).unwrap(),
            "GET /v1/partitions/p-1_a.b/ipuof-config?gcdId=0",
        );
        check(
            &reset(&message::reset(&p1)).unwrap(),
            r#"POST /v1/partitions/p-1_a.b/reset {"partitionId":"p-1_a.b"}"#,
        );
        check(
            &remove(&message::remove(&p1, false)).unwrap(),
            "DELETE /v1/partitions/p-1_a.b",
        );
        check(
            &remove(&message::remove(&p1, true)).unwrap(),
            "DELETE /v1/partitions/p-1_a.b?force=true",
        );
        check(&attributes(&message::attributes(&[])), "GET /v1/ipu-attributes");
    }

    #[test]
    fn a_creation_is_encoded_as_canonical_json() {
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
            &create(&message::create(&request)).unwrap(),
            r#"POST /v1/partitions {"requirements":{"id":"p1","size":2,"numIpulinkSegments":1,"numGcds":1,"numReplicas":1,"ipus":[{"topologyId":2},{"topologyId":3,"routingId":1}]}}"#,
        );
    }

    #[test]
    fn names_are_percent_encoded() {
        let odd = AllocationId::new("a/b?c&d=e#f%20+!").unwrap();
        check(
            &list(&message::list(Some(&odd))),
            "GET /v1/partitions?allocationId=a%2Fb%3Fc%26d%3De%23f%2520%2B%21",
        );
        let agents = ["ag1", "a&b"].map(|agent| AgentId::new(agent).unwrap());
        check(
            &attributes(&message::attributes(&agents)),
            "GET /v1/ipu-attributes?agents=ag1&agents=a%26b",
        );
    }

    #[test]
    fn ids_that_are_relative_path_segments_are_refused() {
        for text in [".", ".."] {
            assert!(
                matches!(
                    remove(&message::remove(&id(text), true)),
                    Err(VipuError::Refused { .. })
                ),
                "{text}"
            );
            assert!(
                matches!(
                    status(&message::status(&id(text))),
                    Err(VipuError::Refused { .. })
                ),
                "{text}"
            );
        }
        assert!(status(&message::status(&id("..."))).is_ok());
    }
}
