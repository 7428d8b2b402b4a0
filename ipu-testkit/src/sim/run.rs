//! One simulation: a phase with faults, a phase without faults until all jobs settle, then the deletion of
//! all jobs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{EntryState, JobPhase, PartitionId, QueueDecision, RestartPolicy, Timestamp};
use ipu_ledger::UsageLog as _;

use super::adversary::{inject_next, submit};
use super::cordons::uncordon;
use super::hosts::{other_ledger, repair, supervise};
use super::invariants::{
    BrokenInvariant, invariant_every_job_settles, invariant_no_request_waits_needlessly,
    invariant_nothing_is_leaked,
};
use super::lists::list_all;
use super::outages::come_up;
use super::processes::ProcessBehaviour;
use super::report::{SimReport, add};
use super::world::SimWorld;
use super::{SimFailure, SimOptions, SimReplay};

/// Time for all jobs to settle without faults, in virtual seconds: longer than the maximum start deadline,
/// session, clean-up time, back-off and fence in sequence.
const SETTLE_TIMEOUT: u64 = 3600;

/// Time to release everything at the end, in virtual seconds.
const CLEANUP_TIMEOUT: u64 = 3600;

/// Interval of the checks for settled jobs, in virtual seconds.
const CHECK_INTERVAL: u64 = 5;

/// Number of consecutive checks without a change after which all jobs count as settled: longer than a fence.
const QUIET_ROUNDS: u32 = 8;

/// Runs the simulation of `seed`.
pub(super) fn replay(seed: u64, options: &SimOptions) -> SimReplay {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("the runtime starts");
    let world = runtime.block_on(async { SimWorld::new(seed, options) });
    let result = catch_unwind(AssertUnwindSafe(|| runtime.block_on(run_phases(&world))));
    if let Err(panic) = result {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.record_violation(BrokenInvariant {
            invariant: "nothing_panics",
            message: text.unwrap_or_else(|| "a panic without a message".into()),
        });
    }
    // Tasks and the simulation reference each other: both end with the runtime.
    let mut report = {
        let mut state = world.state();
        state.drivers.clear();
        std::mem::take(&mut state.report)
    };
    report.cases = 1;
    for (_, controller) in &world.controllers {
        add(&mut report.call_faults, &controller.injected());
    }
    report.virtual_seconds = runtime
        .block_on(async { world.millis() })
        .saturating_sub(1_000_000)
        / 1000;
    drop(runtime);
    let mut state = world.state();
    let log = std::mem::take(&mut state.log);
    let outcome = match state.broken.take() {
        None => Ok(report),
        Some(BrokenInvariant { invariant, message }) => Err(SimFailure {
            seed,
            invariant,
            message,
            log: log.clone(),
        }),
    };
    SimReplay { log, outcome }
}

async fn run_phases(world: &Arc<SimWorld>) {
    let mut copy = None;
    submit(world);
    supervise(world);
    for _ in 0..world.options.steps {
        let pause = world.below(3_000);
        tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        inject_next(world, &mut copy).await;
        if !continues(world).await {
            return;
        }
    }
    calm_down(world);
    while uncordon(world).await {}
    if settle(world).await {
        end(world).await;
    }
}

/// Supervises drivers and checks invariants; returns whether the simulation continues.
async fn continues(world: &Arc<SimWorld>) -> bool {
    let ended: Vec<_> = {
        let mut state = world.state();
        let ended = state.drivers.iter_mut().flat_map(|driver| {
            let (over, on): (Vec<_>, Vec<_>) = driver.tasks.drain(..).partition(|task| task.is_finished());
            driver.tasks = on;
            over
        });
        ended.collect()
    };
    for task in ended {
        if let Err(error) = task.await
            && error.is_panic()
        {
            world.record_violation(BrokenInvariant {
                invariant: "nothing_panics",
                message: format!("a driver panicked: {error}"),
            });
        }
    }
    supervise(world);
    world.check();
    world.state().broken.is_none()
}

/// Stops faults. Deletes jobs that never end by themselves.
fn calm_down(world: &Arc<SimWorld>) {
    world.log("world", "faults stop");
    for (_, controller) in &world.controllers {
        controller.set_fault_rate(0);
        controller.finish_dropped_calls(0);
    }
    come_up(world);
    list_all(world);
    world.processes().calm_down(world.millis());
    let mut state = world.state();
    state.behaviour = ProcessBehaviour::Calm;
    for job in &mut state.jobs {
        let endless = matches!(job.spec.restart(), RestartPolicy::Always { .. });
        job.deleted |= endless;
    }
}

/// Waits until every job has finished, is suspended, or waits with a reason, and the state is stable.
async fn settle(world: &Arc<SimWorld>) -> bool {
    let until = world.millis() + SETTLE_TIMEOUT * 1000;
    let mut quiet = 0;
    let mut revision = world.store.revision();
    while quiet < QUIET_ROUNDS {
        tokio::time::sleep(Duration::from_secs(CHECK_INTERVAL)).await;
        if !continues(world).await {
            return false;
        }
        let unsettled = unsettled(world);
        if world.millis() > until {
            world.expect(invariant_every_job_settles(&unsettled));
            let unsettled = format!("the ledger still changes after {SETTLE_TIMEOUT} s");
            world.expect(invariant_every_job_settles(&[unsettled]));
            return false;
        }
        let same = world.store.revision() == revision;
        revision = world.store.revision();
        let drivers = 0..world.profile.drivers;
        let all_run = drivers
            .into_iter()
            .all(|driver| world.suspended_until(driver).is_none());
        quiet = if same && all_run && unsettled.is_empty() {
            quiet + 1
        } else {
            0
        };
    }
    world.log("world", "all jobs have settled");
    let queue = if world.profile.refuses_ipus {
        // A ledger that just started does not know of the refusals.
        world.evaluate_queue(&world.store.entries())
    } else {
        other_ledger(world).await.queue().await.unwrap_or_default()
    };
    let startable = queue
        .into_iter()
        .filter(|(_, verdict)| matches!(verdict, QueueDecision::Start { .. }));
    let startable = startable.map(|(id, _)| id).filter(|id| !is_abandoned(world, id));
    let startable: Vec<PartitionId> = startable.collect();
    world.expect(invariant_no_request_waits_needlessly(&startable));
    world.state().broken.is_none()
}

/// Returns whether the owner of a request was deleted by force, so that it does not retry. A process that is
/// still stopping keeps the request in the queue.
fn is_abandoned(world: &SimWorld, id: &PartitionId) -> bool {
    let entries = world.store.entries();
    let owner = entries.get(id).and_then(|entry| entry.owner.as_ref());
    let state = world.state();
    state
        .jobs
        .iter()
        .any(|job| job.removed && Some(&job.owner) == owner)
}

/// Returns the jobs that have not settled, with their states.
fn unsettled(world: &SimWorld) -> Vec<String> {
    let entries = world.store.entries();
    let state = world.state();
    let unsettled = state.jobs.iter().enumerate().filter(|(_, job)| {
        !job.removed && {
            let waits = entries.values().any(|entry| {
                entry.owner.as_ref() == Some(&job.owner) && matches!(entry.state, EntryState::Waiting { .. })
            });
            let unsettled = !job.reasons.is_empty();
            let rests = job.status.phase.is_finished()
                || job.status.phase == JobPhase::Suspended
                || job.reasons.iter().any(|code| code == "ScaledToZero")
                || (waits && unsettled);
            job.deleted || !rests
        }
    });
    let unsettled = unsettled.map(|(number, job)| {
        format!(
            "job {number} is {:?} because {}",
            job.status.phase,
            job.reasons.join(", ")
        )
    });
    unsettled.collect()
}

/// Deletes all jobs and checks that nothing is left.
async fn end(world: &Arc<SimWorld>) {
    world.log("world", "all jobs are deleted");
    for job in &mut world.state().jobs {
        job.deleted = true;
    }
    let until = world.millis() + CLEANUP_TIMEOUT * 1000;
    loop {
        tokio::time::sleep(Duration::from_secs(CHECK_INTERVAL)).await;
        if !continues(world).await {
            return;
        }
        release_quarantined(world).await;
        let left: Vec<PartitionId> = world
            .controllers
            .iter()
            .flat_map(|(_, controller)| controller.ids())
            .filter(PartitionId::is_derived)
            .collect();
        let entries = world.store.entries();
        let all_deleted = {
            let state = world.state();
            let left = state.flood.is_none() || state.flood_is_over;
            left && state.jobs.iter().all(|job| job.removed)
        };
        let clean = invariant_nothing_is_leaked(&entries, &left);
        if all_deleted && clean.is_ok() {
            world.log("world", "nothing is left");
            check_usage(world).await;
            return;
        }
        if world.millis() > until {
            world.expect(invariant_every_job_settles(&unsettled(world)));
            world.expect(clean);
            return;
        }
    }
}

/// Checks that every hold is recorded once, with its duration.
async fn check_usage(world: &Arc<SimWorld>) {
    let records = world.usage.since(Timestamp::from_millis(0)).await;
    let found = {
        let mut state = world.state();
        state.report.holds = state.holds.len();
        // An old copy of the ledger lists holds that had ended.
        if state.restored {
            return;
        }
        state.holds.compare(&records.unwrap_or_default())
    };
    world.expect(found);
}

/// After the restore of an old copy, orders the removal of quarantined partitions as an administrator would.
async fn release_quarantined(world: &Arc<SimWorld>) {
    if !world.state().restored {
        return;
    }
    let ledger = other_ledger(world).await;
    let entries = world.store.entries();
    let quarantined = entries
        .values()
        .filter(|entry| entry.state == EntryState::Quarantined);
    for entry in quarantined {
        // A failed removal is retried in the next round.
        let _ = ledger.release_quarantined(&entry.id).await;
    }
    repair(world, &ledger, "administrator").await;
}

/// Returns the sum of many reports.
pub(super) fn sum<'a>(reports: impl IntoIterator<Item = &'a SimReport>) -> SimReport {
    let mut sum = SimReport::default();
    reports.into_iter().for_each(|report| sum.merge(report));
    sum
}
