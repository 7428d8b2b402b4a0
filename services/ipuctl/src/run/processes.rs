//! Starts, stops and observes the processes of one run, as the plan decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipu_core::job::{Exit, InstanceFacts, ProcessFacts, ProcessPhase};
use ipu_core::{PartitionId, Timestamp};
use ipu_proxy_client::now;
use tokio::sync::mpsc::UnboundedSender;

use crate::output::Output;
use crate::process::{self, ProcessEvent, Spawn, SupervisedProcess, Terminal};

/// Timeout for the processes of a killed supervisor to end after SIGKILL. The kernel needs milliseconds; a
/// process that it cannot end (blocked in a device) is reported.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Role of a process in its instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessRole {
    /// The launcher.
    Launcher,
    /// A worker with its index in the instance.
    Worker(u32),
}

/// Identity of a process in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId {
    pub(crate) instance: u32,
    pub(crate) role: ProcessRole,
}

impl ProcessId {
    pub(crate) const fn worker(instance: u32, worker: u32) -> Self {
        Self {
            instance,
            role: ProcessRole::Worker(worker),
        }
    }

    pub(crate) const fn launcher(instance: u32) -> Self {
        Self {
            instance,
            role: ProcessRole::Launcher,
        }
    }
}

/// An event of a process.
#[derive(Debug)]
pub(crate) struct ProcessUpdate {
    id: ProcessId,
    attempt: u32,
    event: ProcessEvent,
}

/// Request to start a process.
#[derive(Debug)]
pub(crate) struct StartProcess {
    pub(crate) id: ProcessId,
    pub(crate) attempt: u32,
    /// Partition of the process.
    pub(crate) partition: PartitionId,
    /// Name for people: `worker-0`, `launcher`.
    pub(crate) label: String,
    /// Program to run; none for a worker on which a launcher starts the processes.
    pub(crate) spawn: Option<Spawn>,
}

/// Record of an ended process.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessRecord {
    pub(crate) instance: u32,
    pub(crate) partition: PartitionId,
    pub(crate) process: String,
    pub(crate) attempt: u32,
    /// Exit code as a shell reports it; none if the process was lost.
    pub(crate) exit_code: Option<u8>,
    /// Cause of the end, for people.
    pub(crate) end: String,
    pub(crate) seconds: f64,
}

#[derive(Debug)]
struct Entry {
    attempt: u32,
    partition: PartitionId,
    label: String,
    started: Timestamp,
    phase: ProcessPhase,
    supervised: Option<SupervisedProcess>,
    /// True if the entry is removed at the end of the process.
    is_stopping: bool,
}

/// The processes of one run.
#[derive(Debug)]
pub(crate) struct Processes {
    entries: BTreeMap<ProcessId, Entry>,
    records: Vec<ProcessRecord>,
    updates: UnboundedSender<ProcessUpdate>,
    output: Output,
    grace: Duration,
}

impl Processes {
    pub(crate) fn new(output: Output, grace: Duration, updates: UnboundedSender<ProcessUpdate>) -> Self {
        Self {
            entries: BTreeMap::new(),
            records: Vec::new(),
            updates,
            output,
            grace,
        }
    }

    /// Starts a process, unless it exists.
    pub(crate) fn start(&mut self, start: StartProcess) {
        if self.entries.contains_key(&start.id) {
            return;
        }
        let (id, attempt, at) = (start.id, start.attempt, now());
        let mut entry = Entry {
            attempt,
            partition: start.partition,
            label: start.label,
            started: at,
            phase: ProcessPhase::Running { since: at },
            supervised: None,
            is_stopping: false,
        };
        if let Some(spawn) = start.spawn {
            entry.phase = ProcessPhase::Starting {
                since: at,
                cause: String::new(),
            };
            let (updates, markers) = (
                self.updates.clone(),
                BTreeSet::from([entry.partition.to_string()]),
            );
            let report = move |event: ProcessEvent| {
                if matches!(event, ProcessEvent::Unsupervised(_)) {
                    // The remaining processes are unsupervised, and the other processes of the partition
                    // depend on them.
                    process::end_marked(&markers, KILL_TIMEOUT);
                }
                let _ = updates.send(ProcessUpdate { id, attempt, event });
            };
            let output =
                (spawn.terminal == Terminal::Detached).then_some((&self.output, entry.label.as_str()));
            match process::start(spawn, output, report) {
                Ok(supervised) => entry.supervised = Some(supervised),
                Err(error) => {
                    let cause = std::error::Error::source(&error)
                        .map_or_else(String::new, |cause| format!(": {cause}"));
                    self.output.error(&format!("{}: {error}{cause}", entry.label));
                    self.end(&mut entry, id, Exit::Code(126), at, format!("{error}{cause}"));
                }
            }
        }
        self.entries.insert(id, entry);
    }

    /// Stops a process of this attempt and removes its entry at the end. Returns whether it has ended.
    pub(crate) fn stop(&mut self, id: ProcessId, attempt: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.attempt == attempt) else {
            return true;
        };
        match &entry.supervised {
            Some(supervised) if entry.phase.is_alive() => {
                if !entry.is_stopping {
                    supervised.stop(self.grace);
                }
                entry.is_stopping = true;
                entry.phase = ProcessPhase::Stopping;
                false
            }
            _ => {
                self.entries.remove(&id);
                true
            }
        }
    }

    /// Returns whether a process exists that has not ended.
    pub(crate) fn any_alive(&self) -> bool {
        self.entries.values().any(|entry| entry.phase.is_alive())
    }

    /// Kills all processes. Their ends are reported as updates.
    pub(crate) fn kill_all(&self) {
        for entry in self.entries.values() {
            if let Some(supervised) = &entry.supervised {
                supervised.stop(Duration::ZERO);
            }
        }
    }

    /// Applies an update.
    pub(crate) fn on_update(&mut self, update: ProcessUpdate) {
        let Some(mut entry) = self.entries.remove(&update.id) else {
            return;
        };
        if entry.attempt != update.attempt {
            self.entries.insert(update.id, entry);
            return;
        }
        match update.event {
            ProcessEvent::Started if entry.is_stopping => {}
            ProcessEvent::Started => entry.phase = ProcessPhase::Running { since: now() },
            ProcessEvent::Ended { exit, at } => {
                let last_lines = entry
                    .supervised
                    .as_ref()
                    .map(SupervisedProcess::last_lines)
                    .unwrap_or_default();
                self.end(&mut entry, update.id, exit, at, last_lines);
            }
            ProcessEvent::Failed { code, reason } => {
                self.output.error(&format!("{}: {reason}", entry.label));
                self.end(&mut entry, update.id, Exit::Code(code), now(), reason);
            }
            ProcessEvent::Unsupervised(cause) => {
                let at = now();
                self.record(&entry, update.id, None, cause.clone(), at);
                entry.phase = ProcessPhase::Lost { at, cause };
            }
        }
        if !entry.is_stopping || entry.phase.is_alive() {
            self.entries.insert(update.id, entry);
        }
    }

    fn end(&mut self, entry: &mut Entry, id: ProcessId, exit: Exit, at: Timestamp, last_lines: String) {
        self.record(entry, id, Some(exit.code()), exit.to_string(), at);
        entry.phase = ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause: String::new(),
        };
    }

    fn record(&mut self, entry: &Entry, id: ProcessId, exit_code: Option<u8>, end: String, at: Timestamp) {
        self.records.push(ProcessRecord {
            instance: id.instance,
            partition: entry.partition.clone(),
            process: entry.label.clone(),
            attempt: entry.attempt,
            exit_code,
            end,
            seconds: at.since(entry.started).as_secs_f64(),
        });
    }

    /// Returns the observed state of the processes, by instance.
    pub(crate) fn facts(&self) -> BTreeMap<u32, InstanceFacts> {
        let mut instances: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        for (id, entry) in &self.entries {
            let facts = instances
                .entry(id.instance)
                .or_insert_with(|| InstanceFacts::empty(id.instance));
            let process = |index| ProcessFacts {
                index,
                attempt: entry.attempt,
                phase: entry.phase.clone(),
            };
            match id.role {
                ProcessRole::Launcher => facts.launcher = Some(process(0)),
                ProcessRole::Worker(index) => facts.workers.push(process(index)),
            }
        }
        instances
    }

    /// Returns the records of ended processes, in the order of their ends.
    pub(crate) fn records(&self) -> &[ProcessRecord] {
        &self.records
    }
}
