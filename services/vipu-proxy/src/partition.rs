//! Partitions as the API takes and shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{
    ControllerName, Entry, IpuCount, IpuofEnv, JobKey, LinePolicy, Owner, PartitionId, PartitionSpec,
    Request, Timestamp, Waiting,
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
        .map_err(|error: ipu_core::NameError| Problem::invalid(field, text, error.rule, "give another one"))
}

/// The longest account.
const ACCOUNT_MAX: usize = 253;

/// The request that a body makes.
pub(crate) fn request_of(
    body: PutPartition,
    id: PartitionId,
    line: LinePolicy,
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
        .map(|text| named("allocation", text))
        .transpose()?;
    spec.check()
        .map_err(|error| Problem::invalid(error.field(), error.value(), error.to_string(), error.fix()))?;
    let mut request = Request::named(id, owner, spec);
    request.instance = body.instance;
    request.attempt = body.attempt;
    request.priority = body.priority;
    request.max_runtime = body.max_runtime_seconds.map(Duration::from_secs);
    request.account = body.account.map(account_of).transpose()?;
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

fn account_of(text: String) -> Result<String, Problem> {
    let plain = text.chars().all(|c| !c.is_control());
    if text.is_empty() || text.len() > ACCOUNT_MAX || !plain {
        let rule = format!("must be 1 to {ACCOUNT_MAX} bytes without control characters");
        return Err(Problem::invalid(
            "account",
            text,
            rule,
            "leave it out, or name one",
        ));
    }
    Ok(text)
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

/// The length of a lease, or the rule that it breaks.
pub(crate) fn lease_of(field: &str, seconds: u32) -> Result<Duration, Problem> {
    let length = Duration::from_secs(u64::from(seconds));
    if seconds == 0 || length > Lease::LONGEST {
        let rule = format!("must be from 1 to {}", Lease::LONGEST.as_secs());
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

/// `entry` as the API shows it, with what it waits for if somebody has asked the line.
pub(crate) fn document(entry: &Entry, waiting: Option<Waiting>, ledger: &ProxyLedger) -> PartitionDocument {
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
    document.reason = match &waiting {
        Some(waiting) => Some(waiting.reason.clone()),
        None => ledger.reason(entry),
    };
    document.waiting = waiting.as_ref().map(WaitingDocument::from);
    if let (HoldState::Active, Some(endpoint)) = (document.state, endpoint) {
        document.env = environment(entry, &endpoint);
    }
    document
}

/// What leads a Poplar program to the partition. Which GCD is whose is up to who starts the workers, if there are several.
fn environment(entry: &Entry, endpoint: &ControllerEndpoint) -> BTreeMap<String, String> {
    let env = IpuofEnv::new(endpoint.host(), endpoint.port(), entry.id.clone(), 0);
    let vars = env.vars().into_iter();
    vars.filter(|(name, _)| entry.spec.gcds == 1 || *name != "IPUOF_VIPU_API_GCD_ID")
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
