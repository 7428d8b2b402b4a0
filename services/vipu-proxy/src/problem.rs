//! Error responses of the API: problem details (RFC 9457) with a stable code.

use std::fmt;

use http::StatusCode;
use ipu_allocator::{AllocatorError, StoreError};
use ipu_core::allocator::{QueueStatus, RequestError};
use ipu_core::{ErrorChain, Owner, Reason, ReasonCode};
use ipu_proxy_client::{OwnerDocument, ProblemDocument, WaitingDocument};
use ipu_vipu_client::VipuError;
use serde::Serialize;

/// `Retry-After` in seconds after an overload, or if a store or a controller is unavailable: the time of a
/// restart.
pub(crate) const RETRY_SOON_SECS: u32 = 1;
/// `Retry-After` in seconds if the queue or the ledger is full.
const RETRY_LATER_SECS: u32 = 30;

/// Problem of type `application/problem+json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Problem(Box<Details>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Details {
    document: ProblemDocument,
    #[serde(skip)]
    code: &'static str,
    /// Header `Retry-After`, in seconds.
    #[serde(skip)]
    retry_after: Option<u32>,
    /// Header `Allow`.
    #[serde(skip)]
    allow: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self(Box::new(Details {
            document: ProblemDocument::new(status.as_u16(), code, detail),
            code,
            retry_after: None,
            allow: None,
        }))
    }

    /// Creates the problem of a value that breaks a rule.
    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl fmt::Display,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (field, value, rule) = (field.into(), value.to_string(), rule.into());
        let detail = format!("{field} = {value:?}: {rule}");
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidValue", detail).with_fix(fix);
        problem.0.document.field = Some(field);
        problem.0.document.value = Some(value);
        problem.0.document.rule = Some(rule);
        problem
    }

    pub(crate) fn with_fix(mut self, fix: impl Into<String>) -> Self {
        self.0.document.fix = Some(fix.into());
        self
    }

    pub(crate) fn with_retry_after(mut self, seconds: u32) -> Self {
        self.0.retry_after = Some(seconds);
        self
    }

    fn with_owner(mut self, owner: Option<&Owner>) -> Self {
        self.0.document.owner = owner.map(OwnerDocument::from);
        self
    }

    fn with_value(mut self, field: &str, value: impl fmt::Display) -> Self {
        self.0.document.field = Some(field.to_owned());
        self.0.document.value = Some(value.to_string());
        self
    }

    fn with_rule(mut self, rule: impl Into<String>) -> Self {
        self.0.document.rule = Some(rule.into());
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.0.document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn code(&self) -> &'static str {
        self.0.code
    }

    /// Value of `Retry-After`, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u32> {
        self.0.retry_after
    }

    /// Methods of the route.
    pub(crate) fn allow(&self) -> Option<&str> {
        self.0.allow.as_deref()
    }

    /// Creates the problem of a request with `nowait` that does not fit now.
    pub(crate) fn does_not_fit(waiting: &QueueStatus) -> Self {
        let detail = waiting.reason.to_string();
        let fix = if waiting.reason.code.is_permanent() {
            "change the request: it cannot fit while hardware and quotas are as they are"
        } else {
            "send the request without nowait to join the queue"
        };
        let mut problem = Self::new(StatusCode::CONFLICT, "DoesNotFit", detail).with_fix(fix);
        problem.0.document.waiting = Some(WaitingDocument::from(waiting));
        problem
    }

    /// Creates the problem of a failed partition.
    pub(crate) fn failed(detail: String, errors: Vec<String>) -> Self {
        let mut problem = Self::new(StatusCode::CONFLICT, "PartitionFailed", detail)
            .with_fix("send the request with a newer attempt, which resets the partition, or delete it");
        problem.0.document.errors = errors;
        problem
    }

    /// Sets the queue status and the errors of the partition.
    pub(crate) fn with_state(mut self, waiting: Option<WaitingDocument>, errors: Vec<String>) -> Self {
        self.0.document.waiting = waiting;
        self.0.document.errors = errors;
        self
    }

    /// Sets the header `Allow`.
    pub(crate) fn with_allow(mut self, methods: String) -> Self {
        self.0.allow = Some(methods);
        self
    }
}

impl From<RequestError> for Problem {
    fn from(illegal: RequestError) -> Self {
        let conflict = |code| Self::new(StatusCode::CONFLICT, code, illegal.to_string());
        match &illegal {
            RequestError::NotTheOwner { owner, .. } => conflict("NotTheOwner")
                .with_owner(owner.as_deref())
                .with_fix("use another id, or wait until the owner has deleted the partition"),
            RequestError::Foreign { found, .. } => conflict("Foreign")
                .with_value("size", found)
                .with_fix("use another id, or remove that partition at the controller"),
            RequestError::OtherSpec { recorded, .. } => conflict("OtherProperties")
                .with_value("size", recorded.size)
                .with_fix("delete the partition first, or request the recorded properties"),
            RequestError::StaleAttempt { recorded, .. } => conflict("OldAttempt")
                .with_value("attempt", recorded)
                .with_fix("use the recorded attempt or a newer one"),
            RequestError::QueueFull { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "QueueFull", illegal.to_string())
                    .with_retry_after(RETRY_LATER_SECS)
            }
            RequestError::NamespaceQueueFull { .. } => conflict("NamespaceQueueFull")
                .with_retry_after(RETRY_LATER_SECS)
                .with_fix(
                    "wait until some of them have started, or delete some; an administrator can raise max-queued-per-namespace",
                ),
            RequestError::PriorityTooHigh { asked, highest, namespace } => {
                Self::new(StatusCode::FORBIDDEN, "PriorityTooHigh", illegal.to_string())
                    .with_value("priority", asked)
                    .with_rule(format!("at most {highest} for owners of namespace {namespace}"))
                    .with_fix(format!(
                        "use {highest} or less; an administrator can raise it in priorities"
                    ))
            }
            RequestError::AccountNotAllowed { account, namespace } => {
                Self::new(StatusCode::FORBIDDEN, "AccountNotAllowed", illegal.to_string())
                    .with_value("account", account)
                    .with_rule("only the namespaces of its quota may charge it")
                    .with_fix(format!(
                        "charge another account; an administrator can add {namespace} to the quota of the account"
                    ))
            }
            RequestError::NotDerived { id, .. } => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "NotDerived", illegal.to_string())
                    .with_value("id", id)
                    .with_rule("p-NAME-INSTANCE-DIGITS is reserved for the job and instance that it is derived from")
                    .with_fix("use an id of another form")
            }
            RequestError::OtherCordon { .. } => conflict("OtherCordon")
                .with_fix("use another id; only its owner changes or removes a cordon"),
            RequestError::CannotCordon { .. } => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "CannotCordon",
                illegal.to_string(),
            )
            .with_fix("name hardware that the controller has; GET /v1/controllers lists the controllers"),
            RequestError::TooLate { .. } => conflict("TooLate")
                .with_fix("send the request again with a later notAfter; if that is refused, too, compare the clocks of client and proxy"),
            RequestError::NoLease { .. } => {
                conflict("NoLease").with_fix("request the partition with leaseSeconds first")
            }
            RequestError::Moved { state: "gone", .. } => {
                Self::new(StatusCode::NOT_FOUND, "NotFound", illegal.to_string())
            }
            RequestError::Moved { state, .. } => conflict("Moved").with_value("state", state),
            _ => conflict("Illegal"),
        }
    }
}

impl From<AllocatorError> for Problem {
    fn from(error: AllocatorError) -> Self {
        let detail = ErrorChain(&error).to_string();
        let unavailable = |code| {
            let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail.clone());
            problem.with_retry_after(RETRY_SOON_SECS)
        };
        match error {
            AllocatorError::Refused(illegal) => illegal.into(),
            AllocatorError::Store(store) => store_problem(&store, detail),
            AllocatorError::Standby => unavailable("Standby"),
            AllocatorError::Starting => unavailable("Starting"),
            AllocatorError::Ended => unavailable("Stopping"),
            AllocatorError::ControllerRefused { .. } => {
                let mut status = QueueStatus::next_in_queue(1);
                status.reason = Reason::new(ReasonCode::ControllerRefused, detail);
                Self::does_not_fit(&status)
            }
            AllocatorError::UnknownController { .. } => {
                Self::new(StatusCode::CONFLICT, "UnknownController", detail)
                    .with_fix("add the controller to the list again")
            }
            AllocatorError::NotActive { .. } => Self::new(StatusCode::CONFLICT, "NotActive", detail),
            AllocatorError::ControllerCall { source, .. } => match *source {
                VipuError::Refused { .. } => {
                    Self::new(StatusCode::UNPROCESSABLE_ENTITY, "ControllerRefused", detail)
                        .with_fix("use a controller that supports the operation")
                }
                _ => unavailable("ControllerUnavailable"),
            },
            AllocatorError::Machines(error) => unavailable("ControllerUnavailable").with_fix(error.fix()),
            AllocatorError::OtherMachines { .. } => {
                let mut problem = Self::new(StatusCode::CONFLICT, "OtherProperties", detail)
                    .with_fix("delete the partition first, or request the recorded machines");
                problem.0.document.field = Some("machines".to_owned());
                problem
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "AllocatorError", detail),
        }
    }
}

fn store_problem(error: &StoreError, detail: String) -> Problem {
    let unavailable = |code| Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail.clone());
    match error {
        StoreError::Full { .. } => unavailable("LedgerFull").with_retry_after(RETRY_LATER_SECS),
        StoreError::Conflict { .. } => unavailable("LedgerBusy").with_retry_after(RETRY_SOON_SECS),
        StoreError::Unavailable { .. } => unavailable("LedgerUnavailable").with_retry_after(RETRY_SOON_SECS),
        _ => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "LedgerUnusable", detail)
            .with_fix("see the log of the proxy; nothing was written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_field_value_rule_and_fix() {
        let problem = Problem::invalid("size", 3, "must be a power of two", "use 2 or 4");
        let document = serde_json::to_value(&problem).unwrap();
        assert_eq!(
            document,
            serde_json::json!({
                "type": "urn:ipu-sdk:problem:InvalidValue", "title": "Invalid value", "status": 422,
                "detail": "size = \"3\": must be a power of two", "code": "InvalidValue",
                "field": "size", "value": "3", "rule": "must be a power of two", "fix": "use 2 or 4",
            })
        );
    }
}
