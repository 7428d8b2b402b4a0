//! `ipuctl list`: lists the active and the last finished runs of this user.

use ipu_core::{Entry, EntryState};

use crate::cli::{Format, Global};
use crate::clock::now;
use crate::connection::{Connection, ledger_failure};
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::process::{Holder, HolderState};
use crate::run::OWNER_KIND;
use crate::run_record::RunRecord;
use crate::table::{Table, render};
use crate::time;

/// Prints the runs, active ones first, then the newest.
pub(crate) async fn run(global: &Global, output: &Output) -> Result<Code, Failure> {
    let connection = Connection::open(global, output).await?;
    let entries = connection.ledger.list().await.map_err(ledger_failure)?;
    let mut records = active(&connection, &entries);
    records.extend(RunRecord::read_finished(&connection.state));
    connection.close().await;
    if records.is_empty() && global.output.is_text() {
        output.say("No runs found.");
        return Ok(Code::Done);
    }
    if global.output == Format::Name {
        let names = records.iter().map(|record| format!("{}\n", record.name));
        output.result(&names.collect::<String>());
    } else {
        output.result(&render(global.output, &records, || table(&records))?);
    }
    Ok(Code::Done)
}

/// Returns the records of runs that have not released their files, newest first.
fn active(connection: &Connection, entries: &[Entry]) -> Vec<RunRecord> {
    let directories = std::fs::read_dir(connection.state.runs())
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let mut records: Vec<RunRecord> = directories
        .filter_map(|directory| {
            let mut record = RunRecord::read_active(&directory.path())?;
            let holder = std::fs::read_to_string(directory.path().join("holder")).unwrap_or_default();
            record.phase = match Holder::judge(&holder) {
                HolderState::Dead => "Killed",
                HolderState::Live | HolderState::Unknown => phase(&record, entries),
            }
            .to_owned();
            Some(record)
        })
        .collect();
    records.sort_by_key(|record| std::cmp::Reverse(record.started));
    records
}

/// Returns the phase of an active run according to the ledger.
fn phase(record: &RunRecord, entries: &[Entry]) -> &'static str {
    let of_run = |entry: &&Entry| {
        entry
            .owner
            .as_ref()
            .is_some_and(|owner| owner.kind == OWNER_KIND && owner.job.uid.as_str() == record.uid)
    };
    let states: Vec<&EntryState> = entries.iter().filter(of_run).map(|entry| &entry.state).collect();
    if states.is_empty() {
        "Pending"
    } else if states
        .iter()
        .any(|state| matches!(state, EntryState::Waiting { .. }))
    {
        "Queued"
    } else if states
        .iter()
        .any(|state| matches!(state, EntryState::Intent { .. }))
    {
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
    table.text()
}
