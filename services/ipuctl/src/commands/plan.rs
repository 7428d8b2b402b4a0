//! `ipuctl plan`: which partitions the jobs of a file ask for, what their first step would be, and why they would have to
//! wait or cannot run. Nothing is changed.

use std::cmp::Reverse;

use ipu_core::{
    Effect, Entry, EntryState, FirstFit, Inventory, JobSpec, Observation, PartitionId, PartitionSpec,
    Placement, PlacementRequest, QueuePolicy, Reason, Topology, Violation, place, plan,
};
use ipu_k8s::crd::Manifest;
use ipu_vipu_client::VipuController as _;
use serde::Serialize;

use crate::cli::{Global, Manifest as ManifestArguments, Plan};
use crate::clock::now;
use crate::connection::{Connection, controller_failure, ledger_failure};
use crate::exit_code::{Code, Failure};
use crate::manifest::{self, Overrides};
use crate::output::Output;
use crate::run::never_fits;
use crate::table::{Table, render};

/// The uid of a job that does not run: the ids of its partitions are examples.
const UID: &str = "00000000-0000-0000-0000-000000000000";

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlanOutput {
    jobs: Vec<PlannedPartition>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PlannedPartition {
    name: String,
    /// What is wrong with the manifest; empty if it can run.
    violations: Vec<Violation>,
    partitions: Vec<RequestedPartition>,
    /// Workers of each instance.
    workers: u32,
    /// The effects of the first pass.
    effects: Vec<Effect>,
    reasons: Vec<Reason>,
    fit: Option<Fit>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestedPartition {
    instance: u32,
    id: PartitionId,
    #[serde(flatten)]
    spec: PartitionSpec,
}

/// Whether the partitions of a job fit.
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
    pub(crate) why: String,
}

/// Plans every job of the file.
pub(crate) async fn run(arguments: Plan, global: &Global, output: &Output) -> Result<Code, Failure> {
    if !arguments.size.is_empty() || !arguments.if_ended.is_empty() {
        return Err(super::proxy::needed("plan --size and --if-ended"));
    }
    let connection = Connection::open(global, output).await?;
    let done = jobs(arguments, global, output, async |job: &JobSpec| {
        fit(job, &connection).await
    })
    .await;
    connection.close().await;
    done
}

/// Plans every job of the file; `fit` tells whether its partitions fit.
pub(crate) async fn jobs(
    arguments: Plan,
    global: &Global,
    output: &Output,
    fit: impl AsyncFn(&JobSpec) -> Result<Fit, Failure>,
) -> Result<Code, Failure> {
    let file = arguments
        .file
        .ok_or_else(|| Failure::new(Code::Usage, "name a file with IPUJobs"))?;
    let wanted = ManifestArguments {
        file,
        name: arguments.name,
        set: arguments.set,
    };
    let manifests = manifest::read(&wanted, output)?;
    let overrides = Overrides {
        uid: UID.to_owned(),
        allocation: arguments.allocation,
        priority: None,
    };
    let mut answer = PlanOutput { jobs: Vec::new() };
    for manifest in manifests {
        answer.jobs.push(one(manifest, &overrides, &fit, output).await?);
    }
    output.result(&render(global.output, &answer, || text_of(&answer))?);
    let invalid = answer.jobs.iter().any(|job| !job.violations.is_empty());
    let worst = answer
        .jobs
        .iter()
        .filter_map(|job| job.fit.as_ref())
        .map(|fit| fit.verdict)
        .max();
    Ok(match (invalid, worst) {
        (true, _) => Code::Data,
        (false, Some(FitResult::Never)) => Code::Impossible,
        (false, Some(FitResult::Waits)) => Code::NoRoom,
        (false, Some(FitResult::Now | FitResult::Unknown) | None) => Code::Done,
    })
}

async fn one(
    manifest: Manifest,
    overrides: &Overrides,
    fit: &impl AsyncFn(&JobSpec) -> Result<Fit, Failure>,
    output: &Output,
) -> Result<PlannedPartition, Failure> {
    let name = manifest::name_of(&manifest);
    let job = match manifest::parse(manifest, overrides, output) {
        Ok(job) => job,
        Err(violations) => {
            return Ok(PlannedPartition {
                name,
                violations,
                partitions: Vec::new(),
                workers: 0,
                effects: Vec::new(),
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
            id: spec.partition_id(instance),
            spec: spec.partition().clone(),
        })
        .collect();
    let fit = fit(&spec).await?;
    Ok(PlannedPartition {
        name,
        violations: Vec::new(),
        partitions,
        workers: spec.workers_per_instance(),
        effects: first.effects,
        reasons: first.reasons,
        fit: Some(fit),
    })
}

/// Whether the partitions of a job fit beside what there is and what those ahead in the line could have now.
async fn fit(job: &JobSpec, connection: &Connection) -> Result<Fit, Failure> {
    let controller = &connection.controller;
    let agents = controller.ipu_attributes(&[]).await.map_err(controller_failure)?;
    let agents = agents
        .into_iter()
        .map(|agent| (agent.agent, agent.ipus))
        .collect();
    let Ok(found) = Topology::from_agents(&agents) else {
        return Ok(Fit {
            verdict: FitResult::Unknown,
            why: "the controller does not tell its hardware".to_owned(),
        });
    };
    let partitions = controller
        .list_partitions(None)
        .await
        .map_err(controller_failure)?;
    let mut inventory =
        Inventory::observe(&found.topology, &found.unhealthy, &partitions, |_| true).inventory;
    let request =
        PlacementRequest::of_size(job.partition().size).in_allocation(job.partition().allocation.clone());
    let ahead = ahead(job, connection).await?;
    let mut held = None;
    for entry in &ahead {
        let request = PlacementRequest::of_size(entry.spec.size).in_allocation(entry.spec.allocation.clone());
        match place(&inventory, &request, &FirstFit) {
            Placement::Fits(block) => inventory
                .occupy(entry.id.clone(), block)
                .map_err(|error| Failure::because(Code::Bug, "try the line out", error))?,
            _ if entry.overtaken >= QueuePolicy::default().overtake_limit => held = Some(entry),
            _ => {}
        }
    }
    let line = match ahead.as_slice() {
        [] => String::new(),
        [one] => format!("; ahead in the line is {}", one.id),
        [first, rest @ ..] => format!("; ahead in the line are {} and {} more", first.id, rest.len()),
    };
    for instance in 0..job.instances() {
        match place(&inventory, &request, &FirstFit) {
            Placement::Fits(block) => inventory
                .occupy(job.partition_id(instance), block)
                .map_err(|error| Failure::because(Code::Bug, "try the partitions out", error))?,
            Placement::Impossible(why) => {
                let reason = Reason::from(why);
                let verdict = if never_fits(&reason) {
                    FitResult::Never
                } else {
                    FitResult::Waits
                };
                return Ok(Fit {
                    verdict,
                    why: format!("instance {instance}: {}{line}", reason.message),
                });
            }
            other => {
                return Err(Failure::new(
                    Code::Bug,
                    format!("an answer that is not known: {other:?}"),
                ));
            }
        }
    }
    if let Some(held) = held {
        return Ok(Fit {
            verdict: FitResult::Waits,
            why: format!("{} was passed over often enough and goes first{line}", held.id),
        });
    }
    Ok(Fit {
        verdict: FitResult::Now,
        why: format!(
            "{} of {} IPUs are free then",
            inventory.free(),
            found.topology.ipus()
        ),
    })
}

/// Those who wait at this controller and would be served before a job that came now, in that order.
async fn ahead(job: &JobSpec, connection: &Connection) -> Result<Vec<Entry>, Failure> {
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

fn text_of(answer: &PlanOutput) -> String {
    let mut text = String::new();
    for job in &answer.jobs {
        text.push_str(&format!("IPUJob {}\n", job.name));
        for violation in &job.violations {
            text.push_str(&format!("  cannot run: {violation}\n"));
        }
        if !job.partitions.is_empty() {
            let mut table = Table::new(&["INSTANCE", "IPUS", "GCDS", "REPLICAS", "WORKERS"]);
            for wanted in &job.partitions {
                table.row([
                    wanted.instance.to_string(),
                    wanted.spec.size.to_string(),
                    wanted.spec.gcds.to_string(),
                    wanted.spec.replicas.to_string(),
                    job.workers.to_string(),
                ]);
            }
            text.extend(table.text().lines().map(|line| format!("  {line}\n")));
        }
        for effect in &job.effects {
            let Effect::EnsurePartition { partition, spec, .. } = effect else {
                continue;
            };
            text.push_str(&format!(
                "  first: ask for partition {partition}, size {}\n",
                spec.size
            ));
        }
        if let Some(fit) = &job.fit {
            let verdict = match fit.verdict {
                FitResult::Now => "fits now",
                FitResult::Unknown => "may fit",
                FitResult::Waits => "would wait",
                FitResult::Never => "cannot fit",
            };
            text.push_str(&format!("  {verdict}: {}\n", fit.why));
        }
    }
    text
}
