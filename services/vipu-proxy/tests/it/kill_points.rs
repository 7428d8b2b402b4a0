//! Kills a program at each of its system calls that others can observe: writes, syncs, renames, connections
//! and messages. Then the program starts again, the owners finish what they had begun, and ledger, controller
//! and owners must agree.
//!
//! `strace` counts calls by thread. With one worker thread of tokio, nearly every kind of call belongs to one
//! thread, so that a point is a kind of call and a number.
//!
//! `VIPU_PROXY_KILL_POINTS=all cargo test -p vipu-proxy --test it kill_points -- --nocapture` runs all
//! points.

mod scene;
mod tracer;

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use scene::{Scene, SceneStep};
use tracer::{Injection, Tracing};

/// Number of points that a run of the test suite samples.
const SAMPLE: usize = 12;
/// Number of points at the same time: after a kill, a proxy mostly waits.
const CONCURRENT_POINTS: usize = 12;

/// A program, and the part of its work that is interrupted.
struct Case {
    name: &'static str,
    program: &'static str,
    /// Work before, by a process that is killed after it.
    before: &'static [SceneStep],
    traced: Traced,
}

/// Interrupted part of a process.
#[derive(Clone, Copy)]
enum Traced {
    /// Until the process is ready.
    Start,
    /// These requests, after the process is ready.
    Requests(&'static [SceneStep]),
}

const VIPU_PROXY: &str = env!("CARGO_BIN_EXE_vipu-proxy");

const CASES: [Case; 3] = [
    Case {
        name: "vipu-proxy creates a ledger",
        program: VIPU_PROXY,
        before: &[],
        traced: Traced::Start,
    },
    Case {
        name: "vipu-proxy takes over a ledger",
        program: VIPU_PROXY,
        before: &[
            SceneStep::Put("a"),
            SceneStep::Put("b"),
            SceneStep::Reset("a"),
            SceneStep::Send("c"),
        ],
        traced: Traced::Start,
    },
    Case {
        name: "vipu-proxy serves requests",
        program: VIPU_PROXY,
        before: &[],
        traced: Traced::Requests(&[
            SceneStep::Put("a"),
            SceneStep::Put("b"),
            SceneStep::Reset("a"),
            SceneStep::Delete("a"),
            SceneStep::Delete("b"),
        ]),
    },
];

/// Point of a kill: the call of `injection` in `case`.
#[derive(Clone)]
struct Point {
    case: &'static Case,
    injection: Injection,
}

/// Result of a point.
struct Outcome {
    point: Point,
    was_killed: bool,
    result: Result<(), String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_at_any_system_call_nothing_leaks_and_every_entry_ends() {
    if !tracer::is_available("after_a_kill_at_any_system_call_nothing_leaks_and_every_entry_ends") {
        return;
    }
    let started = Instant::now();
    let mut points = Vec::new();
    for case in &CASES {
        let injections = injections_of(case).await;
        println!("{}: {} points", case.name, injections.len());
        points.extend(injections.into_iter().map(|injection| Point { case, injection }));
    }
    let all = points.len();
    if std::env::var("VIPU_PROXY_KILL_POINTS").as_deref() != Ok("all") {
        points = (0..SAMPLE)
            .map(|number| points[(2 * number + 1) * all / (2 * SAMPLE)].clone())
            .collect();
    }
    let outcomes = run_all(points).await;
    let mut unclean = 0;
    for Outcome { point, result, .. } in &outcomes {
        if let Err(error) = result {
            unclean += 1;
            println!(
                "unclean: {}, killed at {}: {error}",
                point.case.name, point.injection
            );
        }
    }
    let killed = outcomes.iter().filter(|outcome| outcome.was_killed).count();
    println!(
        "{} of {all} points, {killed} killed, {unclean} unclean, {} s",
        outcomes.len(),
        started.elapsed().as_secs()
    );
    assert_eq!(unclean, 0);
    assert!(killed > outcomes.len() / 2, "most points must be reached");
}

/// Returns every point of `case`, counted in a run without a kill.
async fn injections_of(case: &'static Case) -> Vec<Injection> {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let mut scene = Scene::new(case.program).await;
    assert!(!scene.work(case, &Tracing::Count(trace.clone())).await);
    tracer::injections(&tracer::complete(&trace).await)
}

async fn run_all(points: Vec<Point>) -> Vec<Outcome> {
    let slots = Arc::new(Semaphore::new(CONCURRENT_POINTS));
    let mut tasks = JoinSet::new();
    for point in points {
        let slots = Arc::clone(&slots);
        tasks.spawn(async move {
            let _slot = slots.acquire().await.unwrap();
            let mut scene = Scene::new(point.case.program).await;
            let tracing = Tracing::Kill(point.injection.clone());
            let was_killed = scene.work(point.case, &tracing).await;
            let result = match scene.finish().await {
                Ok(()) => Ok(()),
                Err(error) => Err(format!("{error}; see {}", scene.keep().display())),
            };
            Outcome {
                point,
                was_killed,
                result,
            }
        });
    }
    tasks.join_all().await
}

#[tokio::test]
async fn a_lost_ledger_is_unclean() {
    let case = &CASES[1];
    let mut scene = Scene::new(case.program).await;
    scene.work(case, &Tracing::None).await;
    scene.lose_ledger();
    let error = scene.finish().await.unwrap_err();
    assert!(error.contains("a was granted on"), "{error}");
}
