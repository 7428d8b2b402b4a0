//! The agent: releases what no hook can release, withholds licenses of IPUs that others use, and explains
//! waits. Several at once are safe, because each pass derives everything from Slurm and the proxy.

mod collect;
mod context;
mod events;
mod explain;
mod withhold;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use ipu_slurm::SlurmctldWatch;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use self::collect::CollectReport;
use self::collect::allocations;
use self::context::Context;
use self::events::LedgerEvents;
use self::explain::ExplainedJobs;
use crate::failure::Failure;
use crate::report;

/// Interval of passes over all runs.
const COLLECT_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval of updates of the reservations after events of the ledger.
const WITHHOLD_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of updates of AdminComment.
const EXPLAIN_INTERVAL: Duration = Duration::from_secs(2);
/// Time from a change of the ledger to the update of AdminComment: that of a hook from the release of its
/// partition to its end, which returns the licenses. The update of a job makes slurmctld look for jobs that
/// can start. Otherwise it does so with its next pass, after up to 30 s.
const EXPLAIN_DELAY: Duration = Duration::from_millis(300);
/// Pause before the configuration is read again, if it cannot be used.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT. Writes metrics to a file, if one is named.
pub(crate) async fn run(metrics_file: Option<&Path>) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = work(metrics_file) => {}
    }
    Ok(())
}

/// Runs one pass.
pub(crate) async fn run_once() -> Result<(), Failure> {
    let context = Context::load().await?;
    let mut runs = CollectReport::default();
    let mut watch = SlurmctldWatch::default();
    let collected = collect::collect(&context, &mut watch, &mut runs).await;
    let mut lines = runs.released;
    lines.extend(runs.kept);
    let allocations = allocations::collect(&context, &mut watch, &mut lines).await;
    let withheld = withhold::withhold(&context, None).await;
    let explained = explain::explain(&context, &mut ExplainedJobs::default()).await;
    let withheld = withheld.map(|more| lines.extend(more));
    for line in &lines {
        report::note(line);
    }
    collected.and(allocations).and(withheld).and(explained)
}

/// The last problem of each task: a problem that lasts is reported once.
#[derive(Debug, Default)]
struct Problems(BTreeMap<&'static str, String>);

impl Problems {
    /// Reports what a task did, or its problem if it is a new one.
    fn report(&mut self, task: &'static str, result: Result<Vec<String>, Failure>) {
        match result {
            Ok(lines) => {
                if self.0.remove(task).is_some() {
                    report::note(&format!("{task}: works again"));
                }
                for line in lines {
                    report::note(&line);
                }
            }
            Err(Failure(problem)) => {
                if self.0.get(task) != Some(&problem) {
                    report::note(&format!("{task}: {problem}"));
                    self.0.insert(task, problem);
                }
            }
        }
    }
}

/// The partitions that stay held after the end of their runs. Each is reported once.
#[derive(Debug, Default)]
struct KeptPartitions(BTreeSet<String>);

impl KeptPartitions {
    /// Reports those that the pass before has not found. A pass that failed may not have found all.
    fn report(&mut self, mut found: BTreeSet<String>, is_complete: bool) {
        for line in found.difference(&self.0) {
            report::note(line);
        }
        if !is_complete {
            found.append(&mut self.0);
        }
        self.0 = found;
    }
}

/// Repeats the passes for ever.
async fn work(metrics_file: Option<&Path>) {
    let mut problems = Problems::default();
    let mut kept = KeptPartitions::default();
    let mut watch = SlurmctldWatch::default();
    let mut context = loop {
        match Context::load().await {
            Ok(context) => break context,
            Err(failure) => problems.report("start", Err(failure)),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    };
    problems.report("start", Ok(Vec::new()));
    report::note(&format!("agent of the cluster {}", context.cluster));
    let mut events = LedgerEvents::new(&context.proxy);
    let now = Instant::now();
    let (mut next_collect, mut next_withhold, mut next_explain) = (now, now, now);
    let mut ledger_changed = false;
    let mut explained = ExplainedJobs::default();
    loop {
        if next_collect <= Instant::now() {
            next_collect = Instant::now() + COLLECT_INTERVAL;
            match Context::load().await {
                Ok(new) if new.conf != context.conf || new.cluster != context.cluster => {
                    events = LedgerEvents::new(&new.proxy);
                    context = new;
                    problems.report("configuration", Ok(vec!["the configuration has changed".into()]));
                }
                Ok(_) => problems.report("configuration", Ok(Vec::new())),
                Err(failure) => problems.report("configuration", Err(failure)),
            }
            let mut runs = CollectReport::default();
            let collected = collect::collect(&context, &mut watch, &mut runs).await;
            kept.report(runs.kept, collected.is_ok());
            let mut lines = runs.released;
            let allocations = allocations::collect(&context, &mut watch, &mut lines).await;
            for line in &lines {
                report::note(line);
            }
            problems.report("release", collected.map(|()| Vec::new()));
            problems.report("allocations", allocations.map(|()| Vec::new()));
            ledger_changed = true;
        }
        if ledger_changed && next_withhold <= Instant::now() {
            next_withhold = Instant::now() + WITHHOLD_INTERVAL;
            ledger_changed = false;
            let withheld = withhold::withhold(&context, metrics_file).await;
            problems.report("reservation", withheld);
        }
        if next_explain <= Instant::now() {
            next_explain = Instant::now() + EXPLAIN_INTERVAL;
            problems.report(
                "AdminComment",
                explain::explain(&context, &mut explained)
                    .await
                    .map(|()| Vec::new()),
            );
        }
        let mut next = next_collect.min(next_explain);
        if ledger_changed {
            next = next.min(next_withhold);
        }
        tokio::select! {
            changed = events.changed() => {
                if changed.is_ok() {
                    ledger_changed = true;
                    explained.follow_change();
                    next_explain = next_explain.min(Instant::now() + EXPLAIN_DELAY);
                }
                let lines = changed.map(|()| Vec::new());
                problems.report("events", lines.map_err(Failure::from));
            }
            () = tokio::time::sleep_until(next) => {}
        }
    }
}
