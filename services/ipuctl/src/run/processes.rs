//! The processes of one run: what is started, stopped, observed. Which, when and why is the plan's business.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ipu_core::{Exit, InstanceFacts, PartitionId, ProcessFacts, ProcessPhase, Timestamp};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::now;
use crate::output::Output;
use crate::process::{self, ProcessEvent, Spawn, Supervised, Terminal};

/// How long the processes of a supervisor that was killed may take to vanish when they are killed: the kernel needs
/// milliseconds; a process that it cannot end (stuck in a device) is reported instead of waited for.
const VANISH: Duration = Duration::from_secs(10);

/// Which process of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ProcessRole {
    /// The launcher.
    Launcher,
    /// A worker, by its number within the instance.
    Worker(u32),
}

/// Which process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessId {
    pub(crate) instance: u32,
    pub(crate) role: ProcessRole,
}

/// News of a process.
#[derive(Debug)]
pub(crate) struct ProcessUpdate {
    which: ProcessId,
    attempt: u32,
    event: ProcessEvent,
}

/// A process to be started.
#[derive(Debug)]
pub(crate) struct StartProcess {
    pub(crate) which: ProcessId,
    pub(crate) attempt: u32,
    /// The partition that it uses.
    pub(crate) partition: PartitionId,
    /// What people call it: `worker-0`, `launcher`.
    pub(crate) label: String,
    /// What to run; nothing for a worker that only waits for what a launcher starts on it.
    pub(crate) what: Option<Spawn>,
}

/// What is told of a process at the end.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProcessRecord {
    pub(crate) instance: u32,
    pub(crate) partition: PartitionId,
    pub(crate) process: String,
    pub(crate) attempt: u32,
    /// The exit code as a shell would say it; none if it was lost or never had one.
    pub(crate) exit_code: Option<u8>,
    /// How it ended, in words.
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
    supervised: Option<Supervised>,
    /// Whether it is to be forgotten as soon as it has ended.
    stopping: bool,
}

/// The processes of one run.
#[derive(Debug)]
pub(crate) struct Processes {
    entries: BTreeMap<ProcessId, Entry>,
    records: Vec<ProcessRecord>,
    news: UnboundedSender<ProcessUpdate>,
    output: Output,
    grace: Duration,
}

impl Processes {
    pub(crate) fn new(output: Output, grace: Duration, news: UnboundedSender<ProcessUpdate>) -> Self {
        Self {
            entries: BTreeMap::new(),
            records: Vec::new(),
            news,
            output,
            grace,
        }
    }

    /// Starts a process, unless it is there already.
    pub(crate) fn start(&mut self, start: StartProcess) {
        if self.entries.contains_key(&start.which) {
            return;
        }
        let (which, attempt, at) = (start.which, start.attempt, now());
        let mut entry = Entry {
            attempt,
            partition: start.partition,
            label: start.label,
            started: at,
            phase: ProcessPhase::Running { since: at },
            supervised: None,
            stopping: false,
        };
        if let Some(what) = start.what {
            entry.phase = ProcessPhase::Starting {
                since: at,
                cause: String::new(),
            };
            let (news, mark) = (self.news.clone(), BTreeSet::from([entry.partition.to_string()]));
            let report = move |event: ProcessEvent| {
                if matches!(event, ProcessEvent::Unsupervised(_)) {
                    // Nobody looks after what is left; nothing else of this partition is of use any more either.
                    process::end_marked(&mark, VANISH);
                }
                let _ = news.send(ProcessUpdate {
                    which,
                    attempt,
                    event,
                });
            };
            let to = (what.terminal == Terminal::Detached).then_some((&self.output, entry.label.as_str()));
            match process::start(what, to, report) {
                Ok(supervised) => entry.supervised = Some(supervised),
                Err(error) => {
                    let cause = std::error::Error::source(&error)
                        .map_or_else(String::new, |cause| format!(": {cause}"));
                    self.output.error(&format!("{}: {error}{cause}", entry.label));
                    self.end(&mut entry, which, Exit::Code(126), at, format!("{error}{cause}"));
                }
            }
        }
        self.entries.insert(which, entry);
    }

    /// Stops a process of this attempt and forgets it; true if there is nothing left of it.
    pub(crate) fn stop(&mut self, which: ProcessId, attempt: u32) -> bool {
        let Some(entry) = self
            .entries
            .get_mut(&which)
            .filter(|entry| entry.attempt == attempt)
        else {
            return true;
        };
        match &entry.supervised {
            Some(supervised) if entry.phase.is_alive() => {
                if !entry.stopping {
                    supervised.stop(self.grace);
                }
                entry.stopping = true;
                entry.phase = ProcessPhase::Stopping;
                false
            }
            _ => {
                self.entries.remove(&which);
                true
            }
        }
    }

    /// Kills everything at once. What that means is learnt as for any other end.
    pub(crate) fn kill_all(&self) {
        for entry in self.entries.values() {
            if let Some(supervised) = &entry.supervised {
                supervised.stop(Duration::ZERO);
            }
        }
    }

    /// Takes in what has happened.
    pub(crate) fn on_update(&mut self, news: ProcessUpdate) {
        let Some(mut entry) = self.entries.remove(&news.which) else {
            return;
        };
        if entry.attempt != news.attempt {
            self.entries.insert(news.which, entry);
            return;
        }
        match news.event {
            ProcessEvent::Started if entry.stopping => {}
            ProcessEvent::Started => entry.phase = ProcessPhase::Running { since: now() },
            ProcessEvent::Gone { exit, at } => {
                let last_lines = entry
                    .supervised
                    .as_ref()
                    .map(Supervised::last_lines)
                    .unwrap_or_default();
                self.end(&mut entry, news.which, exit, at, last_lines);
            }
            ProcessEvent::Failed { code, why } => {
                self.output.error(&format!("{}: {why}", entry.label));
                self.end(&mut entry, news.which, Exit::Code(code), now(), why);
            }
            ProcessEvent::Unsupervised(cause) => {
                let at = now();
                self.record(&entry, news.which, None, cause.clone(), at);
                entry.phase = ProcessPhase::Lost { at, cause };
            }
        }
        if !entry.stopping || entry.phase.is_alive() {
            self.entries.insert(news.which, entry);
        }
    }

    fn end(&mut self, entry: &mut Entry, which: ProcessId, exit: Exit, at: Timestamp, last_lines: String) {
        self.record(entry, which, Some(exit.code()), exit.to_string(), at);
        entry.phase = ProcessPhase::Exited {
            exit,
            at,
            last_lines,
            cause: String::new(),
        };
    }

    fn record(&mut self, entry: &Entry, which: ProcessId, exit_code: Option<u8>, end: String, at: Timestamp) {
        self.records.push(ProcessRecord {
            instance: which.instance,
            partition: entry.partition.clone(),
            process: entry.label.clone(),
            attempt: entry.attempt,
            exit_code,
            end,
            seconds: at.since(entry.started).as_secs_f64(),
        });
    }

    /// What is to be seen of the processes, by instance.
    pub(crate) fn facts(&self) -> BTreeMap<u32, InstanceFacts> {
        let mut instances: BTreeMap<u32, InstanceFacts> = BTreeMap::new();
        for (which, entry) in &self.entries {
            let facts = instances
                .entry(which.instance)
                .or_insert_with(|| InstanceFacts::empty(which.instance));
            let process = |index| ProcessFacts {
                index,
                attempt: entry.attempt,
                phase: entry.phase.clone(),
            };
            match which.role {
                ProcessRole::Launcher => facts.launcher = Some(process(0)),
                ProcessRole::Worker(index) => facts.workers.push(process(index)),
            }
        }
        instances
    }

    /// How each process ended, in the order in which they did.
    pub(crate) fn records(&self) -> &[ProcessRecord] {
        &self.records
    }
}
