//! Partitions as the API takes and shows them.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::{
    Blocker, ControllerName, Entry, EntryState, IpuCount, IpuPlace, IpuofEnv, JobKey, LinePolicy, Owner,
    PartitionId, PartitionSpec, Reason, Request, Timestamp, Waiting,
};
use ipu_ledger::Lease;
use ipu_vipu_client::{ControllerEndpoint, ControllerPool};
use serde::{Deserialize, Serialize};

use crate::problem::Problem;

/// Who holds or asks, in one level.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OwnerDocument {
    kind: String,
    namespace: String,
    name: String,
    uid: String,
}

impl From<&Owner> for OwnerDocument {
    fn from(owner: &Owner) -> Self {
        Self {
            kind: owner.kind.clone(),
            namespace: owner.job.namespace.to_string(),
            name: owner.job.name.to_string(),
            uid: owner.job.uid.to_string(),
        }
    }
}

/// The longest kind of an owner.
const KIND_MAX: usize = 63;

impl OwnerDocument {
    pub(crate) fn parse(self) -> Result<Owner, Problem> {
        let plain = self.kind.chars().all(|c| c.is_ascii_graphic());
        if self.kind.is_empty() || self.kind.len() > KIND_MAX || !plain {
            return Err(Problem::invalid(
                "owner.kind",
                self.kind,
                format!("must be 1 to {KIND_MAX} printable characters without blanks"),
                "use a word such as IPUJob",
            ));
        }
        let job = JobKey {
            namespace: named("owner.namespace", self.namespace)?,
            name: named("owner.name", self.name)?,
            uid: named("owner.uid", self.uid)?,
        };
        Ok(Owner { kind: self.kind, job })
    }
}

/// Parses a name of any kind.
pub(crate) fn named<T: std::str::FromStr<Err = ipu_core::NameError>>(
    field: &str,
    text: String,
) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: ipu_core::NameError| Problem::invalid(field, text, error.rule, "give another one"))
}

/// The body of `PUT /v1/partitions/{id}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PutPartition {
    owner: OwnerDocument,
    #[serde(default)]
    instance: u32,
    #[serde(default)]
    attempt: u32,
    size: u32,
    #[serde(default)]
    gcds: Option<u32>,
    #[serde(default)]
    replicas: Option<u32>,
    #[serde(default)]
    reconfigurable: bool,
    #[serde(default)]
    allocation: Option<String>,
    #[serde(default)]
    controller: Option<String>,
    #[serde(default)]
    priority: i32,
    #[serde(default)]
    max_runtime_seconds: Option<u64>,
    #[serde(default)]
    account: Option<String>,
    #[serde(default)]
    preemptible: bool,
    #[serde(default)]
    lease_seconds: Option<u32>,
}

/// The longest account.
const ACCOUNT_MAX: usize = 253;

impl PutPartition {
    /// The request that it makes.
    pub(crate) fn parse(self, id: PartitionId, line: LinePolicy, now: Timestamp) -> Result<Request, Problem> {
        let owner = self.owner.parse()?;
        let size = size_of("size", self.size)?;
        let gcds = self.gcds.unwrap_or(1);
        let mut spec = PartitionSpec::of_size(size);
        spec.gcds = gcds;
        spec.replicas = self.replicas.unwrap_or(gcds);
        spec.reconfigurable = self.reconfigurable;
        spec.allocation = self
            .allocation
            .map(|text| named("allocation", text))
            .transpose()?;
        spec.check().map_err(|error| {
            Problem::invalid(error.field(), error.value(), error.to_string(), error.fix())
        })?;
        let mut request = Request::named(id, owner, spec);
        request.instance = self.instance;
        request.attempt = self.attempt;
        request.priority = self.priority;
        request.max_runtime = self.max_runtime_seconds.map(Duration::from_secs);
        request.account = self.account.map(account_of).transpose()?;
        request.preemptible = self.preemptible;
        request.pin.controller = self
            .controller
            .map(|text| named("controller", text))
            .transpose()?;
        request.line = line;
        if let Some(seconds) = self.lease_seconds {
            request.holder = Lease::of(lease_of("leaseSeconds", seconds)?, now).to_string();
        }
        Ok(request)
    }
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

/// A partition, or a request for one.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionDocument {
    pub(crate) id: PartitionId,
    /// The state in the ledger; `gone` if it has no entry any more.
    pub(crate) state: &'static str,
    owner: Option<OwnerDocument>,
    instance: u32,
    attempt: u32,
    size: u32,
    gcds: u32,
    replicas: u32,
    reconfigurable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocation: Option<String>,
    controller: Option<ControllerDocument>,
    ipus: Vec<IpuPlace>,
    since: Timestamp,
    held_since: Option<Timestamp>,
    priority: i32,
    account: Option<String>,
    preemptible: bool,
    max_runtime_seconds: Option<u64>,
    /// Until when its owner is taken for alive without renewing his lease.
    lease_until: Option<Timestamp>,
    pub(crate) waiting: Option<WaitingDocument>,
    errors: Vec<String>,
    env: BTreeMap<&'static str, String>,
}

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaitingDocument {
    pub(crate) position: u32,
    reason: Reason,
    blockers: Vec<BlockerDocument>,
    earliest_fit: Option<Timestamp>,
}

/// What would have to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BlockerDocument {
    id: PartitionId,
    owner: Option<OwnerDocument>,
    size: Option<IpuCount>,
    until: Option<Timestamp>,
}

impl From<&Blocker> for BlockerDocument {
    fn from(blocker: &Blocker) -> Self {
        Self {
            id: blocker.id.clone(),
            owner: blocker.owner.as_ref().map(OwnerDocument::from),
            size: blocker.size,
            until: blocker.until,
        }
    }
}

impl From<&Waiting> for WaitingDocument {
    fn from(waiting: &Waiting) -> Self {
        Self {
            position: waiting.position,
            reason: waiting.reason.clone(),
            blockers: waiting.blockers.iter().map(BlockerDocument::from).collect(),
            earliest_fit: waiting.earliest_fit,
        }
    }
}

/// Where a controller is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ControllerDocument {
    pub(crate) name: ControllerName,
    pub(crate) host: Option<String>,
    pub(crate) port: Option<u16>,
    /// `key=value`: the label of the nodes that reach its IPUs.
    pub(crate) node_label: Option<String>,
}

impl ControllerDocument {
    pub(crate) fn new(name: &ControllerName, endpoint: Option<&ControllerEndpoint>) -> Self {
        Self {
            name: name.clone(),
            host: endpoint.map(|endpoint| endpoint.host().to_owned()),
            port: endpoint.map(ControllerEndpoint::port),
            node_label: endpoint
                .and_then(ControllerEndpoint::label)
                .map(ToString::to_string),
        }
    }
}

impl PartitionDocument {
    /// `entry` as the API shows it, with what it waits for if somebody has asked the line.
    pub(crate) fn new<C: ?Sized>(entry: &Entry, waiting: Option<Waiting>, pool: &ControllerPool<C>) -> Self {
        let endpoint = entry
            .controller
            .as_ref()
            .and_then(|name| pool.member(name))
            .and_then(|member| member.endpoint);
        let active = matches!(entry.state, EntryState::Active);
        let errors = match &entry.state {
            EntryState::Failed { errors } => errors.clone(),
            _ => Vec::new(),
        };
        Self {
            id: entry.id.clone(),
            state: entry.state.label(),
            owner: entry.owner.as_ref().map(OwnerDocument::from),
            instance: entry.instance,
            attempt: entry.attempt,
            size: entry.spec.size.get(),
            gcds: entry.spec.gcds,
            replicas: entry.spec.replicas,
            reconfigurable: entry.spec.reconfigurable,
            allocation: entry.spec.allocation.as_ref().map(ToString::to_string),
            controller: entry
                .controller
                .as_ref()
                .map(|name| ControllerDocument::new(name, endpoint.as_ref())),
            ipus: entry.places.clone(),
            since: entry.since,
            held_since: entry.held_since,
            priority: entry.priority,
            account: entry.account.clone(),
            preemptible: entry.preemptible,
            max_runtime_seconds: entry.max_runtime.map(|runtime| runtime.as_secs()),
            lease_until: entry.holder.parse().ok().map(|lease: Lease| lease.until()),
            waiting: waiting.as_ref().map(WaitingDocument::from),
            errors,
            env: endpoint
                .filter(|_| active)
                .map(|endpoint| environment(entry, &endpoint))
                .unwrap_or_default(),
        }
    }
}

/// What leads a Poplar program to the partition. Which GCD is whose is up to who starts the workers, if there are several.
fn environment(entry: &Entry, endpoint: &ControllerEndpoint) -> BTreeMap<&'static str, String> {
    let env = IpuofEnv::new(endpoint.host(), endpoint.port(), entry.id.clone(), 0);
    let mut vars: BTreeMap<_, _> = env.vars().into_iter().collect();
    if entry.spec.gcds > 1 {
        vars.remove("IPUOF_VIPU_API_GCD_ID");
    }
    vars
}

/// What is left of a partition that was given back.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeletedDocument {
    pub(crate) id: PartitionId,
    /// `gone`, or `releasing`: the proxy goes on by itself.
    pub(crate) state: &'static str,
    /// Why it is not gone yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}
