//! How a run ended: a table for people, a document for programs, the exit code.

use ipu_core::{FirstFailure, JobPhase, JobStatus};
use serde::Serialize;

use super::engine::RunResult;
use super::host_job::HostJob;
use super::processes::ProcessRecord;
use crate::exit_code::Code;
use crate::table::Table;

/// A run, once it is over.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    name: String,
    namespace: String,
    uid: String,
    /// How the job ended; none if it did not come to that.
    phase: Option<JobPhase>,
    message: String,
    exit_code: u8,
    /// What the exit code is of: `job`, `signal` or `ipuctl`.
    exit_code_of: &'static str,
    restarts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<FirstFailure>,
    processes: Vec<ProcessRecord>,
}

impl Report {
    pub(crate) fn new(job: &HostJob, ended: &RunResult) -> Self {
        let key = job.spec.key();
        let (code, of) = code(ended);
        let concluded = ended.concluded.as_ref();
        let message = match (&ended.failure, concluded) {
            (Some(failure), _) => failure.chain(),
            (None, Some(status)) => sentence(status),
            (None, None) => "ended before the job was".to_owned(),
        };
        Self {
            name: key.name.to_string(),
            namespace: key.namespace.to_string(),
            uid: key.uid.to_string(),
            phase: concluded.map(|status| status.phase),
            message,
            exit_code: code.number(),
            exit_code_of: of,
            restarts: ended.status.restarts,
            first_failure: concluded.and_then(|status| status.first_failure.clone()),
            processes: ended.processes.records().to_vec(),
        }
    }

    /// The table of processes, if there were any.
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
        Some(table.text())
    }

    /// How it ended, in a word.
    pub(crate) const fn outcome(&self) -> &'static str {
        match self.phase {
            Some(JobPhase::Completed) => "completed",
            Some(_) => "failed",
            None => "ended",
        }
    }

    /// One sentence.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

fn sentence(status: &JobStatus) -> String {
    let conclusion = status.conclusion.as_ref().map(|reason| reason.message.clone());
    conclusion.unwrap_or_else(|| status.message.clone())
}

/// The exit code, and whose it is.
pub(crate) fn code(ended: &RunResult) -> (Code, &'static str) {
    match (&ended.failure, ended.signal, &ended.concluded) {
        (Some(failure), _, _) => (failure.code, "ipuctl"),
        (None, _, Some(status)) => (Code::Job(status.exit_code.unwrap_or(0)), "job"),
        (None, Some(signal), None) => (Code::Signal(signal), "signal"),
        (None, None, None) => (Code::Bug, "ipuctl"),
    }
}
