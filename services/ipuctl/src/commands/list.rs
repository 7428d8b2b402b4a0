//! `ipuctl list`: lists the active and the last finished runs of this user.

use ipu_core::allocator::OwnerLiveness;
use ipu_proxy_client::now;
use ipu_proxy_client::{HoldState, PartitionDocument};

use crate::cli::Format;
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::run_record::RunRecord;
use crate::state_dir::StateDir;
use crate::table::{Table, render};
use crate::time;

/// Prints the runs, active ones first, then the newest.
pub(crate) async fn run(connection: &Connection, format: Format, output: &Output) -> Result<Code, Failure> {
    let partitions = connection.proxy.partitions().await?;
    let mut records = active(connection, &partitions);
    records.extend(RunRecord::read_finished(&connection.state));
    if records.is_empty() && format.is_text() {
        output.say("No runs found.");
        return Ok(Code::Done);
    }
    if format == Format::Name {
        let names = records.iter().map(|record| format!("{}\n", record.name));
        output.result(&names.collect::<String>());
    } else {
        output.result(&render(format, &records, || table(&records))?);
    }
    Ok(Code::Done)
}

/// Returns the records of runs that have not released their files, newest first.
fn active(connection: &Connection, partitions: &[PartitionDocument]) -> Vec<RunRecord> {
    let directories = std::fs::read_dir(connection.state.runs_dir())
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let mut records: Vec<RunRecord> = directories
        .filter_map(|directory| {
            let mut record = RunRecord::read_active(&directory.path())?;
            // Its partitions may be in another list.
            let is_elsewhere = record.proxy != connection.remote_url();
            let has_leases = record.proxy.is_some()
                && (is_elsewhere || partitions.iter().any(|partition| record.owns(partition)));
            record.phase = match StateDir::liveness_of_run(&directory.path(), has_leases) {
                OwnerLiveness::Dead => "Killed",
                _ if is_elsewhere => "Running",
                _ => phase(&record, partitions),
            }
            .to_owned();
            Some(record)
        })
        .collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.started));
    records
}

/// Returns the phase of an active run according to its partitions.
fn phase(record: &RunRecord, partitions: &[PartitionDocument]) -> &'static str {
    let states: Vec<HoldState> = partitions
        .iter()
        .filter(|partition| record.owns(partition))
        .map(|partition| partition.state)
        .collect();
    if states.is_empty() {
        "Pending"
    } else if states.contains(&HoldState::Waiting) {
        "Queued"
    } else if states.iter().any(|state| state.is_in_progress()) {
        "Creating"
    } else {
        "Running"
    }
}

fn table(records: &[RunRecord]) -> String {
    let mut table = Table::new(&["NAME", "PHASE", "PARTITION", "AGE", "EXIT"]);
    for record in records {
        let partition = match record.partitions.as_slice() {
            [] => String::new(),
            [one] => one.to_string(),
            [first, rest @ ..] => format!("{first} (+{})", rest.len()),
        };
        table.row([
            record.name.clone(),
            record.phase.clone(),
            partition,
            time::age(record.started, now()),
            record.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        ]);
    }
    table.to_string()
}
