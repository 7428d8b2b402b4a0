//! The matrix as text.

use std::fmt::Write as _;
use std::time::Duration;

use ipu_test_slurm::slurm_version;

use super::CellReport;
use super::cell::{Command, Event};
use super::way::Way;

/// Returns the seconds of each cell: a row for each event, a column for each way and command.
pub(crate) fn render(reports: &[CellReport], elapsed: Duration) -> String {
    let version = slurm_version().unwrap_or_default();
    let (year, month) = (version / 100, version % 100);
    let mut text = String::new();
    writeln!(
        text,
        "Slurm {year}.{month:02}: {} cells in {} s; seconds of each, * if the agent released the partition",
        reports.len(),
        elapsed.as_secs()
    )
    .unwrap();
    let mut head = String::from("| event |");
    for way in Way::ALL {
        for command in Command::ALL {
            head.push_str(&format!(" {}: {} |", way.column(), command.name()));
        }
    }
    let columns = Way::ALL.len() * Command::ALL.len();
    writeln!(text, "{head}\n|---|{}", "---|".repeat(columns)).unwrap();
    for event in Event::GATE.into_iter().chain([Event::NodeLost]) {
        let mut row = format!("| {} |", event.name());
        let mut is_empty = true;
        for way in Way::ALL {
            for command in Command::ALL {
                let report = reports.iter().find(|report| {
                    let cell = &report.cell;
                    (cell.way, cell.command, cell.event) == (way, command, event)
                });
                is_empty &= report.is_none();
                row.push_str(&format!(" {} |", report.map(seconds).unwrap_or_default()));
            }
        }
        if !is_empty {
            writeln!(text, "{row}").unwrap();
        }
    }
    text
}

fn seconds(report: &CellReport) -> String {
    match (&report.failure, report.by_agent) {
        (Some(_), _) => "FAILED".into(),
        (None, true) => format!("{:.1} *", report.seconds),
        (None, false) => format!("{:.1}", report.seconds),
    }
}
