//! `ipuctl plan`: prints the partitions that the jobs of a file request, the effects of their first
//! reconciliation, and whether they fit. Changes nothing.

use std::cmp::Reverse;

use ipu_core::{
    Block, CordonOwner, Effect, Entry, EntryState, Inventory, IpuCount, IpuPlace, JobSpec, Observation,
    PartitionId, PartitionSpec, Placement, PlacementMode, PlacementRequest, QueuePolicy, Reason, Topology,
    Violation, place, plan,
};
use ipu_k8s::crd::Manifest;
use ipu_proxy_client::OwnerDocument;
use ipu_vipu_client::VipuController as _;
use serde::Serialize;
use serde_json::Value;

use crate::cli::{Global, Manifest as ManifestArguments, Plan};
use crate::clock::now;
use crate::connection::{Connection, controller_failure, ledger_failure};
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::{self, Overrides};
use crate::output::Output;
use crate::run::never_fits;
use crate::table::{Table, render};

/// Uid of a job that does not run. The ids of its partitions end with a hash that no run uses.
const UID: &str = "00000000-0000-0000-0000-000000000000";
/// Shown in place of the hash at the end of a partition id, which follows from the uid of the run.
const HASH: &str = "<hash>";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanOutput {
    jobs: Vec<PlannedJob>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedJob {
    name: String,
    /// Violations of the manifest; empty if it is valid.
    violations: Vec<Violation>,
    partitions: Vec<RequestedPartition>,
    /// Number of workers of each instance.
    workers: u32,
    /// Effects of the first reconciliation, as JSON.
    effects: Vec<Value>,
    /// Id pattern and size of each partition that the effects create.
    #[serde(skip)]
    created: Vec<(String, IpuCount)>,
    reasons: Vec<Reason>,
    fit: Option<Fit>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestedPartition {
    instance: u32,
    /// The id up to its hash.
    id: String,
    #[serde(flatten)]
    spec: PartitionSpec,
}

/// Verdict on the partitions of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FitResult {
    Now,
    Unknown,
    Waits,
    Never,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Fit {
    pub(crate) verdict: FitResult,
    #[serde(rename = "why")]
    pub(crate) reason: String,
    /// The IPUs of each instance, if a policy chooses them and all instances fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) placements: Vec<InstancePlacement>,
    /// Whether the controller chooses the IPUs.
    #[serde(skip)]
    is_delegated: bool,
}

impl Fit {
    pub(crate) const fn new(verdict: FitResult, reason: String) -> Self {
        Self {
            verdict,
            reason,
            placements: Vec::new(),
            is_delegated: false,
        }
    }
}

/// The IPUs that an instance would get now.
#[derive(Debug, Serialize)]
pub(crate) struct InstancePlacement {
    instance: u32,
    ipus: Vec<IpuPlace>,
}

/// Plans every job of the file, with the capacity of the controller.
pub(crate) async fn run(arguments: Plan, global: &Global, output: &Output) -> Result<Code, Failure> {
    let proxy_options = match (arguments.size.is_empty(), arguments.if_ended.is_empty()) {
        (true, true) => None,
        (false, true) => Some("plan --size"),
        (true, false) => Some("plan --if-ended"),
        (false, false) => Some("plan --size --if-ended"),
    };
    if let Some(options) = proxy_options {
        return Err(super::proxy::requires_proxy(options));
    }
    let connection = Connection::open(global, output).await?;
    let done = jobs(arguments, global, output, async |job: &JobSpec| {
        fit(job, &connection).await
    })
    .await;
    connection.close().await;
    done
}

/// Plans every job of the file; `fit` evaluates the capacity for its partitions.
pub(crate) async fn jobs(
    arguments: Plan,
    global: &Global,
    output: &Output,
    fit: impl AsyncFn(&JobSpec) -> Result<Fit, Failure>,
) -> Result<Code, Failure> {
    let file = arguments
        .file
        .ok_or_else(|| Failure::new(Code::Usage, "a file with IPUJobs is required"))?;
    let selection = ManifestArguments {
        file,
        name: arguments.name,
        set: arguments.set,
    };
    let manifests = manifest::read(&selection, output)?;
    let overrides = Overrides {
        uid: UID.to_owned(),
        allocation: arguments.allocation,
        priority: None,
    };
    let mut planned = PlanOutput { jobs: Vec::new() };
    for manifest in manifests {
        planned
            .jobs
            .push(plan_job(manifest, &overrides, &fit, output).await?);
    }
    output.result(&render(global.output, &planned, || text_of(&planned))?);
    let invalid = planned.jobs.iter().any(|job| !job.violations.is_empty());
    let worst = planned
        .jobs
        .iter()
        .filter_map(|job| job.fit.as_ref())
        .map(|fit| fit.verdict)
        .max();
    Ok(match (invalid, worst) {
        (true, _) => Code::Data,
        (false, Some(FitResult::Never)) => Code::Impossible,
        (false, Some(FitResult::Waits)) => Code::NoCapacity,
        (false, Some(FitResult::Now | FitResult::Unknown) | None) => Code::Done,
    })
}

async fn plan_job(
    manifest: Manifest,
    overrides: &Overrides,
    fit: &impl AsyncFn(&JobSpec) -> Result<Fit, Failure>,
    output: &Output,
) -> Result<PlannedJob, Failure> {
    let name = manifest::name_of(&manifest);
    let job = match manifest::parse(manifest, overrides, output) {
        Ok(job) => job,
        Err(violations) => {
            return Ok(PlannedJob {
                name,
                violations,
                partitions: Vec::new(),
                workers: 0,
                effects: Vec::new(),
                created: Vec::new(),
                reasons: Vec::new(),
                fit: None,
            });
        }
    };
    let spec = job.spec;
    let first = plan(&spec, &Observation::for_new_job(now()));
    let partitions = (0..spec.instances())
        .map(|instance| RequestedPartition {
            instance,
            id: id_pattern(&spec.partition_id(instance)),
            spec: spec.partition().clone(),
        })
        .collect();
    let created = first.effects.iter().filter_map(|effect| match effect {
        Effect::EnsurePartition { partition, spec, .. } => Some((id_pattern(partition), spec.size)),
        _ => None,
    });
    let fit = fit(&spec).await?;
    Ok(PlannedJob {
        name,
        violations: Vec::new(),
        partitions,
        workers: spec.workers_per_instance(),
        effects: first
            .effects
            .iter()
            .map(effect_document)
            .collect::<Result<_, _>>()?,
        created: created.collect(),
        reasons: first.reasons,
        fit: Some(fit),
    })
}

/// Returns the id with [`HASH`] in place of its hash.
fn id_pattern(id: &PartitionId) -> String {
    let name = id.as_str().rsplit_once('-').map_or("", |(name, _)| name);
    format!("{name}-{HASH}")
}

/// Returns the JSON of an effect, with the pattern of its partition id.
fn effect_document(effect: &Effect) -> Result<Value, Failure> {
    let mut document = serde_json::to_value(effect)
        .map_err(|error| Failure::because(Code::Bug, "print the effects as JSON", error))?;
    if let (Effect::EnsurePartition { partition, .. }, Some(id)) = (effect, document.get_mut("partition")) {
        *id = id_pattern(partition).into();
    }
    Ok(document)
}

/// The hardware of a controller and the partitions on it.
pub(crate) struct ObservedInventory {
    pub(crate) inventory: Inventory,
    /// Number of IPUs of the topology.
    ipus: u32,
}

/// Returns the inventory of the controller; none if it does not report its hardware.
pub(crate) async fn observe_inventory(connection: &Connection) -> Result<Option<ObservedInventory>, Failure> {
    let controller = &connection.controller;
    let agents = controller.ipu_attributes(&[]).await.map_err(controller_failure)?;
    let agents = agents
        .into_iter()
        .map(|agent| (agent.agent, agent.ipus))
        .collect();
    let Ok(hardware) = Topology::from_agents(&agents) else {
        return Ok(None);
    };
    let partitions = controller
        .list_partitions(None)
        .await
        .map_err(controller_failure)?;
    let observed = Inventory::observe(&hardware.topology, &hardware.unhealthy, &partitions, |_| true);
    Ok(Some(ObservedInventory {
        inventory: observed.inventory,
        ipus: hardware.topology.ipus(),
    }))
}

/// Evaluates whether the partitions of a job fit beside the existing ones and those of earlier requests in
/// the queue.
async fn fit(job: &JobSpec, connection: &Connection) -> Result<Fit, Failure> {
    let Some(ObservedInventory { mut inventory, ipus }) = observe_inventory(connection).await? else {
        let reason = "the controller does not report its hardware";
        return Ok(Fit::new(FitResult::Unknown, reason.to_owned()));
    };
    let request =
        PlacementRequest::of_size(job.partition().size).in_allocation(job.partition().allocation.clone());
    let ahead = requests_ahead(job, connection).await?;
    let policy = connection.placement.policy();
    let mut overtaken = None;
    for entry in &ahead {
        let request = PlacementRequest::of_size(entry.spec.size).in_allocation(entry.spec.allocation.clone());
        match place(&inventory, &request, policy) {
            Placement::Fits(block) => inventory
                .occupy(entry.id.clone(), block)
                .map_err(|error| Failure::because(Code::Bug, "place the queued requests", error))?,
            _ if entry.overtaken >= QueuePolicy::default().overtake_limit => overtaken = Some(entry),
            _ => {}
        }
    }
    let queue = match ahead.as_slice() {
        [] => String::new(),
        [one] => format!("; ahead in the queue: {}", one.id),
        [first, rest @ ..] => format!("; ahead in the queue: {} and {} more", first.id, rest.len()),
    };
    let mut placements = Vec::new();
    for instance in 0..job.instances() {
        match place(&inventory, &request, policy) {
            Placement::Fits(block) => {
                if connection.placement != PlacementMode::Delegated {
                    let places = block.places(inventory.topology());
                    placements.extend(places.map(|(_, ipus)| InstancePlacement { instance, ipus }));
                }
                inventory
                    .occupy(job.partition_id(instance), block)
                    .map_err(|error| Failure::because(Code::Bug, "place the partitions", error))?;
            }
            Placement::Impossible(cause) => {
                let reason = Reason::from(cause);
                let text = format!("instance {instance}: {}", display::reason(&reason));
                if never_fits(&reason) {
                    return Ok(Fit::new(FitResult::Never, format!("{text}{queue}")));
                }
                let own = (0..instance).map(|instance| job.partition_id(instance)).collect();
                let blockers = blockers(&request, own, inventory, connection).await?;
                let reason = format!("{text}{}{queue}", display::blocked_by(blockers));
                return Ok(Fit::new(FitResult::Waits, reason));
            }
        }
    }
    if let Some(entry) = overtaken {
        let reason = format!("{} was overtaken too often and starts first{queue}", entry.id);
        return Ok(Fit::new(FitResult::Waits, reason));
    }
    Ok(Fit {
        verdict: FitResult::Now,
        placements,
        is_delegated: connection.placement == PlacementMode::Delegated,
        reason: format!(
            "{} of {} remain free",
            inventory.free(),
            display::count(ipus, "IPU")
        ),
    })
}

/// Returns the owners of partitions that block a request, or the ids of partitions without a known owner. The
/// `own` partitions of the job are not among them.
async fn blockers(
    request: &PlacementRequest,
    own: Vec<PartitionId>,
    mut inventory: Inventory,
    connection: &Connection,
) -> Result<Vec<String>, Failure> {
    let bug = |error: &dyn std::fmt::Display| Failure::new(Code::Bug, format!("find the blockers: {error}"));
    // The job keeps its own partitions.
    let keeper = CordonOwner::new("plan").map_err(|error| bug(&error))?;
    let kept: Vec<_> = own
        .iter()
        .filter_map(|id| inventory.block_of(id))
        .flat_map(Block::addresses)
        .collect();
    inventory.cordon(&keeper, kept).map_err(|error| bug(&error))?;
    let found = inventory.blockers_for(request.size, request.allocation.as_ref());
    let entries = connection.ledger.list().await.map_err(ledger_failure)?;
    let name = |id: &PartitionId| {
        let entry = entries.iter().find(|entry| entry.id == *id);
        let owner = entry.and_then(|entry| entry.owner.as_ref());
        display::holder_name(id, owner.map(OwnerDocument::from).as_ref())
    };
    let holders = found.map(|found| found.holders).unwrap_or_default();
    Ok(holders.iter().map(name).collect())
}

/// Returns the queued requests of this controller that a new job of this priority would wait for, in queue
/// order.
async fn requests_ahead(job: &JobSpec, connection: &Connection) -> Result<Vec<Entry>, Failure> {
    let mut entries = connection.ledger.list().await.map_err(ledger_failure)?;
    entries.retain(|entry| {
        matches!(entry.state, EntryState::Waiting { .. })
            && entry.priority >= job.priority()
            && entry
                .controller
                .as_ref()
                .is_none_or(|name| *name == connection.name)
    });
    entries.sort_by_key(|entry| (Reverse(entry.priority), entry.ticket));
    Ok(entries)
}

fn text_of(planned: &PlanOutput) -> String {
    let mut text = String::new();
    for job in &planned.jobs {
        text.push_str(&format!("IPUJob {}\n", job.name));
        for violation in &job.violations {
            text.push_str(&format!("  Invalid: {violation}\n"));
        }
        if !job.partitions.is_empty() {
            let mut table = Table::new(&["INSTANCE", "IPUS", "GCDS", "REPLICAS", "WORKERS"]);
            for partition in &job.partitions {
                table.row([
                    partition.instance.to_string(),
                    partition.spec.size.to_string(),
                    partition.spec.gcds.to_string(),
                    partition.spec.replicas.to_string(),
                    job.workers.to_string(),
                ]);
            }
            text.extend(table.text().lines().map(|line| format!("  {line}\n")));
        }
        for (partition, size) in &job.created {
            text.push_str(&format!(
                "  First step: create partition {partition} of {}\n",
                display::count(size.get(), "IPU")
            ));
        }
        if let Some(fit) = &job.fit {
            let reason = &fit.reason;
            text.push_str(&match fit.verdict {
                FitResult::Now => format!("  Fits now. {reason}.\n"),
                FitResult::Unknown => format!("  May fit: {reason}\n"),
                FitResult::Waits => format!("  Would wait: {reason}\n"),
                FitResult::Never => format!("  Can never fit: {reason}\n"),
            });
            if fit.is_delegated {
                text.push_str("  The controller chooses the IPUs.\n");
            }
            for placement in &fit.placements {
                let (instance, places) = (placement.instance, display::places(&placement.ipus));
                text.push_str(&format!("  Instance {instance} would get {places}.\n"));
            }
        }
    }
    text
}
