//! Scheduler hosts: they start, get jobs to work on, are suspended, repair the ledger now and then.

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

/// How long a driver stays down at most, in milliseconds.
const DOWNTIME_MS: u32 = 8_000;

/// How long a driver is suspended at most, in milliseconds: three times as long as a call may take to have its effect.
const SUSPENDED: u32 = 90_000;

/// A task of a driver. It is not polled while the driver is suspended; what it has sent goes on.
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

/// Has a driver do `work` until it crashes.
fn spawn(world: &Arc<SimWorld>, driver: usize, work: impl Future<Output = ()> + Send + 'static) {
    let task = tokio::spawn(Task {
        world: Arc::clone(world),
        driver,
        work: Box::pin(work),
        pause: None,
    });
    world.state().drivers[driver].tasks.push(task);
}

/// Suspends any driver that is up.
pub(super) fn suspend_any(world: &SimWorld) {
    let driver = world.below(u32::try_from(world.profile.drivers).unwrap_or(1)) as usize;
    if world.state().drivers[driver].life.is_some() {
        suspend(world, driver);
    }
}

/// Suspends a driver, as SIGSTOP does, and has it go on later. Its clock goes on meanwhile.
pub(super) fn suspend(world: &SimWorld, driver: usize) {
    let pause = Duration::from_millis(u64::from(world.below(SUSPENDED)));
    let until = Instant::now() + pause;
    {
        let driven = &mut world.state().drivers[driver];
        driven.suspended_until = driven.suspended_until.max(Some(until));
    }
    world.count_event("driver suspended");
    world.say(
        "world",
        format_args!("driver {driver} is suspended for {:.3} s", pause.as_secs_f64()),
    );
}

/// Starts drivers that have been down for a while, and gives them the jobs that nobody works on.
pub(super) fn supervise(world: &Arc<SimWorld>) {
    for number in 0..world.profile.drivers {
        let pause = u64::from(world.below(DOWNTIME_MS));
        let now = world.millis();
        let mut state = world.state();
        let driver = &mut state.drivers[number];
        let rested = driver.down_since.is_none_or(|since| since + pause <= now);
        if driver.life.is_none() && rested {
            driver.lives += 1;
            driver.life = Some(driver.lives);
            let name = format!("d{number}.{}", driver.lives);
            drop(state);
            world.say("world", format_args!("driver {name} starts"));
            let ledger = ledger_of(world, Some(number));
            spawn(
                world,
                number,
                repair_now_and_then(Arc::clone(world), ledger.clone(), name),
            );
            world.state().drivers[number].ledger = Some(ledger);
        }
    }
    let jobs = world.state().jobs.len();
    for job in 0..jobs {
        hand_over(world, job);
    }
}

fn hand_over(world: &Arc<SimWorld>, job: usize) {
    let mut state = world.state();
    if state.jobs[job].gone || state.jobs[job].driver.is_some() {
        return;
    }
    let up: Vec<usize> = (0..state.drivers.len())
        .filter(|driver| state.drivers[*driver].life.is_some())
        .collect();
    if up.is_empty() {
        return;
    }
    let driver = *state.random.pick(&up);
    state.jobs[job].driver = Some(driver);
    let name = format!("d{driver}.{} job {job}", state.drivers[driver].lives);
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

/// The ledger of a process that starts now and is none of the drivers.
pub(super) async fn other_ledger(world: &Arc<SimWorld>) -> SimLedger {
    let ledger = ledger_of(world, None);
    lists::drain(world, &ledger).await;
    ledger
}

/// A ledger that remembers nothing but what is stored.
fn ledger_of(world: &Arc<SimWorld>, driver: Option<usize>) -> SimLedger {
    let pool = ControllerPool::new([]);
    lists::replace(world, &pool);
    Ledger::new(pool, world.store.of(driver), world.profile.ledger_options(world))
}

async fn repair_now_and_then(world: Arc<SimWorld>, ledger: SimLedger, name: String) {
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
        Ok(report) => note(world, name, &report),
        Err(error) => world.say(name, format_args!("cannot repair: {error}")),
    }
    world.check();
}

pub(super) fn note(world: &SimWorld, name: &str, report: &RepairReport) {
    for action in &report.done {
        *world.state().report.repairs.entry(action.label()).or_default() += 1;
        world.say(name, format_args!("repairs: {} {}", action.label(), action.id()));
    }
}
