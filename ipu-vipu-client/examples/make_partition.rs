//! Creates a partition, waits until it is active, prints its devices, and removes it.
//!
//! `cargo run -p ipu-vipu-client --example make_partition -- HOST:PORT`; without an address it starts a
//! simulated controller in this process.
#![expect(clippy::print_stdout, reason = "a program for people to look at")]

use std::error::Error;

use ipu_core::hardware::{PartitionSpec, PartitionState, Topology};
use ipu_core::{IpuCount, PartitionId};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, CreatePartition, GrpcController, VipuController as _, VipuError,
};
use tokio::time::{Duration, sleep};
use vipu_sim::Simulator;

/// Pause between two polls of the state.
const POLL_PAUSE: Duration = Duration::from_millis(50);

async fn run_once(endpoint: &ControllerEndpoint) -> Result<(), Box<dyn Error>> {
    let controller = GrpcController::connect(endpoint, &ConnectOptions::default())?;
    println!("V-IPU {}", controller.version().await?);
    let id = PartitionId::new("example")?;
    let request = CreatePartition {
        id: id.clone(),
        spec: PartitionSpec::of_size(IpuCount::try_from(4)?),
        ipus: Vec::new(),
    };
    controller.create_partition(request).await?;
    while controller.partition_status(&id).await?.state != PartitionState::Active {
        sleep(POLL_PAUSE).await;
    }
    let config = controller.ipuof_config(&id, None).await?;
    for (number, gcd) in config.gcds.iter().enumerate() {
        println!("GCD {number}: {} devices", gcd.devices.len());
    }
    controller.remove_partition(&id, false).await?;
    loop {
        match controller.partition_status(&id).await {
            Err(VipuError::NotFound { .. }) => break,
            answer => drop(answer?),
        }
        sleep(POLL_PAUSE).await;
    }
    println!("{id} is removed");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(address) => run_once(&address.parse()?).await,
        None => {
            let simulator = Simulator::builder(Topology::pod16()).start().await?;
            run_once(&simulator.addr().try_into()?).await
        }
    }
}

#[tokio::test]
async fn the_example_runs_on_a_simulated_pod() {
    let simulator = Simulator::builder(Topology::pod16())
        .start()
        .await
        .expect("a port is free");
    let endpoint = simulator.addr().try_into().expect("an address is an endpoint");
    run_once(&endpoint).await.expect("the IPU-POD is empty");
}
