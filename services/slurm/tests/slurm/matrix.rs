//! The matrix of ways to have IPUs, commands of Slurm, and events in the life of a job.
//!
//! Each cell runs one job. Its tasks must see exactly the variables of their partition, and afterwards the
//! ledger and the simulated hardware have what they had before, with all nodes idle. The test of the gate has
//! a selection with every pair of way, command and event, and fewer events for the shared partition.
//! `cargo xtask slurm matrix` runs all cells.

mod cell;
mod event;
mod job;
mod table;
pub(crate) mod way;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use cell::{Cell, Event};
use way::{Way, WayCluster};

/// Environment variable that selects all cells whose names contain its text, instead of those of the gate.
const SELECTION: &str = "IPU_SLURM_MATRIX";

/// The result of a cell.
struct CellReport {
    cell: Cell,
    seconds: f64,
    /// Whether a pass of the agent released the partition, not a hook.
    by_agent: bool,
    failure: Option<String>,
}

#[test]
fn every_event_leaves_nothing_behind_in_each_way_to_have_ipus() {
    let test = "every_event_leaves_nothing_behind_in_each_way_to_have_ipus";
    let started = Instant::now();
    let cells = match std::env::var(SELECTION) {
        Ok(text) => {
            let all = Cell::all().into_iter();
            let cells: Vec<Cell> = all.filter(|cell| cell.to_string().contains(&text)).collect();
            assert!(
                !cells.is_empty(),
                "no cell has {text:?} in its name, such as {}",
                Cell::all()[0]
            );
            cells
        }
        Err(_) => Cell::pairs(),
    };
    // A bed for each way, at the same time.
    let reports: Vec<CellReport> = std::thread::scope(|scope| {
        let threads = Way::ALL.map(|way| {
            let cells: Vec<Cell> = cells.iter().filter(|cell| cell.way == way).copied().collect();
            scope.spawn(move || run_way(test, way, &cells))
        });
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    if reports.is_empty() {
        return;
    }
    println!("{}", table::render(&reports, started.elapsed()));
    let failed: Vec<String> = reports.iter().filter_map(failure).collect();
    assert!(
        failed.is_empty(),
        "{} cells failed\n{}",
        failed.len(),
        failed.join("\n")
    );
}

#[test]
fn the_selection_has_every_pair() {
    let (pairs, all) = (Cell::pairs(), Cell::gate_events());
    assert_eq!(pairs.len(), 33);
    for cell in all {
        assert!(
            pairs
                .iter()
                .any(|pair| (pair.way, pair.command) == (cell.way, cell.command))
        );
        let has_pair = pairs
            .iter()
            .any(|pair| (pair.way, pair.event) == (cell.way, cell.event));
        assert!(has_pair || cell.way == Way::Shared && !Event::SHARED.contains(&cell.event));
        assert!(
            pairs
                .iter()
                .any(|pair| (pair.command, pair.event) == (cell.command, cell.event))
        );
    }
}

/// Returns the failure of a cell without the logs, which its thread has printed.
fn failure(report: &CellReport) -> Option<String> {
    let failure = report.failure.as_ref()?;
    let lines: Vec<&str> = failure
        .lines()
        .take_while(|line| !line.starts_with("--- "))
        .collect();
    Some(format!("{}: {}", report.cell, lines.join("\n")))
}

/// Runs the cells of a way one after another on a bed. A cell that failed costs the bed.
fn run_way(test: &str, way: Way, cells: &[Cell]) -> Vec<CellReport> {
    let mut cluster = None;
    let mut reports = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let Some(mut current) = cluster.take().or_else(|| WayCluster::start(test, way)) else {
            return Vec::new();
        };
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            event::run(&mut current, *cell, number);
            current.assert_nothing_left()
        }));
        let seconds = started.elapsed().as_secs_f64();
        let (by_agent, failure) = match result {
            Ok(by_agent) => {
                cluster = Some(current);
                (by_agent, None)
            }
            Err(panic) => (false, Some(panic_text(&*panic))),
        };
        reports.push(CellReport {
            cell: *cell,
            seconds,
            by_agent,
            failure,
        });
    }
    reports
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

/// Maximum time of a client that must end.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(120);
