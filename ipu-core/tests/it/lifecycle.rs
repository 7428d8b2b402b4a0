//! The life cycle of jobs: case files, invariants, and a simulated cluster that applies plans.

mod cases;
mod checks;
mod job_event;
mod planner;
mod properties;
mod world;

use ipu_core::job::{Plan, check_plan, plan};

use world::JobWorld;

/// Returns the plan for the current observation, after `check_plan`.
fn checked_plan(world: &JobWorld) -> Plan {
    let plan = plan(&world.job, &world.observation);
    let broken = check_plan(&world.job, &world.observation, &plan);
    assert_eq!(broken, [], "{:#?}\n{plan:#?}", world.observation);
    plan
}

/// Runs one reconciliation: plans, and applies and records the plan.
fn reconcile(world: &mut JobWorld) -> Plan {
    let plan = checked_plan(world);
    world.reconcile(&plan).unwrap();
    plan
}
