//! A minimal third-party scheduler. It runs jobs on partitions of a simulated Pod16 and survives `kill -9`.
//!
//! `cargo run -p ipu-ledger --example embed_scheduler -- DIRECTORY JOB:IPUS...` keeps the ledger and the
//! simulator state in DIRECTORY. Each job prints a line and sleeps briefly on its partition. Run the example
//! again after a kill: it first releases the partitions of the dead process, using only the ledger and the
//! process ids in it.
#![expect(clippy::print_stdout, reason = "a program for people to look at")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{ControllerName, JobKey, Topology};
use ipu_ledger::{Entry, Ledger, LedgerOptions, Owner, OwnerLiveness, PartitionSpec, Request, SqliteStore};
use ipu_vipu_client::{ConnectOptions, ControllerEndpoint, ControllerPool, GrpcController, VipuController};
use vipu_sim::Simulator;

type Partitions = Ledger<GrpcController, SqliteStore>;

/// Returns the identity of the running process `pid`: its id and start time, because the kernel reuses ids.
fn started(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.rsplit_once(") ")?.1;
    Some(format!("{pid}@{}", after_name.split(' ').nth(19)?))
}

fn life_of(entry: &Entry) -> OwnerLiveness {
    let recorded = entry.holder.split('@').next().and_then(|pid| pid.parse().ok());
    match recorded.map(started) {
        Some(now) if now.as_deref() == Some(entry.holder.as_str()) => OwnerLiveness::Live,
        Some(_) => OwnerLiveness::Dead,
        None => OwnerLiveness::Unknown,
    }
}

async fn run(partitions: Partitions, name: String, ipus: u32) -> Result<(), Box<dyn Error + Send + Sync>> {
    let owner = Owner {
        kind: "EmbeddedJob".into(),
        job: JobKey::new("stranger", name.as_str(), std::process::id().to_string())?,
    };
    let mut request = Request::of_instance(owner.clone(), 0, PartitionSpec::of_size(ipus.try_into()?));
    request.holder = started(std::process::id()).unwrap_or_default();
    let id = request.id.clone();
    let grant = partitions
        .ensure_active(request, &mut |waiting| {
            println!("{name} waits at {}: {}", waiting.position, waiting.reason.message);
        })
        .await?;
    println!("{name} runs on {} of {}", grant.id, grant.controller);
    tokio::time::sleep(Duration::from_millis(300)).await;
    partitions.release(&id, &owner, Some(grant.attempt)).await?;
    println!("{name} is done");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .ok_or("usage: embed_scheduler DIRECTORY JOB:IPUS...")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let pod = Simulator::builder(Topology::pod16())
        .state_file(directory.join("pod.json"))
        .start()
        .await?;
    let endpoint: ControllerEndpoint = pod.addr().to_string().parse()?;
    let controller = Arc::new(GrpcController::connect(&endpoint, &ConnectOptions::default())?);
    let pool = ControllerPool::single(ControllerName::new("pod16")?, Arc::clone(&controller));

    let mut options = LedgerOptions::default();
    // The simulator exits with its scheduler, so no call outlives either.
    options.settle = Duration::ZERO;
    options.liveness = Some(Arc::new(life_of));
    let partitions = Ledger::new(pool, SqliteStore::open(directory.join("ledger.db"))?, options);
    for action in partitions.repair(&life_of).await?.actions {
        println!("repaired: {} {}", action.label(), action.id());
    }
    let mut jobs = tokio::task::JoinSet::new();
    for job in arguments {
        let (name, ipus) = job.split_once(':').ok_or("a job is NAME:IPUS")?;
        jobs.spawn(run(partitions.clone(), name.to_owned(), ipus.parse()?));
    }
    while let Some(job) = jobs.join_next().await {
        job??;
    }
    println!(
        "{} partitions are left",
        controller.list_partitions(None).await?.len()
    );
    pod.shutdown().await;
    Ok(())
}
