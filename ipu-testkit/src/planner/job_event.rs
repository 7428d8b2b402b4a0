//! What happens to a job, its processes and its planner: a line of a story each, written and read.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ipu_core::{Exit, PartitionFacts, ProcessPhase};
use proptest::prelude::*;

use super::world::{CapacityState, JobWorld, ProcessRole};

/// Something that happens in a [`JobWorld`] besides passes: a line of a story of `ipu-core/testdata/plan`, whose README
/// explains the lines. `Display` and `FromStr` are each other's inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobEvent {
    /// What is under way comes to its end.
    Progress,
    /// Partitions under way are there, or gone.
    Ready,
    /// Seconds pass.
    After(u64),
    /// The Pod has room, or has not.
    Room(CapacityState),
    /// The owner edits the job; words as in [`raw_job_from_words`](crate::raw_job_from_words).
    Change(Vec<String>),
    /// The job's deletion is asked for.
    Delete,
    /// The partition of an instance goes into error.
    PartitionFails(u32),
    /// The partition of an instance is taken away.
    PartitionGone(u32),
    /// Something happens to a process of an instance.
    Process(u32, ProcessRole, ProcessEnd),
}

/// What happens to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessEnd {
    /// It is running and ready.
    Runs,
    /// It goes on waiting, for this.
    Waits(String),
    /// It ends.
    Ends(Exit),
    /// It is lost, for this cause.
    Lost(String),
    /// It is gone without a trace.
    Vanishes,
    /// Others take it away, and that is known.
    IsTaken,
}

/// Whether a happening found what it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// It did.
    Found,
    /// There is no such process that is alive, or no such partition.
    Missed,
}

impl JobEvent {
    /// Makes it happen.
    ///
    /// # Errors
    ///
    /// What is wrong with a change of the job.
    pub fn inject(&self, world: &mut JobWorld) -> Result<EventEffect, String> {
        let at = world.seen.now;
        match self {
            Self::Progress => world.progress(),
            Self::Ready => world.partitions_progress(),
            Self::After(seconds) => world.after(Duration::from_secs(*seconds)),
            Self::Room(room) => world.capacity = *room,
            Self::Change(words) => world.change(words.iter().map(String::as_str))?,
            Self::Delete => world.seen.deleted = true,
            Self::PartitionFails(instance) => {
                let partition = &mut world.instance(*instance).partition;
                let attempt = match partition {
                    PartitionFacts::Active { attempt, .. } | PartitionFacts::Pending { attempt } => *attempt,
                    _ => return Ok(EventEffect::Missed),
                };
                let errors = vec!["IPU link down".to_string()];
                *partition = PartitionFacts::Failed { attempt, errors };
            }
            Self::PartitionGone(instance) => world.instance(*instance).partition = PartitionFacts::Absent,
            Self::Process(instance, who, ProcessEnd::Vanishes) => world.forget(*instance, *who),
            Self::Process(instance, who, ProcessEnd::IsTaken) => world.reserve(*instance, *who),
            Self::Process(instance, who, fate) => {
                let known = world.process(*instance, *who);
                // What has ended stays as it ended.
                let Some(process) = known.filter(|process| process.phase.is_alive()) else {
                    return Ok(EventEffect::Missed);
                };
                process.phase = match fate {
                    ProcessEnd::Runs | ProcessEnd::Vanishes | ProcessEnd::IsTaken => {
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
            Self::Room(CapacityState::Free) => f.write_str("room"),
            Self::Room(CapacityState::Full) => f.write_str("full"),
            Self::Change(words) => write!(f, "change {}", words.join(" ")),
            Self::Delete => f.write_str("delete"),
            Self::PartitionFails(instance) => write!(f, "partition {instance} error"),
            Self::PartitionGone(instance) => write!(f, "partition {instance} gone"),
            Self::Process(instance, who, fate) => {
                match who {
                    ProcessRole::Worker(number) => write!(f, "worker {instance}/{number} ")?,
                    ProcessRole::Launcher => write!(f, "launcher {instance} ")?,
                }
                match fate {
                    ProcessEnd::Runs => f.write_str("runs"),
                    ProcessEnd::Waits(cause) => write!(f, "waits {cause}"),
                    ProcessEnd::Ends(Exit::Code(code)) => write!(f, "exits {code}"),
                    ProcessEnd::Ends(Exit::Signal(signal)) => write!(f, "killed {signal}"),
                    ProcessEnd::Ends(other) => write!(f, "{other}"),
                    ProcessEnd::Lost(cause) => write!(f, "lost {cause}"),
                    ProcessEnd::Vanishes => f.write_str("vanishes"),
                    ProcessEnd::IsTaken => f.write_str("is taken away"),
                }
            }
        }
    }
}

impl FromStr for JobEvent {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        Ok(match words[..] {
            ["progress"] => Self::Progress,
            ["ready"] => Self::Ready,
            ["after", time] => Self::After(number(time.trim_end_matches('s'))?),
            ["room"] => Self::Room(CapacityState::Free),
            ["full"] => Self::Room(CapacityState::Full),
            ["change", ref words @ ..] => Self::Change(words.iter().map(ToString::to_string).collect()),
            ["delete"] => Self::Delete,
            ["partition", instance, "error"] => Self::PartitionFails(number(instance)?),
            ["partition", instance, "gone"] => Self::PartitionGone(number(instance)?),
            ["worker", who, ref fate @ ..] => {
                let (instance, worker) = who.split_once('/').ok_or("a worker is INSTANCE/NUMBER")?;
                Self::Process(
                    number(instance)?,
                    ProcessRole::Worker(number(worker)?),
                    fate_of(fate)?,
                )
            }
            ["launcher", instance, ref fate @ ..] => {
                Self::Process(number(instance)?, ProcessRole::Launcher, fate_of(fate)?)
            }
            _ => return Err(format!("no such line: {line}")),
        })
    }
}

fn fate_of(words: &[&str]) -> Result<ProcessEnd, String> {
    Ok(match words {
        ["runs"] => ProcessEnd::Runs,
        ["waits", cause @ ..] => ProcessEnd::Waits(cause.join(" ")),
        ["exits", code] => ProcessEnd::Ends(Exit::Code(number(code)?)),
        ["killed", signal] => ProcessEnd::Ends(Exit::Signal(number(signal)?)),
        ["lost", cause @ ..] => ProcessEnd::Lost(cause.join(" ")),
        ["vanishes"] => ProcessEnd::Vanishes,
        ["is", "taken", "away"] => ProcessEnd::IsTaken,
        other => return Err(format!("a process does not do this: {}", other.join(" "))),
    })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("no number: {text}"))
}

/// Anything that may happen to a job of up to four instances and two workers.
pub(super) fn happenings() -> impl Strategy<Value = JobEvent> {
    let who = prop_oneof![2 => (0_u32..2).prop_map(ProcessRole::Worker), 1 => Just(ProcessRole::Launcher)];
    let fate = prop_oneof![
        1 => Just(ProcessEnd::Ends(Exit::Code(0))),
        1 => Just(ProcessEnd::Ends(Exit::Code(1))),
        1 => Just(ProcessEnd::Ends(Exit::Code(130))),
        1 => prop_oneof![Just(9_u8), Just(15)].prop_map(|signal| ProcessEnd::Ends(Exit::Signal(signal))),
        1 => Just(ProcessEnd::Lost("evicted".to_string())),
        1 => Just(ProcessEnd::Vanishes),
        1 => Just(ProcessEnd::IsTaken),
    ];
    prop_oneof![
        8 => Just(JobEvent::Progress),
        5 => (0_u32..4, who, fate).prop_map(|(instance, who, fate)| JobEvent::Process(instance, who, fate)),
        1 => (0_u32..4).prop_map(JobEvent::PartitionFails),
        1 => prop_oneof![Just(CapacityState::Free), Just(CapacityState::Full)].prop_map(JobEvent::Room),
        2 => (1_u64..60).prop_map(JobEvent::After),
        1 => (60_u64..700).prop_map(JobEvent::After),
        1 => prop_oneof![Just("suspend=yes"), Just("suspend=no")]
            .prop_map(|word| JobEvent::Change(vec![word.into()])),
        1 => (0_u32..4).prop_map(|instances| JobEvent::Change(vec![format!("instances={instances}")])),
    ]
}
