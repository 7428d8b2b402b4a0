//! Report of a finished run: table, document and exit code.

use ipu_core::job::{FirstFailure, JobPhase, JobStatus, Preempted};
use serde::Serialize;

use super::engine::RunResult;
use super::host_job::HostJob;
use super::processes::ProcessRecord;
use crate::display;
use crate::exit_code::Code;
use crate::table::Table;

/// Report of a finished run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    name: String,
    namespace: String,
    uid: String,
    /// Final phase of the job; none if the run was interrupted or failed before.
    phase: Option<JobPhase>,
    message: String,
    exit_code: u8,
    /// Origin of the exit code: `job`, `signal` or `ipuctl`.
    #[serde(rename = "exitCodeOf")]
    exit_code_origin: &'static str,
    restarts: u32,
    /// Number of attempts that ended because a request of higher priority preempted their partition.
    preemptions: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_preemption: Option<Preempted>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<FirstFailure>,
    processes: Vec<ProcessRecord>,
}

impl Report {
    pub(crate) fn new(job: &HostJob, result: &RunResult) -> Self {
        let key = job.spec.key();
        let (code, origin) = exit_code(result);
        let concluded = result.concluded.as_ref();
        let message = match (&result.failure, concluded) {
            (Some(failure), _) => failure.chain(),
            (None, Some(status)) => conclusion(status),
            (None, None) => "Interrupted.".to_owned(),
        };
        Self {
            name: key.name.to_string(),
            namespace: key.namespace.to_string(),
            uid: key.uid.to_string(),
            phase: concluded.map(|status| status.phase),
            message,
            exit_code: code.number(),
            exit_code_origin: origin,
            restarts: result.status.restarts,
            preemptions: result.status.preemptions,
            last_preemption: result.status.last_preemption.clone(),
            first_failure: concluded.and_then(|status| status.first_failure.clone()),
            processes: result.processes.records().to_vec(),
        }
    }

    /// Returns the table of processes; none if no process was started.
    pub(crate) fn table(&self) -> Option<String> {
        if self.processes.is_empty() {
            return None;
        }
        let mut table = Table::new(&["INSTANCE", "PARTITION", "PROCESS", "ATTEMPT", "EXIT", "SECONDS"]);
        for record in &self.processes {
            table.row([
                record.instance.to_string(),
                record.partition.to_string(),
                record.process.clone(),
                record.attempt.to_string(),
                record
                    .exit_code
                    .map_or_else(|| record.end.clone(), |code| code.to_string()),
                format!("{:.1}", record.seconds),
            ]);
        }
        Some(table.to_string())
    }

    /// Returns the outcome of the job in one word; none if the run was interrupted.
    pub(crate) const fn outcome(&self) -> Option<&'static str> {
        match self.phase {
            Some(JobPhase::Completed) => Some("completed"),
            Some(_) => Some("failed"),
            None => None,
        }
    }

    /// Returns the final phase for the record of the run.
    pub(crate) fn phase(&self) -> &'static str {
        match (self.phase, self.exit_code_origin) {
            (Some(JobPhase::Completed), _) => "Completed",
            (None, "signal") => "Interrupted",
            _ => "Failed",
        }
    }

    /// Returns the cause of the end as one sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

fn conclusion(status: &JobStatus) -> String {
    let message = status.conclusion.as_ref().map(|reason| reason.message.clone());
    let message = message.unwrap_or_else(|| status.message.clone());
    match status.preemptions {
        0 => message,
        count => format!("{message}; {} preempted", display::count(count, "attempt")),
    }
}

/// Returns the exit code and its origin.
pub(crate) fn exit_code(result: &RunResult) -> (Code, &'static str) {
    match (&result.failure, result.signal, &result.concluded) {
        (Some(failure), _, _) => (failure.code, "ipuctl"),
        (None, _, Some(status)) => (Code::Job(status.exit_code.unwrap_or(0)), "job"),
        (None, Some(signal), None) => (Code::Signal(signal), "signal"),
        (None, None, None) => (Code::Bug, "ipuctl"),
    }
}
