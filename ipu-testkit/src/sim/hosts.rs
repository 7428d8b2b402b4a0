//! Scheduler hosts: they start, get jobs, are suspended, and repair the ledger.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ipu_ledger::{Ledger, RepairReport};
use ipu_vipu_client::ControllerPool;
use tokio::time::{Instant, Sleep, sleep_until};

use super::RepairPolicy;
use super::driver::{JobDriver, SimLedger};
use super::lists;
use super::liveness::Alive;
use super::world::SimWorld;

/// Maximum downtime of a driver, in milliseconds.
const MAX_DOWNTIME_MS: u32 = 8_000;

/// Maximum suspension of a driver, in milliseconds: three times the time within which a call takes effect.
const MAX_SUSPENSION_MS: u32 = 90_000;

/// Task of a driver. It is not polled while the driver is suspended; calls in flight continue.
struct Task<F> {
    world: Arc<SimWorld>,
    driver: usize,
    work: Pin<Box<F>>,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match self.world.suspended_until(self.driver) {
                Some(until) => self.pause = Some(Box::pin(sleep_until(until))),
                None => return self.work.as_mut().poll(context),
            }
        }
    }
}

/// Spawns `work` on a driver until it crashes.
fn spawn(world: &Arc<SimWorld>, driver: usize, work: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(Task {
        world: Arc::clone(world),
        driver,
        work: Box::pin(work),
        pause: None,
    });
    world.state().drivers[driver].tasks.push(task);
}

/// Suspends any running driver.
pub(super) fn suspend_any(world: &SimWorld) {
    let driver = world.below(u32::try_from(world.profile.drivers).unwrap_or(1)) as usize;
    if world.state().drivers[driver].incarnation.is_some() {
        suspend(world, driver);
    }
}

/// Suspends a driver, as SIGSTOP does, and resumes it later. Its clock advances meanwhile.
pub(super) fn suspend(world: &SimWorld, driver: usize) {
    let pause = Duration::from_millis(u64::from(world.below(MAX_SUSPENSION_MS)));
    let until = Instant::now() + pause;
    {
        let driven = &mut world.state().drivers[driver];
        driven.suspended_until = driven.suspended_until.max(Some(until));
    }
    world.count_event("driver suspended");
    world.log(
        "world",
        format_args!("driver {driver} is suspended for {:.3} s", pause.as_secs_f64()),
    );
}

/// Starts drivers after their downtime, and assigns them the unassigned jobs.
pub(super) fn supervise(world: &Arc<SimWorld>) {
    for number in 0..world.profile.drivers {
        let pause = u64::from(world.below(MAX_DOWNTIME_MS));
        let now = world.millis();
        let mut state = world.state();
        let driver = &mut state.drivers[number];
        let rested = driver.down_since.is_none_or(|since| since + pause <= now);
        if driver.incarnation.is_none() && rested {
            driver.starts += 1;
            driver.incarnation = Some(driver.starts);
            let name = format!("d{number}.{}", driver.starts);
            drop(state);
            world.log("world", format_args!("driver {name} starts"));
            let ledger = ledger_of(world, Some(number));
            spawn(
                world,
                number,
                repair_periodically(Arc::clone(world), ledger.clone(), name),
            );
            world.state().drivers[number].ledger = Some(ledger);
        }
    }
    let jobs = world.state().jobs.len();
    for job in 0..jobs {
        assign(world, job);
    }
}

fn assign(world: &Arc<SimWorld>, job: usize) {
    let mut state = world.state();
    if state.jobs[job].removed || state.jobs[job].driver.is_some() {
        return;
    }
    let up: Vec<usize> = (0..state.drivers.len())
        .filter(|driver| state.drivers[*driver].incarnation.is_some())
        .collect();
    if up.is_empty() {
        return;
    }
    let driver = *state.random.pick(&up);
    state.jobs[job].driver = Some(driver);
    let name = format!("d{driver}.{} job {job}", state.drivers[driver].starts);
    let Some(ledger) = state.drivers[driver].ledger.clone() else {
        return;
    };
    drop(state);
    let hand = JobDriver {
        world: Arc::clone(world),
        ledger,
        driver,
        job,
        name,
    };
    spawn(world, driver, hand.drive());
}

/// Returns the ledger of a new process that is not a driver.
pub(super) async fn other_ledger(world: &Arc<SimWorld>) -> SimLedger {
    let ledger = ledger_of(world, None);
    lists::drain(world, &ledger).await;
    ledger
}

/// Returns a ledger without state beyond the store.
fn ledger_of(world: &Arc<SimWorld>, driver: Option<usize>) -> SimLedger {
    let pool = ControllerPool::new([]);
    lists::replace(world, &pool);
    Ledger::new(pool, world.store.of(driver), world.profile.ledger_options(world))
}

async fn repair_periodically(world: Arc<SimWorld>, ledger: SimLedger, name: String) {
    if world.options.repair == RepairPolicy::Never {
        return;
    }
    loop {
        repair(&world, &ledger, &name).await;
        let pause = 2_000 + u64::from(world.below(30_000));
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

pub(super) async fn repair(world: &Arc<SimWorld>, ledger: &SimLedger, name: &str) {
    lists::drain(world, ledger).await;
    match ledger.repair(&Alive::new(world)).await {
        Ok(report) => record_repair(world, name, &report),
        Err(error) => world.log(name, format_args!("cannot repair: {error}")),
    }
    world.check();
}

pub(super) fn record_repair(world: &SimWorld, name: &str, report: &RepairReport) {
    for action in &report.actions {
        *world.state().report.repairs.entry(action.label()).or_default() += 1;
        world.log(name, format_args!("repairs: {} {}", action.label(), action.id()));
    }
}
