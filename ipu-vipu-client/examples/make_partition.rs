//! Makes a partition, waits until it is active, shows how to reach its devices, and removes it.
//!
//! `cargo run -p ipu-vipu-client --example make_partition -- HOST:PORT`; without an address it starts a simulated
//! controller in this process.
#![expect(clippy::print_stdout, reason = "a program for people to look at")]

use std::error::Error;

use ipu_core::{IpuCount, PartitionId, PartitionSpec, Topology};
use ipu_vipu_client::{
    ConnectOptions, ControllerEndpoint, CreatePartition, GrpcController, Removal, RetryLayer, RetryOptions,
    VipuController as _, WaitOptions, ensure_absent, ensure_present, wait_active,
};
use vipu_sim::Simulator;

async fn make_one(endpoint: &ControllerEndpoint) -> Result<(), Box<dyn Error>> {
    let controller = GrpcController::connect(endpoint, &ConnectOptions::default())?;
    let controller = RetryLayer::new(controller, RetryOptions::default());
    println!("V-IPU {}", controller.version().await?);
    let id = PartitionId::new("example")?;
    let request = CreatePartition {
        id: id.clone(),
        spec: PartitionSpec::of_size(IpuCount::try_from(4)?),
        ipus: Vec::new(),
    };
    ensure_present(&controller, &request, &WaitOptions::default()).await?;
    wait_active(&controller, &id, &WaitOptions::default()).await?;
    let config = controller.ipuof_config(&id, None).await?;
    for (number, gcd) in config.gcds.iter().enumerate() {
        println!("GCD {number}: {} devices", gcd.devices.len());
    }
    ensure_absent(&controller, &id, Removal::Regular, &WaitOptions::default()).await?;
    println!("{id} is gone");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(address) => make_one(&address.parse()?).await,
        None => {
            let simulator = Simulator::builder(Topology::pod16()).start().await?;
            make_one(&simulator.addr().try_into()?).await
        }
    }
}

#[tokio::test]
async fn it_runs_on_a_simulated_pod() {
    let simulator = Simulator::builder(Topology::pod16())
        .start()
        .await
        .expect("a port is free");
    let endpoint = simulator.addr().try_into().expect("an address is an endpoint");
    make_one(&endpoint).await.expect("the Pod is empty");
}
