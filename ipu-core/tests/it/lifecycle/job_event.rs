//! Events of a job, its processes and its planner, each written and parsed as a line of a script.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ipu_core::job::{Exit, PartitionFacts, ProcessPhase};
use ipu_core::{Reason, ReasonCode};
use proptest::prelude::*;

use super::world::{CapacityState, JobWorld, ProcessRole};

/// Event in a [`JobWorld`] besides reconciliations: a line of a script of `ipu-core/testdata/plan`, whose
/// README explains the lines. `Display` and `FromStr` are inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobEvent {
    /// Operations in progress complete.
    Progress,
    /// Partition operations in progress complete.
    Ready,
    /// Seconds pass.
    After(u64),
    /// Capacity becomes available or exhausted.
    Capacity(CapacityState),
    /// The owner edits the job; fields as in [`ipu_testkit::raw_job_from_dsl`].
    Change(Vec<String>),
    /// The deletion of the job is requested.
    Delete,
    /// The partition of an instance fails.
    PartitionFails(u32),
    /// The partition of an instance is deleted.
    PartitionDeleted(u32),
    /// A request of higher priority demands the partition of an instance.
    Preempted(u32),
    /// The demand ends without the partition.
    NotPreempted(u32),
    /// A process of an instance changes.
    Process(u32, ProcessRole, ProcessEnd),
}

/// Change of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// The process is running and ready.
    Runs,
    /// The process keeps waiting, for this reason.
    Waits(String),
    /// The process ends.
    Ends(Exit),
    /// The process is lost, for this cause.
    Lost(String),
    /// The process disappears without a trace.
    Vanishes,
    /// The process is deleted by a third party, which is known.
    Disrupted,
}

/// Result of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventEffect {
    /// The event had a target.
    Found,
    /// No such process is alive, or no such partition exists.
    Missed,
}

impl JobEvent {
    /// Applies the event.
    pub(crate) fn inject(&self, world: &mut JobWorld) -> Result<EventEffect, String> {
        let at = world.observation.now;
        match self {
            Self::Progress => world.progress(),
            Self::Ready => world.partitions_progress(),
            Self::After(seconds) => world.after(Duration::from_secs(*seconds)),
            Self::Capacity(capacity) => world.capacity = *capacity,
            Self::Change(fields) => world.change(fields.iter().map(String::as_str))?,
            Self::Delete => world.observation.deleted = true,
            Self::PartitionFails(instance) => {
                let partition = &mut world.instance(*instance).partition;
                let attempt = match partition {
                    PartitionFacts::Active { attempt, .. } | PartitionFacts::Pending { attempt } => *attempt,
                    _ => return Ok(EventEffect::Missed),
                };
                let errors = vec!["IPU link down".to_string()];
                *partition = PartitionFacts::Failed { attempt, errors };
            }
            Self::PartitionDeleted(instance) => {
                let facts = world.instance(*instance);
                (facts.partition, facts.preempted) = (PartitionFacts::Absent, None);
            }
            Self::Preempted(instance) => {
                let facts = world.instance(*instance);
                let is_held = matches!(
                    facts.partition,
                    PartitionFacts::Active { .. } | PartitionFacts::Failed { .. }
                );
                if !is_held {
                    return Ok(EventEffect::Missed);
                }
                facts.preempted = Some(Reason::new(
                    ReasonCode::Preempted,
                    "Test ns/first preempts it with priority 7",
                ));
            }
            Self::NotPreempted(instance) => world.instance(*instance).preempted = None,
            Self::Process(instance, role, ProcessEnd::Vanishes) => world.delete_process(*instance, *role),
            Self::Process(instance, role, ProcessEnd::Disrupted) => world.disrupt(*instance, *role),
            Self::Process(instance, role, end) => {
                let process = world.process(*instance, *role);
                // An ended process keeps its end.
                let Some(process) = process.filter(|process| process.phase.is_alive()) else {
                    return Ok(EventEffect::Missed);
                };
                process.phase = match end {
                    ProcessEnd::Runs | ProcessEnd::Vanishes | ProcessEnd::Disrupted => {
                        ProcessPhase::Running { since: at }
                    }
                    ProcessEnd::Waits(cause) => match &process.phase {
                        ProcessPhase::Starting { since, .. } => ProcessPhase::Starting {
                            since: *since,
                            cause: cause.clone(),
                        },
                        _ => return Ok(EventEffect::Missed),
                    },
                    ProcessEnd::Ends(exit) => ProcessPhase::Exited {
                        exit: *exit,
                        at,
                        last_lines: String::new(),
                        cause: String::new(),
                    },
                    ProcessEnd::Lost(cause) => ProcessPhase::Lost {
                        at,
                        cause: cause.clone(),
                    },
                };
            }
        }
        Ok(EventEffect::Found)
    }
}

impl fmt::Display for JobEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Progress => f.write_str("progress"),
            Self::Ready => f.write_str("ready"),
            Self::After(seconds) => write!(f, "after {seconds}s"),
            Self::Capacity(CapacityState::Free) => f.write_str("room"),
            Self::Capacity(CapacityState::Full) => f.write_str("full"),
            Self::Change(fields) => write!(f, "change {}", fields.join(" ")),
            Self::Delete => f.write_str("delete"),
            Self::PartitionFails(instance) => write!(f, "partition {instance} error"),
            Self::PartitionDeleted(instance) => write!(f, "partition {instance} gone"),
            Self::Preempted(instance) => write!(f, "partition {instance} preempted"),
            Self::NotPreempted(instance) => write!(f, "partition {instance} kept"),
            Self::Process(instance, role, end) => {
                match role {
                    ProcessRole::Worker(number) => write!(f, "worker {instance}/{number} ")?,
                    ProcessRole::Launcher => write!(f, "launcher {instance} ")?,
                }
                match end {
                    ProcessEnd::Runs => f.write_str("runs"),
                    ProcessEnd::Waits(cause) => write!(f, "waits {cause}"),
                    ProcessEnd::Ends(Exit::Code(code)) => write!(f, "exits {code}"),
                    ProcessEnd::Ends(Exit::Signal(signal)) => write!(f, "killed {signal}"),
                    ProcessEnd::Lost(cause) => write!(f, "lost {cause}"),
                    ProcessEnd::Vanishes => f.write_str("vanishes"),
                    ProcessEnd::Disrupted => f.write_str("is taken away"),
                }
            }
        }
    }
}

impl FromStr for JobEvent {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        Ok(match fields[..] {
            ["progress"] => Self::Progress,
            ["ready"] => Self::Ready,
            ["after", time] => Self::After(number(time.trim_end_matches('s'))?),
            ["room"] => Self::Capacity(CapacityState::Free),
            ["full"] => Self::Capacity(CapacityState::Full),
            ["change", ref fields @ ..] => Self::Change(fields.iter().map(ToString::to_string).collect()),
            ["delete"] => Self::Delete,
            ["partition", instance, "error"] => Self::PartitionFails(number(instance)?),
            ["partition", instance, "gone"] => Self::PartitionDeleted(number(instance)?),
            ["partition", instance, "preempted"] => Self::Preempted(number(instance)?),
            ["partition", instance, "kept"] => Self::NotPreempted(number(instance)?),
            ["worker", role, ref end @ ..] => {
                let (instance, worker) = role.split_once('/').ok_or("write a worker as INSTANCE/NUMBER")?;
                Self::Process(
                    number(instance)?,
                    ProcessRole::Worker(number(worker)?),
                    parse_process_end(end)?,
                )
            }
            ["launcher", instance, ref end @ ..] => {
                Self::Process(number(instance)?, ProcessRole::Launcher, parse_process_end(end)?)
            }
            _ => return Err(format!("unknown line: {line}")),
        })
    }
}

fn parse_process_end(fields: &[&str]) -> Result<ProcessEnd, String> {
    Ok(match fields {
        ["runs"] => ProcessEnd::Runs,
        ["waits", cause @ ..] => ProcessEnd::Waits(cause.join(" ")),
        ["exits", code] => ProcessEnd::Ends(Exit::Code(number(code)?)),
        ["killed", signal] => ProcessEnd::Ends(Exit::Signal(number(signal)?)),
        ["lost", cause @ ..] => ProcessEnd::Lost(cause.join(" ")),
        ["vanishes"] => ProcessEnd::Vanishes,
        ["is", "taken", "away"] => ProcessEnd::Disrupted,
        other => return Err(format!("unknown process event: {}", other.join(" "))),
    })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("not a number: {text}"))
}

/// Returns any event of a job of up to four instances and two workers.
pub(crate) fn job_events() -> impl Strategy<Value = JobEvent> {
    let role = prop_oneof![2 => (0_u32..2).prop_map(ProcessRole::Worker), 1 => Just(ProcessRole::Launcher)];
    let end = prop_oneof![
        1 => Just(ProcessEnd::Ends(Exit::Code(0))),
        1 => Just(ProcessEnd::Ends(Exit::Code(1))),
        1 => Just(ProcessEnd::Ends(Exit::Code(130))),
        1 => prop_oneof![Just(9_u8), Just(15)].prop_map(|signal| ProcessEnd::Ends(Exit::Signal(signal))),
        1 => Just(ProcessEnd::Lost("evicted".to_string())),
        1 => Just(ProcessEnd::Vanishes),
        1 => Just(ProcessEnd::Disrupted),
    ];
    prop_oneof![
        8 => Just(JobEvent::Progress),
        5 => (0_u32..4, role, end).prop_map(|(instance, role, end)| JobEvent::Process(instance, role, end)),
        1 => (0_u32..4).prop_map(JobEvent::PartitionFails),
        1 => prop_oneof![
            3 => (0_u32..4).prop_map(JobEvent::Preempted),
            1 => (0_u32..4).prop_map(JobEvent::NotPreempted),
        ],
        1 => prop_oneof![Just(CapacityState::Free), Just(CapacityState::Full)].prop_map(JobEvent::Capacity),
        2 => (1_u64..60).prop_map(JobEvent::After),
        1 => (60_u64..700).prop_map(JobEvent::After),
        1 => prop_oneof![Just("suspend=yes"), Just("suspend=no")]
            .prop_map(|word| JobEvent::Change(vec![word.into()])),
        1 => (0_u32..4).prop_map(|instances| JobEvent::Change(vec![format!("instances={instances}")])),
    ]
}

#[test]
fn job_events_survive_a_round_trip_through_text() {
    let lines = [
        "progress",
        "ready",
        "after 10s",
        "room",
        "full",
        "change suspend=yes instances=2",
        "delete",
        "partition 1 error",
        "partition 0 gone",
        "worker 1/0 exits 3",
        "worker 0/1 killed 9",
        "launcher 0 lost no heartbeat",
        "launcher 2 vanishes",
        "worker 0/0 runs",
    ];
    for line in lines {
        let event: JobEvent = line.parse().unwrap();
        assert_eq!(event.to_string(), line);
    }
    for wrong in [
        "",
        "worker 1 exits 3",
        "worker 0/0 sings",
        "after noon",
        "partition 0",
    ] {
        assert!(wrong.parse::<JobEvent>().is_err(), "{wrong}");
    }
}
