//! Places partitions on an IPU-POD until the next does not fit, and prints its blockers.
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use ipu_core::hardware::{Inventory, Topology};
use ipu_core::placement::{BestFit, PlacementRequest, place};
use ipu_core::{IpuCount, PartitionId, Reason};

fn main() -> Result<(), Box<dyn Error>> {
    let mut inventory = Inventory::new(&Topology::pod64());
    for (name, ipus) in [("a", 4), ("b", 16), ("c", 1), ("d", 32), ("e", 8)] {
        let request = PlacementRequest::of_size(IpuCount::try_from(ipus)?);
        match place(&inventory, &request, &BestFit) {
            Ok(block) => {
                println!("{name}: {ipus} IPUs at {block}");
                inventory.occupy(PartitionId::new(name)?, block)?;
            }
            Err(why) => println!("{name}: {}", Reason::from(why)),
        }
    }
    let sixteen = IpuCount::try_from(16)?;
    println!(
        "free: {}; partitions of 16 that fit now: {}",
        inventory.free(),
        inventory.fit_count(sixteen, None)
    );
    if let Some(blockers) = inventory.blockers_for(sixteen, None) {
        let names: Vec<String> = blockers.holders.iter().map(ToString::to_string).collect();
        println!(
            "for one of 16 to fit, this would have to end: {}",
            names.join(", ")
        );
    }
    Ok(())
}

#[test]
fn it_runs() {
    main().expect("every value in it is legal");
}
