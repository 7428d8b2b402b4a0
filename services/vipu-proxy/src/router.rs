//! Every operation of the API, and who may ask it: what is not in this table does not exist.

use http::{Method, StatusCode};

use crate::problem::Problem;

/// Who may ask an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody: what a kubelet asks.
    Open,
    /// Everybody, unless reading is closed.
    Read,
    /// Whoever proves to be somebody.
    Write,
}

/// One operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) method: &'static str,
    /// The path, with `{…}` for a part that may be anything.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    /// Whether the answer has no end of its own.
    pub(crate) endless: bool,
}

impl Operation {
    /// Whether it is answered without TLS where the proxy speaks TLS too: the documented reads of any Pod, metrics and probes.
    pub(crate) fn is_plain(&self) -> bool {
        self.access == Access::Open || matches!(self.path, "/stats" | "/query" | "/metrics")
    }
}

const fn operation(method: &'static str, path: &'static str, access: Access) -> Operation {
    Operation {
        method,
        path,
        access,
        endless: false,
    }
}

const fn endless(method: &'static str, path: &'static str, access: Access) -> Operation {
    Operation {
        endless: true,
        ..operation(method, path, access)
    }
}

/// All of them.
pub(crate) const OPERATIONS: &[Operation] = &[
    operation("GET", "/health", Access::Open),
    operation("GET", "/livez", Access::Open),
    operation("GET", "/readyz", Access::Open),
    operation("GET", "/metrics", Access::Read),
    operation("GET", "/openapi.json", Access::Open),
    operation("GET", "/stats", Access::Read),
    operation("POST", "/query", Access::Read),
    operation("GET", "/v1/partitions", Access::Read),
    operation("GET", "/v1/partitions/{id}", Access::Read),
    operation("PUT", "/v1/partitions/{id}", Access::Write),
    operation("DELETE", "/v1/partitions/{id}", Access::Write),
    operation("POST", "/v1/partitions/{id}/reset", Access::Write),
    operation("POST", "/v1/partitions/{id}/heartbeat", Access::Write),
    operation("GET", "/v1/exclusions", Access::Read),
    operation("POST", "/v1/exclusions", Access::Write),
    operation("DELETE", "/v1/exclusions/{id}", Access::Write),
    operation("GET", "/v1/usage", Access::Read),
    operation("POST", "/v1/repair", Access::Write),
    operation("GET", "/v1/waiting", Access::Read),
    operation("GET", "/v1/controllers", Access::Read),
    operation("POST", "/v1/plan", Access::Read),
    endless("GET", "/v1/events", Access::Read),
];

/// Every operation: its method, its path with `{…}` for a part that may be anything, and whether it is asked who asks.
pub fn operations() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let described = |operation: &Operation| {
        (
            operation.method,
            operation.path,
            operation.access == Access::Write,
        )
    };
    OPERATIONS.iter().map(described)
}

/// The operation that a request asks for.
pub(crate) fn find(method: &Method, path: &str) -> Result<&'static Operation, Problem> {
    let of_path = || OPERATIONS.iter().filter(|operation| is_of(operation.path, path));
    if let Some(found) = of_path().find(|operation| operation.method == method.as_str()) {
        return Ok(found);
    }
    let methods: Vec<&str> = of_path().map(|operation| operation.method).collect();
    if methods.is_empty() {
        return Err(
            Problem::new(StatusCode::NOT_FOUND, "NoSuchRoute", "there is no such route")
                .with_fix("see /openapi.json"),
        );
    }
    let methods = methods.join(", ");
    Err(Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "MethodNotAllowed",
        format!("the route has {methods} only"),
    )
    .with_allow(methods))
}

fn is_of(template: &str, path: &str) -> bool {
    let (mut wanted, mut found) = (template.split('/'), path.split('/'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == found => {}
            (Some(wanted), Some(found)) if wanted.starts_with('{') && !found.is_empty() => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_belongs_to_its_template_alone() {
        assert!(is_of("/v1/partitions/{id}", "/v1/partitions/p"));
        assert!(!is_of("/v1/partitions/{id}", "/v1/partitions/"));
        assert!(!is_of("/v1/partitions/{id}", "/v1/partitions/p/reset"));
        assert!(!is_of("/v1/partitions", "/v1/partitions/"));
    }

    #[test]
    fn nothing_that_changes_something_or_names_an_owner_is_answered_without_tls() {
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
    fn what_changes_something_is_never_open() {
        for operation in OPERATIONS {
            let reads = operation.method == "GET" || ["/query", "/v1/plan"].contains(&operation.path);
            assert_eq!(operation.access == Access::Write, !reads, "{operation:?}");
        }
    }
}
