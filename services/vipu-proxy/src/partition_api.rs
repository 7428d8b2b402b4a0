//! Conversion between API documents and ledger entries.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_allocator::process::ProcessHolder;
use ipu_allocator::{Allocator, Lease};
use ipu_core::allocator::{Entry, OnNoCapacity, Phase, QueueStatus, Request};
use ipu_core::hardware::PartitionSpec;
use ipu_core::render::IpuofEnv;
use ipu_core::{
    AccountName, AllocationId, ControllerName, IpuCount, JobKey, Owner, PartitionId, Reason, ReasonCode,
    Timestamp,
};
use ipu_proxy_client::{
    ControllerDocument, HoldState, OwnerDocument, PartitionDocument, PutPartition, WaitingDocument,
};
use ipu_vipu_client::ControllerEndpoint;

use crate::problem::Problem;

/// Maximum length of an owner kind in bytes.
const MAX_KIND_LEN: usize = 63;

pub(crate) fn owner_of(document: OwnerDocument) -> Result<Owner, Problem> {
    let is_printable = document.kind.chars().all(|c| c.is_ascii_graphic());
    if document.kind.is_empty() || document.kind.len() > MAX_KIND_LEN || !is_printable {
        return Err(Problem::invalid(
            "owner.kind",
            document.kind,
            format!("must be 1 to {MAX_KIND_LEN} printable characters without blanks"),
            "use a word such as IPUJob",
        ));
    }
    let job = JobKey {
        namespace: parse_name("owner.namespace", document.namespace)?,
        name: parse_name("owner.name", document.name)?,
        uid: parse_name("owner.uid", document.uid)?,
    };
    Ok(Owner {
        kind: document.kind,
        job,
    })
}

/// Parses a name, or returns the broken rule of `field`.
pub(crate) fn parse_name<T: std::str::FromStr<Err = ipu_core::NameError>>(
    field: &str,
    text: String,
) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: ipu_core::NameError| invalid_name(field, text, error.rule))
}

fn invalid_name(field: &str, text: String, rule: &str) -> Problem {
    Problem::invalid(field, text, rule, "use a valid name")
}

/// Creates a ledger request from a request body.
pub(crate) fn request_of(
    body: PutPartition,
    id: PartitionId,
    on_no_capacity: OnNoCapacity,
    now: Timestamp,
) -> Result<Request, Problem> {
    let owner = owner_of(body.owner)?;
    let size = size_of("size", body.size)?;
    let gcds = body.gcds.unwrap_or(1);
    let mut spec = PartitionSpec::of_size(size);
    spec.gcds = gcds;
    spec.replicas = body.replicas.unwrap_or(gcds);
    spec.reconfigurable = body.reconfigurable;
    spec.allocation = allocation_of(body.allocation)?;
    spec.check()
        .map_err(|error| Problem::invalid(error.field(), error.value(), error.to_string(), error.fix()))?;
    let mut request = Request::with_id(id, owner, spec);
    request.instance = body.instance;
    request.attempt = body.attempt;
    request.priority = body.priority;
    request.max_runtime = body.max_runtime_seconds.map(max_runtime_of).transpose()?;
    request.account = body
        .account
        .map(|text| parse_name("account", text).map(|account: AccountName| account.into()))
        .transpose()?;
    request.preemptible = body.preemptible;
    request.pin.controller = body
        .controller
        .map(|text| parse_name("controller", text))
        .transpose()?;
    request.on_no_capacity = on_no_capacity;
    if let Some(seconds) = body.lease_seconds {
        request.holder = Lease::of(lease_of("leaseSeconds", seconds)?, now).to_string();
    }
    Ok(request)
}

/// Parses the id of an allocation.
pub(crate) fn allocation_of(text: Option<String>) -> Result<Option<AllocationId>, Problem> {
    text.map(|text| {
        AllocationId::requested(&*text).map_err(|error| invalid_name("allocation", text, error.rule))
    })
    .transpose()
}

/// Parses a count of IPUs, or returns the broken rule of `field`.
pub(crate) fn size_of(field: &str, size: u32) -> Result<IpuCount, Problem> {
    IpuCount::try_from(size).map_err(|error| {
        let fix = match &error {
            ipu_core::IpuCountError::NotAPowerOfTwo { next, .. } => format!("use {next}"),
            _ => "use a power of two".to_owned(),
        };
        Problem::invalid(field, size, error.to_string(), fix)
    })
}

/// Maximum runtime in seconds: the ledger records milliseconds in 64 bits.
const MAX_RUNTIME_SECONDS: u64 = u64::MAX / 1000;

fn max_runtime_of(seconds: u64) -> Result<Duration, Problem> {
    if seconds > MAX_RUNTIME_SECONDS {
        let rule = format!("must be at most {MAX_RUNTIME_SECONDS}");
        return Err(Problem::invalid(
            "maxRuntimeSeconds",
            seconds,
            rule,
            "give a shorter runtime, or leave it out",
        ));
    }
    Ok(Duration::from_secs(seconds))
}

/// Parses the length of a lease in seconds, or returns the broken rule of `field`.
pub(crate) fn lease_of(field: &str, seconds: u32) -> Result<Duration, Problem> {
    let length = Duration::from_secs(u64::from(seconds));
    if seconds == 0 || length > Lease::MAX_DURATION {
        let rule = format!("must be from 1 to {}", Lease::MAX_DURATION.as_secs());
        return Err(Problem::invalid(
            field,
            seconds,
            rule,
            "use 300, and renew it every 100 seconds",
        ));
    }
    Ok(length)
}

/// Returns the document of a controller with its address.
pub(crate) fn controller_document(
    name: &ControllerName,
    endpoint: Option<&ControllerEndpoint>,
) -> ControllerDocument {
    let mut document = ControllerDocument::new(name.clone());
    document.host = endpoint.map(|endpoint| endpoint.host().to_owned());
    document.port = endpoint.map(ControllerEndpoint::port);
    document.node_label = endpoint
        .and_then(ControllerEndpoint::label)
        .map(ToString::to_string);
    document
}

/// Returns the document of `entry`, with its queue status if the caller has it.
pub(crate) fn document(
    entry: &Entry,
    status: Option<&QueueStatus>,
    allocator: &Allocator,
) -> PartitionDocument {
    let name = entry.controller.as_ref();
    let member = name.and_then(|name| allocator.pool().member(name));
    let endpoint = member.and_then(|member| member.endpoint);
    let mut document = PartitionDocument::from(entry);
    document.controller = name.map(|name| controller_document(name, endpoint.as_ref()));
    document.lease_until = entry.holder.parse().ok().map(|lease: Lease| lease.until());
    document.process_id = entry
        .holder
        .parse()
        .ok()
        .map(|holder: ProcessHolder| holder.pid());
    document.reason = match (status, &entry.phase) {
        (Some(status), _) => Some(status.reason.clone()),
        (None, Phase::Queued) => Some(queued_reason()),
        (None, _) => allocator.reason(entry),
    };
    document.waiting = status.map(WaitingDocument::from);
    if document.state == HoldState::Active {
        let recorded = || name.and_then(endpoint_of);
        match endpoint.or_else(recorded) {
            Some(endpoint) => document.env = environment(entry, &endpoint),
            None => {
                document.state = HoldState::Creating;
                document.reason = Some(unknown_controller(name));
            }
        }
    }
    document
}

/// Returns the address of a controller that is not on the list of this proxy, from its recorded name
/// `host:port`.
fn endpoint_of(name: &ControllerName) -> Option<ControllerEndpoint> {
    let endpoint: ControllerEndpoint = name.as_str().parse().ok()?;
    (endpoint.name() == name).then_some(endpoint)
}

/// Reason of a queued request without a queue status, as in an event.
fn queued_reason() -> Reason {
    Reason::new(
        ReasonCode::Queued,
        "the request is queued; GET /v1/waiting returns its position and the reason",
    )
}

/// Reason of an active partition without environment variables, because the address of its controller is
/// unknown.
fn unknown_controller(controller: Option<&ControllerName>) -> Reason {
    let name = controller.map_or("", ControllerName::as_str);
    let message =
        format!("controller {name:?} is not on the list of this proxy, and its name is not host:port");
    Reason::new(ReasonCode::UnknownController, message)
}

/// Environment variables with which a Poplar program finds the partition. With several GCDs, the launcher
/// sets the GCD id.
fn environment(entry: &Entry, endpoint: &ControllerEndpoint) -> BTreeMap<String, String> {
    let env = IpuofEnv::new(endpoint.host(), endpoint.port(), entry.id.clone(), 0);
    let vars = env.vars().into_iter();
    vars.filter(|(name, _)| entry.spec.gcds == 1 || *name != "IPUOF_VIPU_API_GCD_ID")
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
