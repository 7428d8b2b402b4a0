//! The life of jobs: cases, invariants, and a small world in which plans are applied.

mod cases;
mod checks;
mod properties;

use ipu_core::{Plan, check_plan, plan};
use ipu_testkit::JobWorld;

/// The plan for what is there, checked.
fn plan_of(world: &JobWorld) -> Plan {
    let plan = plan(&world.job, &world.seen);
    let broken = check_plan(&world.job, &world.seen, &plan);
    assert_eq!(broken, [], "{:#?}\n{plan:#?}", world.seen);
    plan
}

/// One whole pass.
fn pass(world: &mut JobWorld) -> Plan {
    let plan = plan_of(world);
    world.reconcile(&plan).unwrap();
    plan
}
