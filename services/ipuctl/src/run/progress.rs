//! What a person sees while a run goes on: why it waits, when it has its partitions, when it tries again.

use std::collections::BTreeMap;

use ipu_core::{JobPhase, Plan};

use crate::output::Output;

/// The codes of reasons that last for a moment.
const PASSING: [&str; 4] = [
    "PreparingPartition",
    "StartingWorkers",
    "StartingLauncher",
    "StoppingProcesses",
];

/// What has been said so far.
pub(crate) struct Progress {
    output: Output,
    restarts: u32,
}

impl Progress {
    pub(crate) const fn new(output: Output) -> Self {
        Self { output, restarts: 0 }
    }

    /// Says what is new in `plan`. `waiting` has more to say of instances in the line than the plan knows.
    pub(crate) fn show(&mut self, plan: &Plan, waiting: &BTreeMap<u32, String>) {
        if plan.status.restarts > self.restarts {
            self.restarts = plan.status.restarts;
            if let Some(first) = &plan.status.first_failure {
                self.output
                    .say(&format!("restart {}: {}", self.restarts, first.cause));
            }
        }
        let first = plan.reasons.first();
        let line = match plan.status.phase {
            JobPhase::Pending if !waiting.is_empty() => {
                Some(waiting.values().cloned().collect::<Vec<_>>().join("; "))
            }
            JobPhase::Pending | JobPhase::Restarting | JobPhase::Suspended => {
                first.map(|reason| reason.message.clone())
            }
            _ => None,
        };
        // What is over in a moment is worth a look on a terminal, and no line in a file. A controller that does not answer
        // may last.
        let passing =
            waiting.is_empty() && first.is_some_and(|reason| PASSING.contains(&reason.code.as_str()));
        self.output
            .status(line.as_deref().filter(|_| !passing || self.output.is_terminal()));
    }
}
