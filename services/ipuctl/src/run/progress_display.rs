//! Shows the progress of a run: the place in the queue, operations of the controller, restarts.

use std::collections::BTreeMap;

use ipu_core::job::{JobPhase, Plan};
use ipu_core::{Reason, ReasonCode};

use crate::output::Output;

/// Shows progress and remembers what was shown.
pub(crate) struct ProgressDisplay {
    output: Output,
    restarts: u32,
}

impl ProgressDisplay {
    pub(crate) const fn new(output: Output) -> Self {
        Self { output, restarts: 0 }
    }

    /// Shows changes of `plan`. `waiting` has the messages of queued instances, which are more detailed than
    /// the plan.
    pub(crate) fn show(&mut self, plan: &Plan, waiting: &BTreeMap<u32, String>) {
        if plan.status.restarts > self.restarts {
            self.restarts = plan.status.restarts;
            if let Some(first) = &plan.status.first_failure {
                self.output
                    .say(&format!("restart {}: {}", self.restarts, first.cause));
            }
        }
        let first = plan.reasons.first();
        let is_waiting = matches!(
            plan.status.phase,
            JobPhase::Pending | JobPhase::Restarting | JobPhase::Suspended
        );
        if plan.status.phase == JobPhase::Pending && !waiting.is_empty() {
            let text = waiting.values().cloned().collect::<Vec<_>>().join("; ");
            self.output.status(Some(&text));
        } else if let Some(reason) = first.filter(|_| is_waiting) {
            match transient(reason) {
                // A state of a moment is shown on a terminal but not printed to a file.
                Some(text) if self.output.is_terminal() => self.output.status(Some(&text)),
                Some(_) => self.output.status(None),
                None => self.output.status(Some(&reason.message)),
            }
        } else {
            self.output.status(None);
        }
    }
}

/// Returns the text of a reason that lasts for a moment; none for other reasons.
fn transient(reason: &Reason) -> Option<String> {
    let instance = reason
        .numbers
        .get("instance")
        .map_or_else(String::new, |instance| format!(" of instance {instance}"));
    Some(match reason.code {
        ReasonCode::PreparingPartition => format!("Preparing the partition{instance}…"),
        ReasonCode::StartingWorkers => format!("Starting the workers{instance}…"),
        ReasonCode::StartingLauncher => format!("Starting the launcher{instance}…"),
        ReasonCode::StoppingProcesses => format!("Stopping the processes{instance}…"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reasons_of_a_moment_are_transient() {
        let reason = Reason::new(ReasonCode::PreparingPartition, "as planned").with("instance", 0_u32);
        assert_eq!(
            transient(&reason).as_deref(),
            Some("Preparing the partition of instance 0…")
        );
        assert_eq!(
            transient(&Reason::new(ReasonCode::BackingOff, "as planned")),
            None
        );
    }
}
