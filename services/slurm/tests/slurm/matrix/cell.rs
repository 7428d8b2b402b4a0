//! Cells: a way to have IPUs, a command that asks for them, and an event in the life of the job.

use std::fmt;

use super::way::Way;

/// The command that submits the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Sbatch,
    Srun,
    Salloc,
}

impl Command {
    pub(crate) const ALL: [Self; 3] = [Self::Sbatch, Self::Srun, Self::Salloc];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sbatch => "sbatch",
            Self::Srun => "srun",
            Self::Salloc => "salloc",
        }
    }
}

/// An event in the life of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Success,
    Failure,
    /// `scancel` while the hooks of the start run.
    CancelEarly,
    /// `scancel` of a running job.
    CancelLate,
    /// `scontrol requeue` of a running job; Slurm refuses that without a batch script.
    Requeue,
    /// An administrator sets the node down.
    NodeDown,
    SlurmctldKilled,
    SlurmctldRestarted,
    SlurmdKilled,
    TimeLimit,
    /// The processes of the node are killed, those of Slurm and of the job. Takes longer than
    /// `SlurmdTimeout`.
    NodeLost,
}

impl Event {
    /// Events of the gate.
    pub(crate) const GATE: [Self; 10] = [
        Self::Success,
        Self::Failure,
        Self::CancelEarly,
        Self::CancelLate,
        Self::Requeue,
        Self::NodeDown,
        Self::SlurmctldKilled,
        Self::SlurmctldRestarted,
        Self::SlurmdKilled,
        Self::TimeLimit,
    ];

    /// Events of the gate for the shared partition, one for each command.
    pub(crate) const SHARED: [Self; 3] = [Self::Requeue, Self::SlurmctldKilled, Self::SlurmdKilled];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
            Self::CancelEarly => "scancel early",
            Self::CancelLate => "scancel late",
            Self::Requeue => "requeue",
            Self::NodeDown => "node down",
            Self::SlurmctldKilled => "slurmctld killed",
            Self::SlurmctldRestarted => "slurmctld restarted",
            Self::SlurmdKilled => "slurmd killed",
            Self::TimeLimit => "time limit",
            Self::NodeLost => "node lost",
        }
    }
}

/// A cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) way: Way,
    pub(crate) command: Command,
    pub(crate) event: Event,
}

impl Cell {
    /// Returns all cells.
    pub(crate) fn all() -> Vec<Self> {
        let lost = product(&[Event::NodeLost]);
        [Self::gate_events(), lost].concat()
    }

    /// Returns all cells with the events of the gate.
    pub(crate) fn gate_events() -> Vec<Self> {
        product(&Event::GATE)
    }

    /// Returns as few cells as possible with every pair of way and command, way and event, command and event.
    /// The shared partition has three events only: no hook of Slurm allocates or releases anything there.
    pub(crate) fn pairs() -> Vec<Self> {
        let ways = Way::ALL.into_iter().filter(|way| *way != Way::Shared).enumerate();
        let pairs = ways.flat_map(|(row, way)| {
            let events = Event::GATE.into_iter().enumerate();
            events.map(move |(column, event)| Self {
                way,
                command: Command::ALL[(row + column) % Command::ALL.len()],
                event,
            })
        });
        let shared = Command::ALL
            .into_iter()
            .zip(Event::SHARED)
            .map(|(command, event)| Self {
                way: Way::Shared,
                command,
                event,
            });
        pairs.chain(shared).collect()
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}, {}",
            self.way.name(),
            self.command.name(),
            self.event.name()
        )
    }
}

fn product(events: &[Event]) -> Vec<Cell> {
    let mut cells = Vec::new();
    for way in Way::ALL {
        for &event in events {
            cells.extend(Command::ALL.map(|command| Cell { way, command, event }));
        }
    }
    cells
}
