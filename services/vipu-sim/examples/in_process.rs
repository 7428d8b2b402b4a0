//! A controller inside this process that loses a reply on purpose: it creates the partition, but the caller
//! does not get the reply.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use ipu_core::hardware::{PartitionSpec, Topology};
use ipu_core::{IpuCount, PartitionId};
use ipu_vipu_client::{ConnectOptions, CreatePartition, GrpcController, VipuController as _, VipuError};
use vipu_sim::{Fault, FaultKind, Method, Simulator};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let simulator = Simulator::builder(Topology::pod16()).start().await?;
    let controller = GrpcController::connect(&simulator.addr().try_into()?, &ConnectOptions::default())?;
    let id = PartitionId::new("example")?;
    let request = CreatePartition {
        id: id.clone(),
        spec: PartitionSpec::of_size(IpuCount::try_from(4)?),
        ipus: Vec::new(),
    };

    let lost = Fault::new(FaultKind::DropReply)
        .for_method(Method::CreatePartition)
        .times(1);
    simulator.faults().add(lost);
    match controller.create_partition(request.clone()).await {
        Ok(made) => println!("{made} was created"),
        Err(error) => println!("no reply: {error}"),
    }
    println!(
        "the IPU-POD holds {} partition",
        controller.list_partitions(None).await?.len()
    );

    // A retry is safe: the caller chooses the id.
    match controller.create_partition(request).await {
        Err(VipuError::AlreadyExists { id }) => println!("{id} exists"),
        answer => drop(answer?),
    }
    println!("{id}: {:?}", controller.partition_status(&id).await?.state);
    Ok(())
}

#[test]
fn the_example_survives_a_lost_reply() {
    main().expect("the example recovers from a lost reply");
}
