//! The table of all API operations with their access rules. A path outside this table is not found.

use http::{Method, StatusCode};

use crate::problem::Problem;

/// Access rule of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Every client, such as a kubelet with its probes.
    Open,
    /// Every client, unless `reading` is `closed`.
    Read,
    /// Authenticated clients.
    Write,
}

/// Operation of the API.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// Path template with `{…}` for parameters.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// True if the response is an unbounded stream.
    pub(crate) is_stream: bool,
}

impl Operation {
    /// Returns whether the plain HTTP address serves it: the documented reads of any Pod, metrics and probes.
    pub(crate) fn is_plain(&self) -> bool {
        (self.access == Access::Open && !self.is_page())
            || matches!(self.path, "/stats" | "/query" | "/metrics")
    }

    /// Returns whether it is a file of the page: it has no data of the installation, so that links of other
    /// sites may lead to it. A page at the plain address would ask for a token there.
    pub(crate) fn is_page(&self) -> bool {
        self.path.starts_with("/ui")
    }

    /// Returns whether the time of the processor that it takes grows with the number of partitions.
    pub(crate) fn is_costly(&self) -> bool {
        self.access == Access::Read && !self.is_stream && !self.path.contains('{')
    }
}

const fn operation(method: &'static str, path: &'static str, access: Access) -> Operation {
    Operation {
        method,
        path,
        access,
        is_stream: false,
    }
}

const fn stream_operation(method: &'static str, path: &'static str, access: Access) -> Operation {
    Operation {
        is_stream: true,
        ..operation(method, path, access)
    }
}

/// All operations.
pub(crate) const OPERATIONS: &[Operation] = &[
    operation("GET", "/health", Access::Open),
    operation("GET", "/livez", Access::Open),
    operation("GET", "/readyz", Access::Open),
    operation("GET", "/metrics", Access::Read),
    operation("GET", "/openapi.json", Access::Open),
    operation("GET", "/ui", Access::Open),
    operation("GET", "/ui/", Access::Open),
    operation("GET", "/ui/{file}", Access::Open),
    operation("GET", "/stats", Access::Read),
    operation("POST", "/query", Access::Read),
    operation("GET", "/v1/partitions", Access::Read),
    operation("GET", "/v1/partitions/{id}", Access::Read),
    operation("GET", "/v1/partitions/{id}/ipuof-config", Access::Read),
    operation("PUT", "/v1/partitions/{id}", Access::Write),
    operation("DELETE", "/v1/partitions/{id}", Access::Write),
    operation("POST", "/v1/partitions/{id}/reset", Access::Write),
    operation("POST", "/v1/partitions/{id}/heartbeat", Access::Write),
    operation("GET", "/v1/allocations/{id}/partitions", Access::Read),
    operation("DELETE", "/v1/allocations/{id}/partitions", Access::Write),
    operation("GET", "/v1/cordons", Access::Read),
    operation("POST", "/v1/cordons", Access::Write),
    operation("DELETE", "/v1/cordons/{id}", Access::Write),
    operation("GET", "/v1/usage", Access::Read),
    operation("POST", "/v1/repair", Access::Write),
    operation("GET", "/v1/waiting", Access::Read),
    operation("GET", "/v1/controllers", Access::Read),
    operation("GET", "/v1/map", Access::Read),
    operation("POST", "/v1/plan", Access::Read),
    stream_operation("GET", "/v1/events", Access::Read),
];

/// Finds the operation of a request.
pub(crate) fn find(method: &Method, path: &str) -> Result<&'static Operation, Problem> {
    let same_path = || {
        OPERATIONS
            .iter()
            .filter(|operation| matches_template(operation.path, path))
    };
    if let Some(found) = same_path().find(|operation| operation.method == method.as_str()) {
        return Ok(found);
    }
    let methods: Vec<&str> = same_path().map(|operation| operation.method).collect();
    if methods.is_empty() {
        return Err(no_such_route());
    }
    let methods = methods.join(", ");
    Err(Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        format!("the route supports {methods} only"),
    )
    .with_allow(methods))
}

pub(crate) fn no_such_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "NoSuchRoute", "no such route").with_fix("see /openapi.json")
}

fn matches_template(template: &str, path: &str) -> bool {
    let (mut expected, mut actual) = (template.split('/'), path.split('/'));
    loop {
        match (expected.next(), actual.next()) {
            (None, None) => return true,
            (Some(expected), Some(actual)) if expected == actual => {}
            (Some(expected), Some(actual)) if expected.starts_with('{') && !actual.is_empty() => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_matches_its_template_alone() {
        assert!(matches_template("/v1/partitions/{id}", "/v1/partitions/p"));
        assert!(!matches_template("/v1/partitions/{id}", "/v1/partitions/"));
        assert!(!matches_template("/v1/partitions/{id}", "/v1/partitions/p/reset"));
        assert!(!matches_template("/v1/partitions", "/v1/partitions/"));
    }

    #[test]
    fn the_plain_address_serves_no_write_and_no_owner() {
        let plain = OPERATIONS.iter().filter(|operation| operation.is_plain());
        let plain: Vec<&str> = plain.map(|operation| operation.path).collect();
        let documented = [
            "/health",
            "/livez",
            "/readyz",
            "/metrics",
            "/openapi.json",
            "/stats",
            "/query",
        ];
        assert_eq!(plain, documented);
    }

    #[test]
    fn every_write_requires_authentication() {
        for operation in OPERATIONS {
            let reads = operation.method == "GET" || ["/query", "/v1/plan"].contains(&operation.path);
            assert_eq!(operation.access == Access::Write, !reads, "{operation:?}");
        }
    }
}
