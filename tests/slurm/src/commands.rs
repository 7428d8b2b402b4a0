//! Commands inside a bed.

use std::process::{Command, Output};

use crate::bed::Bed;
use crate::poll::poll;

/// The result of a command.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Whether it exited with 0.
    pub success: bool,
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for CommandOutput {
    fn from(output: Output) -> Self {
        Self {
            success: output.status.success(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Bed {
    /// Returns a command inside the bed, as root, in the directory `work`.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.sandbox().command(None, program)
    }

    /// Returns a command inside the bed, as this user of the system.
    #[must_use]
    pub fn command_as(&self, user: &str, program: &str) -> Command {
        self.sandbox().command(Some(user), program)
    }

    /// Runs a command as root and returns its result.
    ///
    /// # Panics
    ///
    /// If it cannot be started.
    #[must_use]
    pub fn run(&self, program: &str, arguments: &[&str]) -> CommandOutput {
        match self.command(program).args(arguments).output() {
            Ok(output) => output.into(),
            Err(error) => panic!("cannot run {program}: {error}"),
        }
    }

    /// Runs a command that must succeed, and returns its trimmed standard output.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn succeed(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        assert!(
            output.success,
            "{program} {arguments:?}: {output:?}\n{}",
            self.logs()
        );
        output.stdout.trim().to_owned()
    }

    /// Returns the ids of all jobs in the queue, those that are completing included. Empty if slurmctld does
    /// not answer.
    #[must_use]
    pub fn job_ids(&self) -> Vec<String> {
        let text = self.run("squeue", &["-h", "-o", "%i"]).stdout;
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Returns `scontrol -o show job` of a job.
    #[must_use]
    pub fn show_job(&self, job: &str) -> String {
        self.run("scontrol", &["-o", "show", "job", job]).stdout
    }

    /// Returns the state of every node as `sinfo` names it.
    #[must_use]
    pub fn node_states(&self) -> Vec<String> {
        let text = self.run("sinfo", &["-h", "-N", "-o", "%T"]).stdout;
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Waits until `condition` holds.
    ///
    /// # Panics
    ///
    /// If it does not hold in time.
    #[track_caller]
    pub fn wait_until(&self, condition_text: &str, mut condition: impl FnMut() -> bool) {
        self.wait_for(condition_text, || condition().then_some(()));
    }

    /// Waits until `read` returns a value.
    ///
    /// # Panics
    ///
    /// If it does not return one in time.
    #[track_caller]
    pub fn wait_for<T>(&self, condition_text: &str, mut read: impl FnMut() -> Option<T>) -> T {
        match poll(&mut read) {
            Some(value) => value,
            None => panic!("waited in vain until {condition_text}\n{}", self.logs()),
        }
    }
}
