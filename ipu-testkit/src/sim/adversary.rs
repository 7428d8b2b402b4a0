//! Random events: jobs are submitted and deleted, drivers and controllers crash, hardware fails.

use std::sync::Arc;
use std::time::Duration;

use ipu_core::{EntryState, JobStatus, OnNoCapacity, OwnerLiveness, PartitionState};

use super::cordons::{cordon, uncordon};
use super::flood::flood;
use super::hosts::{other_ledger, record_repair, repair, suspend_any};
use super::jobs::{Job, int, random_job};
use super::lists;
use super::outages::{come_up, empty_any, go_down};
use super::owners::is_quarantined;
use super::store::Entries;
use super::world::SimWorld;

/// Injects one random event, drawn by weight.
pub(super) async fn inject_next(world: &Arc<SimWorld>, copy: &mut Option<Entries>) {
    match world.below(100) {
        0..=25 => submit(world),
        26..=29 => delete(world),
        30..=31 => erase(world),
        32..=34 => suspend(world),
        35..=37 => scale(world),
        38..=43 => {
            let driver = world.below(u32::try_from(world.profile.drivers).unwrap_or(1)) as usize;
            if world.state().drivers[driver].incarnation.is_some() {
                world.crash(driver, "at random");
            }
        }
        44..=61 => break_partition(world),
        62..=63 => heal_partition(world),
        64..=66 => go_down(world),
        67..=74 => come_up(world),
        75 => empty_any(world),
        76..=81 => hurt_process(world),
        82..=85 => *copy = Some(world.store.entries()),
        86..=89 if world.profile.restores => restore(world, copy.take()).await,
        92..=93 => suspend_any(world),
        94..=95 => lists::edit(world),
        96..=97 => cordon(world).await,
        98 => drop(uncordon(world).await),
        99 => flood(world),
        90..=91 => {
            let pause = Duration::from_secs(10 + u64::from(world.below(50)));
            world.log("world", format_args!("no event for {} s", pause.as_secs()));
            tokio::time::sleep(pause).await;
        }
        _ => {}
    }
}

pub(super) fn submit(world: &SimWorld) {
    let now = world.now();
    let mut state = world.state();
    let number = state.jobs.len();
    if number >= world.profile.jobs {
        return;
    }
    let raw = random_job(number, world.profile.largest, &mut state.random);
    let on_no_capacity = if state.random.chance(10) {
        OnNoCapacity::Reject
    } else {
        OnNoCapacity::Queue
    };
    let mut job = Job::new(raw, on_no_capacity, now);
    // Every topology has that many IPUs in its first link domain.
    job.pins_ipus = number % 3 == 1 && job.spec.ipus_per_instance().get() <= 4;
    let message = format!(
        "job {number} is submitted: {} instances of {} IPUs, {} workers, {:?}, {:?}, {:?}, priority {}, {on_no_capacity:?}",
        job.spec.instances(),
        job.spec.ipus_per_instance(),
        job.spec.workers_per_instance(),
        job.spec.shape(),
        job.spec.restart(),
        job.spec.clean_pod_policy(),
        job.spec.priority(),
    );
    state.jobs.push(job);
    state.report.jobs += 1;
    drop(state);
    world.log("world", message);
}

/// Returns an existing job, if there is one.
fn any_job(world: &SimWorld) -> Option<usize> {
    let mut state = world.state();
    let existing: Vec<usize> = (0..state.jobs.len())
        .filter(|job| !state.jobs[*job].removed)
        .collect();
    if existing.is_empty() {
        return None;
    }
    Some(*state.random.pick(&existing))
}

fn delete(world: &SimWorld) {
    if let Some(job) = any_job(world) {
        world.state().jobs[job].deleted = true;
        world.count_event("job deleted");
        world.log("world", format_args!("job {job} is deleted"));
    }
}

/// Deletes a job by force, without finalization by its driver; its processes are stopped.
fn erase(world: &SimWorld) {
    let Some(job) = any_job(world) else { return };
    let now = world.millis();
    let entries = world.store.entries();
    {
        let mut processes = world.processes();
        // No owner claims the partitions of the job any more.
        processes.exempt(|other, id, name| {
            let controller = world.controller(name);
            other != job
                || !is_quarantined(&entries, id)
                || controller.is_some_and(|controller| controller.ids().contains(id))
        });
        let mut state = world.state();
        let behaviour = state.behaviour;
        for which in processes.all() {
            if which.0 == job {
                processes.stop(which, None, behaviour, now, &mut state.random);
            }
        }
        let erased = &mut state.jobs[job];
        erased.removed = true;
        erased.status = JobStatus::default();
        // The driver that reconciles the job is cut off, because the job no longer exists.
        let driver = erased.driver.take();
        drop((state, processes));
        // A suspended driver notices when it resumes.
        if let Some(driver) = driver.filter(|driver| world.suspended_until(*driver).is_none()) {
            world.crash(driver, "because its job was erased");
        }
    }
    world.count_event("job erased");
    world.log("world", format_args!("job {job} is deleted by force"));
}

fn suspend(world: &SimWorld) {
    if let Some(job) = any_job(world) {
        let mut state = world.state();
        let suspended = !state.jobs[job].spec.suspend();
        state.jobs[job].edit(|raw| raw.spec.suspend = Some(suspended));
        drop(state);
        world.count_event(if suspended { "job suspended" } else { "job resumed" });
        world.log(
            "world",
            format_args!("suspend of job {job} is set to {suspended}"),
        );
    }
}

fn scale(world: &SimWorld) {
    if let Some(job) = any_job(world) {
        let instances = world.below(4);
        world.state().jobs[job].edit(|raw| raw.spec.job_instances = Some(int(instances)));
        world.count_event("job scaled");
        world.log("world", format_args!("job {job} is scaled to {instances}"));
    }
}

fn break_partition(world: &SimWorld) {
    let all = world.controllers.iter().flat_map(|(name, controller)| {
        controller
            .held()
            .into_iter()
            .map(move |held| (name, controller, held.id))
    });
    let all: Vec<_> = all.filter(|(.., id)| id.is_derived()).collect();
    if !all.is_empty() {
        let at = world.below(u32::try_from(all.len()).unwrap_or(1)) as usize;
        let (name, controller, id) = &all[at];
        controller.break_partition(id);
        world.count_event("partition broken");
        world.log("world", format_args!("{id} at {name} fails"));
    }
}

/// Heals a partition: controllers try to repair partitions in error, and sometimes succeed.
fn heal_partition(world: &SimWorld) {
    for (name, controller) in &world.controllers {
        for held in controller.held() {
            if matches!(held.state, PartitionState::Failed { .. }) && world.chance(50) {
                controller.heal_partition(&held.id);
                world.count_event("partition healed");
                world.log("world", format_args!("{} at {name} heals", held.id));
            }
        }
    }
}

fn hurt_process(world: &SimWorld) {
    let now = world.millis();
    let all = world.processes().all();
    if all.is_empty() {
        return;
    }
    let which = all[world.below(u32::try_from(all.len()).unwrap_or(1)) as usize];
    if world.chance(70) {
        world.processes().lose(which, now);
        world.count_event("process lost");
        world.log("world", format_args!("{which:?} is lost"));
    } else {
        world.processes().delete(which);
        world.count_event("process vanished");
        world.log("world", format_args!("{which:?} vanishes"));
    }
}

/// Loses the ledger. Either an administrator restores an old copy: nothing runs meanwhile, and releases in
/// the copy are left out, because they would delete partitions that were requested again since. Or there is
/// no copy: processes continue, and the ledger is rebuilt from the claims of their owners.
async fn restore(world: &Arc<SimWorld>, old: Option<Entries>) {
    for driver in 0..world.profile.drivers {
        world.crash(driver, "for maintenance");
    }
    let now = world.millis();
    if old.is_some() {
        let mut processes = world.processes();
        for which in processes.all() {
            processes.lose(which, now);
        }
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    world.count_event(if old.is_some() {
        "ledger restored"
    } else {
        "ledger lost"
    });
    world.log(
        "world",
        if old.is_some() {
            "an old copy of the ledger is restored"
        } else {
            "the ledger is lost"
        },
    );
    world.state().restored = true;
    let kept = |entry: &ipu_core::Entry| !matches!(entry.state, EntryState::Releasing { .. });
    let old = old
        .unwrap_or_default()
        .into_iter()
        .filter(|(_, entry)| kept(entry));
    world.store.replace(old.collect());
    world.state().grants.clear();
    // The ledger had the only record of partitions that a controller had forgotten.
    world.processes().exempt(|_, id, name| {
        let controller = world.controller(name);
        controller.is_some_and(|controller| controller.ids().contains(id))
    });
    let ledger = other_ledger(world).await;
    let knows = world.chance(50);
    for _ in 0..3 {
        if knows {
            repair(world, &ledger, "administrator").await;
            continue;
        }
        // Without any information about the owners.
        let repaired = ledger.repair(&|_: &ipu_core::Entry| OwnerLiveness::Unknown).await;
        repaired.map_or_else(
            |error| world.log("administrator", error),
            |report| record_repair(world, "administrator", &report),
        );
    }
    if world.chance(15) {
        empty_any(world);
    }
}
