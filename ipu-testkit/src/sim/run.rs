//! One simulation from beginning to end: wild times, then calm ones until everybody has settled, then the end of everybody.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ipu_core::{EntryState, JobPhase, PartitionId, QueueDecision, RestartPolicy, Timestamp};
use ipu_ledger::UsageLog as _;

use super::adversary::{inject_next, submit};
use super::cordons::uncordon;
use super::hosts::{other_ledger, repair, supervise};
use super::invariants::{
    BrokenInvariant, invariant_every_job_settles, invariant_nobody_waits_for_nothing,
    invariant_nothing_is_leaked,
};
use super::lists::list_all;
use super::outages::come_up;
use super::processes::ProcessBehaviour;
use super::report::{SimReport, add};
use super::world::SimWorld;
use super::{SimFailure, SimOptions, SimReplay};

/// How long everybody has to settle in calm times, in virtual seconds: longer than the longest of start deadlines,
/// sessions, clean-up times, back-offs and fences one after the other.
const CALM: u64 = 3600;

/// How long everything has to be given back at the end.
const END: u64 = 3600;

/// The pause between two looks at whether everybody has settled.
const CHECK_INTERVAL: u64 = 5;

/// How often in a row nothing may have changed for everybody to count as settled: longer than a fence.
const QUIET_ROUNDS: u32 = 8;

/// Runs the simulation of `seed`.
pub(super) fn replay(seed: u64, options: &SimOptions) -> SimReplay {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let world = runtime.block_on(async { SimWorld::new(seed, options) });
    let lived = catch_unwind(AssertUnwindSafe(|| runtime.block_on(live(&world))));
    if let Err(panic) = lived {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.breaks(BrokenInvariant {
            invariant: "nothing_panics",
            message: text.unwrap_or_else(|| "a panic without a message".into()),
        });
    }
    // Tasks hold the world and it holds them: they end with the runtime.
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

async fn live(world: &Arc<SimWorld>) {
    let mut copy = None;
    submit(world);
    supervise(world);
    for _ in 0..world.options.steps {
        let pause = world.below(3_000);
        tokio::time::sleep(Duration::from_millis(u64::from(pause))).await;
        inject_next(world, &mut copy).await;
        if !goes_on(world).await {
            return;
        }
    }
    calm_down(world);
    while uncordon(world).await {}
    if settle(world).await {
        end(world).await;
    }
}

/// Looks after drivers and invariants; says whether the simulation goes on.
async fn goes_on(world: &Arc<SimWorld>) -> bool {
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
            world.breaks(BrokenInvariant {
                invariant: "nothing_panics",
                message: format!("a driver panicked: {error}"),
            });
        }
    }
    supervise(world);
    world.check();
    world.state().broken.is_none()
}

/// Faults stop. Jobs that never end by themselves are told to.
fn calm_down(world: &Arc<SimWorld>) {
    world.say("world", "faults stop");
    for (_, controller) in &world.controllers {
        controller.set_fault_rate(0);
        controller.finish_dropped_calls(0);
    }
    come_up(world);
    list_all(world);
    world.processes().calm_down(world.millis());
    let mut state = world.state();
    state.manners = ProcessBehaviour::Calm;
    for job in &mut state.jobs {
        let endless = matches!(job.spec.restart(), RestartPolicy::Always { .. });
        job.deleted |= endless;
    }
}

/// Waits until every job has finished, holds nothing, or waits with a reason, and nothing moves any more.
async fn settle(world: &Arc<SimWorld>) -> bool {
    let until = world.millis() + CALM * 1000;
    let mut quiet = 0;
    let mut revision = world.store.revision();
    while quiet < QUIET_ROUNDS {
        tokio::time::sleep(Duration::from_secs(CHECK_INTERVAL)).await;
        if !goes_on(world).await {
            return false;
        }
        let restless = restless(world);
        if world.millis() > until {
            world.expect(invariant_every_job_settles(&restless));
            let told = format!("the ledger is still written to after {CALM} s");
            world.expect(invariant_every_job_settles(&[told]));
            return false;
        }
        let same = world.store.revision() == revision;
        revision = world.store.revision();
        let drivers = 0..world.profile.drivers;
        let all_run = drivers
            .into_iter()
            .all(|driver| world.suspended_until(driver).is_none());
        quiet = if same && all_run && restless.is_empty() {
            quiet + 1
        } else {
            0
        };
    }
    world.say("world", "everybody has settled");
    let line = other_ledger(world).await.queue().await.unwrap_or_default();
    let could = line
        .into_iter()
        .filter(|(_, verdict)| matches!(verdict, QueueDecision::Start { .. }));
    let could = could.map(|(id, _)| id).filter(|id| !is_left(world, id));
    let could: Vec<PartitionId> = could.collect();
    world.expect(invariant_nobody_waits_for_nothing(&could));
    world.state().broken.is_none()
}

/// Whether the owner of a request was erased, so that it does not ask again. A process that is still stopping keeps the
/// request in the queue.
fn is_left(world: &SimWorld, id: &PartitionId) -> bool {
    let entries = world.store.entries();
    let owner = entries.get(id).and_then(|entry| entry.owner.as_ref());
    let state = world.state();
    state.jobs.iter().any(|job| job.gone && Some(&job.owner) == owner)
}

/// What jobs have not come to rest, and how they are.
fn restless(world: &SimWorld) -> Vec<String> {
    let entries = world.store.entries();
    let state = world.state();
    let restless = state.jobs.iter().enumerate().filter(|(_, job)| {
        !job.gone && {
            let waits = entries.values().any(|entry| {
                entry.owner.as_ref() == Some(&job.owner) && matches!(entry.state, EntryState::Waiting { .. })
            });
            let told = !job.reasons.is_empty();
            let rests = job.status.phase.is_finished()
                || job.status.phase == JobPhase::Suspended
                || job.reasons.iter().any(|code| code == "ScaledToZero")
                || (waits && told);
            job.deleted || !rests
        }
    });
    let told = restless.map(|(number, job)| {
        format!(
            "job {number} is {:?} because {}",
            job.status.phase,
            job.reasons.join(", ")
        )
    });
    told.collect()
}

/// All owners go: nothing may be left.
async fn end(world: &Arc<SimWorld>) {
    world.say("world", "all jobs are deleted");
    for job in &mut world.state().jobs {
        job.deleted = true;
    }
    let until = world.millis() + END * 1000;
    loop {
        tokio::time::sleep(Duration::from_secs(CHECK_INTERVAL)).await;
        if !goes_on(world).await {
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
        let all_gone = {
            let state = world.state();
            let left = state.flood.is_none() || state.flood_is_over;
            left && state.jobs.iter().all(|job| job.gone)
        };
        let clean = invariant_nothing_is_leaked(&entries, &left);
        if all_gone && clean.is_ok() {
            world.say("world", "nothing is left");
            check_usage(world).await;
            return;
        }
        if world.millis() > until {
            world.expect(invariant_every_job_settles(&restless(world)));
            world.expect(clean);
            return;
        }
    }
}

/// Every hold is recorded once, and for as long as it lasted.
async fn check_usage(world: &Arc<SimWorld>) {
    let records = world.usage.since(Timestamp::from_millis(0)).await;
    let found = {
        let mut state = world.state();
        state.report.holds = state.holds.len();
        // An old copy of the ledger tells of holds that had ended.
        if state.restored {
            return;
        }
        state.holds.compare(&records.unwrap_or_default())
    };
    world.expect(found);
}

/// After an old copy was restored, a person orders the removal of what nobody owns.
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
        // What does not go now goes with the next round.
        let _ = ledger.release_quarantined(&entry.id).await;
    }
    repair(world, &ledger, "administrator").await;
}

/// The sum of many reports.
pub(super) fn sum<'a>(reports: impl IntoIterator<Item = &'a SimReport>) -> SimReport {
    let mut sum = SimReport::default();
    reports.into_iter().for_each(|report| sum.merge(report));
    sum
}
