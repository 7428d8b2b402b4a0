//! Waits for servers, and runs commands that end.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::ClusterError;
use crate::process::Server;

/// How long a server may take to become ready: many times what an idle machine needs, for one that is not.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How often it is asked.
const POLL: Duration = Duration::from_millis(20);

/// Waits until `ask` is answered with success.
pub(crate) fn wait(
    server: &Server,
    mut ask: impl FnMut() -> std::io::Result<(u16, String)>,
) -> Result<(), ClusterError> {
    let begun = Instant::now();
    loop {
        let seen = match ask() {
            Ok((200, _)) => return Ok(()),
            Ok((status, body)) => format!("it answers {status}: {body}"),
            Err(error) => error.to_string(),
        };
        if server.has_ended() {
            return Err(server.not_ready("it has ended".into()));
        }
        if begun.elapsed() > TIMEOUT {
            return Err(server.not_ready(seen));
        }
        std::thread::sleep(POLL);
    }
}

/// Runs a command and answers what it prints; if it fails, what it complains of.
pub(crate) fn run(mut command: Command) -> Result<String, ClusterError> {
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |detail: String| ClusterError::step(format!("run {name}"), detail);
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
