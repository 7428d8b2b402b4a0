//! Readiness polling of servers, and execution of commands.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::ClusterError;
use crate::process::Server;

/// Maximum time until a server is ready: many times the need of an idle machine, for a loaded one.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Interval of readiness polls.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `poll` returns status 200.
pub(crate) fn wait(
    server: &Server,
    mut poll: impl FnMut() -> std::io::Result<(u16, String)>,
) -> Result<(), ClusterError> {
    let started = Instant::now();
    loop {
        let status_text = match poll() {
            Ok((200, _)) => return Ok(()),
            Ok((status, body)) => format!("the last response was {status}: {body}"),
            Err(error) => error.to_string(),
        };
        if server.has_ended() {
            return Err(server.not_ready("the process has ended".into()));
        }
        if started.elapsed() > TIMEOUT {
            return Err(server.not_ready(status_text));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Runs a command and returns its output; the error has its error output.
pub(crate) fn run(mut command: Command) -> Result<String, ClusterError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let run_error = |detail: String| ClusterError::step(format!("run {name}"), detail);
    let output = command.output().map_err(|error| run_error(error.to_string()))?;
    if !output.status.success() {
        return Err(run_error(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
