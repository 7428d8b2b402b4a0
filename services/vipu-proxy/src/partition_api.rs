//! Partitions as the API takes and shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{
    AccountName, AllocationId, ControllerName, Entry, EntryState, IpuCount, IpuofEnv, JobKey, OnNoCapacity,
    Owner, PartitionId, PartitionSpec, QueueStatus, Reason, Request, Timestamp,
};
use ipu_ledger::Lease;
use ipu_proxy_client::{
    ControllerDocument, HoldState, OwnerDocument, PartitionDocument, PutPartition, WaitingDocument,
};
use ipu_vipu_client::ControllerEndpoint;

use crate::app::ProxyLedger;
use crate::problem::Problem;

/// The longest kind of an owner.
const KIND_MAX: usize = 63;

pub(crate) fn owner_of(document: OwnerDocument) -> Result<Owner, Problem> {
    let plain = document.kind.chars().all(|c| c.is_ascii_graphic());
    if document.kind.is_empty() || document.kind.len() > KIND_MAX || !plain {
        return Err(Problem::invalid(
            "owner.kind",
            document.kind,
            format!("must be 1 to {KIND_MAX} printable characters without blanks"),
            "use a word such as IPUJob",
        ));
    }
    let job = JobKey {
        namespace: named("owner.namespace", document.namespace)?,
        name: named("owner.name", document.name)?,
        uid: named("owner.uid", document.uid)?,
    };
    Ok(Owner {
        kind: document.kind,
        job,
    })
}

/// Parses a name of any kind.
pub(crate) fn named<T: std::str::FromStr<Err = ipu_core::NameError>>(
    field: &str,
    text: String,
) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: ipu_core::NameError| not_named(field, text, error.rule))
}

fn not_named(field: &str, text: String, rule: &str) -> Problem {
    Problem::invalid(field, text, rule, "give another one")
}

/// The request that a body makes.
pub(crate) fn request_of(
    body: PutPartition,
    id: PartitionId,
    line: OnNoCapacity,
    now: Timestamp,
) -> Result<Request, Problem> {
    let owner = owner_of(body.owner)?;
    let size = size_of("size", body.size)?;
    let gcds = body.gcds.unwrap_or(1);
    let mut spec = PartitionSpec::of_size(size);
    spec.gcds = gcds;
    spec.replicas = body.replicas.unwrap_or(gcds);
    spec.reconfigurable = body.reconfigurable;
    spec.allocation = body
        .allocation
        .map(|text| {
            AllocationId::requested(&*text).map_err(|error| not_named("allocation", text, error.rule))
        })
        .transpose()?;
    spec.check()
        .map_err(|error| Problem::invalid(error.field(), error.value(), error.to_string(), error.fix()))?;
    let mut request = Request::named(id, owner, spec);
    request.instance = body.instance;
    request.attempt = body.attempt;
    request.priority = body.priority;
    request.max_runtime = body.max_runtime_seconds.map(max_runtime_of).transpose()?;
    request.account = body
        .account
        .map(|text| named("account", text).map(|account: AccountName| account.into()))
        .transpose()?;
    request.preemptible = body.preemptible;
    request.pin.controller = body
        .controller
        .map(|text| named("controller", text))
        .transpose()?;
    request.line = line;
    if let Some(seconds) = body.lease_seconds {
        request.holder = Lease::of(lease_of("leaseSeconds", seconds)?, now).to_string();
    }
    Ok(request)
}

/// A count of IPUs, or the rule that it breaks.
pub(crate) fn size_of(field: &str, size: u32) -> Result<IpuCount, Problem> {
    IpuCount::try_from(size).map_err(|error| {
        let fix = match &error {
            ipu_core::IpuCountError::NotAPowerOfTwo { next, .. } => format!("use {next}"),
            _ => "use a power of two".to_owned(),
        };
        Problem::invalid(field, size, error.to_string(), fix)
    })
}

/// The longest runtime in seconds: the ledger records milliseconds in 64 bits.
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

/// The length of a lease, or the rule that it breaks.
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

/// Where a controller is.
pub(crate) fn controller(name: &ControllerName, endpoint: Option<&ControllerEndpoint>) -> ControllerDocument {
    let mut document = ControllerDocument::new(name.clone());
    document.host = endpoint.map(|endpoint| endpoint.host().to_owned());
    document.port = endpoint.map(ControllerEndpoint::port);
    document.node_label = endpoint
        .and_then(ControllerEndpoint::label)
        .map(ToString::to_string);
    document
}

/// `entry` as the API shows it, with its queue status if the caller asked the ledger for that.
pub(crate) fn document(
    entry: &Entry,
    waiting: Option<QueueStatus>,
    ledger: &ProxyLedger,
) -> PartitionDocument {
    let endpoint = entry
        .controller
        .as_ref()
        .and_then(|name| ledger.pool().member(name))
        .and_then(|member| member.endpoint);
    let mut document = PartitionDocument::from(entry);
    document.controller = entry
        .controller
        .as_ref()
        .map(|name| controller(name, endpoint.as_ref()));
    document.lease_until = entry.holder.parse().ok().map(|lease: Lease| lease.until());
    document.ipus = ledger.known_places(entry);
    document.reason = match (&waiting, &entry.state) {
        (Some(waiting), _) => Some(waiting.reason.clone()),
        (None, EntryState::Waiting { .. }) => Some(queued()),
        (None, _) => ledger.reason(entry),
    };
    document.waiting = waiting.as_ref().map(WaitingDocument::from);
    if document.state == HoldState::Active {
        let recorded = || entry.controller.as_ref().and_then(endpoint_of);
        match endpoint.or_else(recorded) {
            Some(endpoint) => document.env = environment(entry, &endpoint),
            None => {
                document.state = HoldState::Intent;
                document.reason = Some(unreachable_by_name(entry.controller.as_ref()));
            }
        }
    }
    document
}

/// Where the controller `name` is, from the `host:port` that the ledger recorded, for one that is not on this proxy's list.
fn endpoint_of(name: &ControllerName) -> Option<ControllerEndpoint> {
    let endpoint: ControllerEndpoint = name.as_str().parse().ok()?;
    (endpoint.name() == name).then_some(endpoint)
}

/// The reason of a queued request whose queue status is not known, as in an event.
fn queued() -> Reason {
    Reason::new(
        "Queued",
        "it is in the queue; GET /v1/waiting returns its position and why it waits",
    )
}

/// The reason of an active partition that no variables lead to.
fn unreachable_by_name(controller: Option<&ControllerName>) -> Reason {
    let name = controller.map_or("", ControllerName::as_str);
    let message =
        format!("controller {name:?} is not on the list of this proxy, and its name is no host:port");
    Reason::new("UnknownController", message)
}

/// What leads a Poplar program to the partition. Which GCD is whose is up to who starts the workers, if there are several.
fn environment(entry: &Entry, endpoint: &ControllerEndpoint) -> BTreeMap<String, String> {
    let env = IpuofEnv::new(endpoint.host(), endpoint.port(), entry.id.clone(), 0);
    let vars = env.vars().into_iter();
    vars.filter(|(name, _)| entry.spec.gcds == 1 || *name != "IPUOF_VIPU_API_GCD_ID")
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
