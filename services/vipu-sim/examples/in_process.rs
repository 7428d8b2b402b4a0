//! A controller inside this process that loses a reply on purpose: the partition is made, the caller cannot know.
#![expect(clippy::print_stdout, reason = "a program for people to look at")]

use std::error::Error;

use ipu_core::{IpuCount, PartitionId, PartitionSpec, Topology};
use ipu_vipu_client::{
    ConnectOptions, CreatePartition, GrpcController, VipuController as _, WaitOptions, ensure_present,
};
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
        .of(Method::CreatePartition)
        .times(1);
    simulator.faults().add(lost);
    match controller.create_partition(request.clone()).await {
        Ok(made) => println!("{made} was made"),
        Err(error) => println!("no reply: {error}"),
    }
    println!(
        "the Pod holds {} partition",
        controller.list_partitions(None).await?.len()
    );

    // Asking until it is there is safe: the id follows from the caller.
    ensure_present(&controller, &request, &WaitOptions::default()).await?;
    println!("{id}: {:?}", controller.partition_status(&id).await?.state);
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("a lost reply does no harm");
}
