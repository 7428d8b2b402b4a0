//! `ipuctl plan`: prints the partitions that the jobs of a file request, the effects of their first
//! reconciliation, and whether they fit. Changes nothing.

use std::collections::BTreeMap;

use ipu_core::hardware::{IpuPlace, PartitionSpec};
use ipu_core::job::{Effect, JobSpec, Observation, Violation, plan};
use ipu_core::placement::PlacementMode;
use ipu_core::{AllocationId, IpuCount, PartitionId, Reason};
use ipu_k8s::crd::Manifest;
use ipu_proxy_client::now;
use ipu_proxy_client::{
    ControllerStatus, CordonDocument, DryRunRequest, DryRunResponse, DryRunResult, OwnerDocument,
};
use serde::Serialize;
use serde_json::Value;

use crate::cli::{Format, Manifest as ManifestArguments, Plan};
use crate::connection::Connection;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::manifest::{self, Overrides};
use crate::output::Output;
use crate::table::{Table, render};

/// Uid of a job that does not run. The ids of its partitions end with a hash that no run uses.
const PLAN_UID: &str = "00000000-0000-0000-0000-000000000000";
/// Shown in place of the hash at the end of a partition id, which follows from the uid of the run.
const HASH_PLACEHOLDER: &str = "<hash>";

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
    /// Why the job runs nothing, if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<&'static str>,
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
enum FitResult {
    Now,
    Unknown,
    Waits,
    Never,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fit {
    verdict: FitResult,
    #[serde(rename = "why")]
    reason: String,
    /// The IPUs of each instance, if a policy chooses them and all instances fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    placements: Vec<InstancePlacement>,
    /// Whether the controller chooses the IPUs.
    #[serde(skip)]
    is_delegated: bool,
}

impl Fit {
    const fn new(verdict: FitResult, reason: String) -> Self {
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
struct InstancePlacement {
    instance: u32,
    ipus: Vec<IpuPlace>,
}

/// Plans sizes, or every job of a file.
pub(crate) async fn run(
    arguments: Plan,
    connection: &Connection,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let ended: Vec<String> = arguments.if_ended.iter().map(ToString::to_string).collect();
    let capacity = Capacity { connection, ended };
    match arguments.file {
        Some(file) => {
            let selection = ManifestArguments {
                file,
                name: arguments.name,
                set: arguments.set,
            };
            jobs(&selection, arguments.allocation, &capacity, format, output).await
        }
        None => {
            let sizes = arguments.size.iter().map(|size| size.get()).collect();
            let response = capacity.dry_run(sizes, arguments.allocation.as_ref()).await?;
            let cordons = capacity.cordons(&response.results).await;
            output.result(&render(format, &response, || table(&response, &cordons))?);
            let missing = response.results.iter().find(|result| !result.fits);
            Ok(match missing.map(verdict) {
                Some(FitResult::Never) => Code::Impossible,
                Some(_) => Code::NoCapacity,
                None => Code::Done,
            })
        }
    }
}

/// Plans every job of the file.
async fn jobs(
    selection: &ManifestArguments,
    allocation: Option<AllocationId>,
    capacity: &Capacity<'_>,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let manifests = manifest::read(selection, output)?;
    let overrides = Overrides {
        uid: PLAN_UID.to_owned(),
        allocation,
        priority: None,
    };
    let mut planned = PlanOutput { jobs: Vec::new() };
    for manifest in manifests {
        planned
            .jobs
            .push(plan_job(manifest, &overrides, capacity, output).await?);
    }
    output.result(&render(format, &planned, || text_of(&planned))?);
    let idle = planned.jobs.iter().any(|job| job.idle.is_some());
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
        (false, _) if idle => Code::Idle,
        (false, Some(FitResult::Now | FitResult::Unknown) | None) => Code::Done,
    })
}

async fn plan_job(
    manifest: Manifest,
    overrides: &Overrides,
    capacity: &Capacity<'_>,
    output: &Output,
) -> Result<PlannedJob, Failure> {
    let name = manifest::name_of(&manifest);
    // A host needs no image; the plan is also the check of a manifest for Kubernetes.
    let missing = manifest.job.missing_images();
    let job = match manifest::parse(manifest, overrides, output) {
        Ok(job) if missing.is_empty() => job,
        parsed => {
            let violations = parsed.err().into_iter().flatten().chain(missing).collect();
            return Ok(PlannedJob {
                name,
                violations,
                partitions: Vec::new(),
                workers: 0,
                effects: Vec::new(),
                created: Vec::new(),
                reasons: Vec::new(),
                idle: None,
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
    let idle = manifest::idle_reason(&spec);
    let fit = match idle {
        Some(_) => None,
        None => Some(capacity.fit(&spec).await?),
    };
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
        idle,
        fit,
    })
}

/// Returns the id with [`HASH_PLACEHOLDER`] in place of its hash.
fn id_pattern(id: &PartitionId) -> String {
    let name = id.as_str().rsplit_once('-').map_or("", |(name, _)| name);
    format!("{name}-{HASH_PLACEHOLDER}")
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

/// Maximum number of sizes of one dry run at the proxy.
const MAX_SIZES: usize = 256;

/// The capacity of the proxy, without the partitions that are treated as released.
struct Capacity<'a> {
    connection: &'a Connection,
    ended: Vec<String>,
}

impl Capacity<'_> {
    async fn dry_run(
        &self,
        sizes: Vec<u32>,
        allocation: Option<&AllocationId>,
    ) -> Result<DryRunResponse, Failure> {
        let mut request = DryRunRequest::new(sizes);
        request.if_these_ended.clone_from(&self.ended);
        request.allocation = allocation.map(ToString::to_string);
        self.connection.proxy.plan(&request).await.map_err(Failure::from)
    }

    /// Returns the cordons, if a reason refers to them.
    async fn cordons(&self, results: &[DryRunResult]) -> Vec<CordonDocument> {
        let reasons = results.iter().flat_map(|result| &result.reasons);
        self.connection
            .cordons_for(reasons.map(|reason| &reason.reason))
            .await
    }

    /// Evaluates whether the partitions of a job fit side by side with the existing ones and those of earlier
    /// requests in the queue.
    async fn fit(&self, job: &JobSpec) -> Result<Fit, Failure> {
        let count = usize::try_from(job.instances()).unwrap_or(usize::MAX);
        let ahead = self.requests_ahead(job, MAX_SIZES.saturating_sub(count)).await?;
        let mut sizes: Vec<u32> = ahead.iter().map(|(_, size)| *size).collect();
        sizes.extend(std::iter::repeat_n(job.partition().size.get(), count));
        let response = self.dry_run(sizes, job.partition().allocation.as_ref()).await?;
        let (_, results) = response.results.split_at(ahead.len().min(response.results.len()));
        let queue = match ahead.as_slice() {
            [] => String::new(),
            [(one, _)] => format!("; ahead in the queue: {one}"),
            [(first, _), rest @ ..] => format!("; ahead in the queue: {first} and {} more", rest.len()),
        };
        match (0..).zip(results).find(|(_, result)| !result.fits) {
            Some((instance, result)) => self.misfit(instance, result, &queue).await,
            None => self.placement(results).await,
        }
    }

    /// Returns the ids and sizes of the queued requests that a new job of this priority would wait for, in
    /// queue order.
    async fn requests_ahead(&self, job: &JobSpec, max: usize) -> Result<Vec<(PartitionId, u32)>, Failure> {
        let queue = self.connection.proxy.waiting().await?;
        let ahead = queue
            .into_iter()
            .filter(|request| request.priority >= job.priority());
        Ok(ahead
            .map(|request| (request.id, request.size))
            .take(max)
            .collect())
    }

    /// Returns the verdict on an instance that does not fit, with the owners that block it.
    async fn misfit(&self, instance: u32, result: &DryRunResult, queue: &str) -> Result<Fit, Failure> {
        let cordons = self.cordons(std::slice::from_ref(result)).await;
        let text = format!("instance {instance}: {}", reasons(result, &cordons));
        let verdict = verdict(result);
        if verdict == FitResult::Never || result.blockers.is_empty() {
            return Ok(Fit::new(verdict, format!("{text}{queue}")));
        }
        let partitions = self.connection.proxy.partitions().await?;
        let owners: BTreeMap<PartitionId, Option<OwnerDocument>> = partitions
            .into_iter()
            .map(|partition| (partition.id, partition.owner))
            .collect();
        let owner = |id: &PartitionId| owners.get(id).and_then(Option::as_ref);
        let names = result.blockers.iter();
        let names = names.map(|id| display::holder_name(id, owner(id))).collect();
        Ok(Fit::new(
            verdict,
            format!("{text}{}{queue}", display::blocked_by(names)),
        ))
    }

    /// Returns the verdict on instances that all fit.
    async fn placement(&self, results: &[DryRunResult]) -> Result<Fit, Failure> {
        let proxy = &self.connection.proxy;
        let controllers = proxy.controllers().await?.controllers;
        let is_used = |status: &&ControllerStatus| {
            let name = &status.controller.name;
            results
                .iter()
                .any(|result| result.controller.as_ref() == Some(name))
        };
        let used: Vec<&ControllerStatus> = controllers.iter().filter(is_used).collect();
        if used.iter().any(|status| status.fits.is_empty()) {
            let reason = "the controller does not report its hardware";
            return Ok(Fit::new(FitResult::Unknown, reason.to_owned()));
        }
        let total = proxy.stats().await?.total().unwrap_or_default();
        let requested: u32 = results.iter().map(|result| result.size).sum();
        let mut fit = Fit::new(
            FitResult::Now,
            format!(
                "{} of {} remain free",
                total.available.saturating_sub(requested),
                display::count(total.used + total.available, "IPU")
            ),
        );
        let delegated = PlacementMode::Delegated.name();
        fit.is_delegated = used
            .iter()
            .any(|status| status.placement.as_deref() == Some(delegated));
        if !fit.is_delegated {
            let placements = (0..).zip(results);
            let placement = |(instance, result): (u32, &DryRunResult)| InstancePlacement {
                instance,
                ipus: result.ipus.clone(),
            };
            fit.placements = placements
                .map(placement)
                .filter(|placement| !placement.ipus.is_empty())
                .collect();
        }
        Ok(fit)
    }
}

/// Returns the verdict on a size that does not fit.
fn verdict(result: &DryRunResult) -> FitResult {
    let never = !result.reasons.is_empty()
        && result
            .reasons
            .iter()
            .all(|reason| reason.reason.code.is_permanent());
    if never { FitResult::Never } else { FitResult::Waits }
}

/// Returns the reasons of the controllers; equal reasons are shown once.
fn reasons(result: &DryRunResult, cordons: &[CordonDocument]) -> String {
    if result.reasons.is_empty() && !result.fits {
        return "no controller answers".to_owned();
    }
    let texts: Vec<String> = result
        .reasons
        .iter()
        .map(|reason| display::reason_with_cordons(&reason.reason, cordons))
        .collect();
    if let [first, rest @ ..] = texts.as_slice()
        && rest.iter().all(|text| text == first)
    {
        return first.clone();
    }
    let controllers = result.reasons.iter().map(|reason| &reason.controller);
    let texts: Vec<String> = controllers
        .zip(texts)
        .map(|(controller, text)| format!("{controller}: {text}"))
        .collect();
    texts.join("; ")
}

fn table(response: &DryRunResponse, cordons: &[CordonDocument]) -> String {
    let mut table = Table::new(&["SIZE", "FITS", "CONTROLLER", "REASON"]);
    for result in &response.results {
        let controller = result.controller.as_ref().map(ToString::to_string);
        table.row([
            result.size.to_string(),
            if result.fits { "yes" } else { "no" }.to_owned(),
            controller.unwrap_or_default(),
            reasons(result, cordons),
        ]);
    }
    table.to_string()
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
            text.extend(table.to_string().lines().map(|line| format!("  {line}\n")));
        }
        for (partition, size) in &job.created {
            text.push_str(&format!(
                "  First step: create partition {partition} of {}\n",
                display::count(size.get(), "IPU")
            ));
        }
        if let Some(reason) = job.idle {
            text.push_str(&format!("  Runs nothing: {reason}\n"));
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
