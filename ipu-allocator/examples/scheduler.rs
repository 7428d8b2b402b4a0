//! Runs jobs on a simulated IPU-POD16: `scheduler DIRECTORY JOB:IPUS...`. After `kill -9`, the next run in
//! DIRECTORY releases the partitions of the killed one.
#![expect(clippy::print_stdout, reason = "people read the output")]

use std::{env, error::Error, fs, path::Path, sync::Arc, time::Duration};

use ipu_allocator::process::{ProcessHolder, ProcessLiveness};
use ipu_allocator::{Allocator, EnsureOutcome, Options, SqliteStore};
use ipu_core::allocator::{Phase, Release, Request};
use ipu_core::hardware::{PartitionSpec, Topology};
use ipu_core::{JobKey, Owner};
use ipu_vipu_client::{ConnectOptions, ControllerPool, GrpcController};
use tokio::time::{Instant, sleep};
use vipu_sim::Simulator;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

async fn run(allocator: Allocator, number: u32, name: String, ipus: u32, process: String) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(86_400);
    let owner = Owner::new(
        "Example",
        JobKey::new("example", name.as_str(), process.as_str())?,
    );
    let request =
        Request::of_instance(owner, number, PartitionSpec::of_size(ipus.try_into()?)).with_holder(process);
    allocator.ensure(request.clone(), Instant::now()).await?;
    if let Some(status) = allocator.view().await?.queue().get(&request.id) {
        println!("{name} waits at {}: {}", status.position, status.reason);
    }
    match allocator.ensure(request.clone(), until).await? {
        EnsureOutcome::Entry(entry) if entry.phase == Phase::Active => {
            println!("{name} runs on {}", entry.id)
        }
        other => return Err(format!("{name} has no partition: {other:?}").into()),
    }
    sleep(Duration::from_millis(300)).await;
    allocator.release(Release::of(&request), until).await?;
    println!("{name} is done");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = env::args()
        .nth(1)
        .ok_or("usage: scheduler DIRECTORY JOB:IPUS...")?;
    fs::create_dir_all(&directory)?;
    let file = |name: &str| Path::new(&directory).join(name);
    let pod = Simulator::builder(Topology::pod16()).state_file(file("pod.json"));
    let pod = pod.start().await?;
    let endpoint = pod.addr().try_into()?;
    let controller = GrpcController::connect(&endpoint, &ConnectOptions::default())?;
    // The name stays, although the port of the simulator changes.
    let pool = ControllerPool::single("pod16".parse()?, Arc::new(controller));
    // The jobs end with this process.
    let process = ProcessHolder::own()?.to_string();
    let mut options = Options::default();
    options.liveness = Arc::new(ProcessLiveness);
    // The simulator ends with this process, and every call with it.
    options.times.settle = Duration::ZERO;
    let allocator = Allocator::start(options, Arc::new(SqliteStore::at(file("ledger.db"))?), pool);
    allocator.leading().wait_for(|leading| *leading).await?;
    let mut jobs = tokio::task::JoinSet::new();
    // Two jobs may have one name.
    for (number, job) in (0..).zip(env::args().skip(2)) {
        let (name, ipus) = job.split_once(':').ok_or("a job is NAME:IPUS")?;
        jobs.spawn(run(
            allocator.clone(),
            number,
            name.to_owned(),
            ipus.parse()?,
            process.clone(),
        ));
    }
    jobs.join_all().await.into_iter().collect::<Result<()>>()?;
    println!(
        "partitions left: {}",
        allocator.view().await?.state().entries().count()
    );
    allocator.stop().await;
    Ok(())
}
