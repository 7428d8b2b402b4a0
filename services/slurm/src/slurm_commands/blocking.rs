//! Commands of Slurm for hooks of nodes, which start no asynchronous runtime.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::{PATH, Slurm, SlurmError, TIMEOUT, command_line};

/// The command.
const SCONTROL: &str = "scontrol";

impl Slurm {
    /// Runs `scontrol` and returns its standard output.
    pub(crate) fn scontrol_blocking(&self, arguments: &[&str]) -> Result<String, SlurmError> {
        let start_error = |source| SlurmError::Start {
            command: SCONTROL,
            source,
        };
        let mut process = Command::new(self.directory.join(SCONTROL));
        process
            .args(arguments)
            .env_clear()
            .env("PATH", PATH)
            .env("LC_ALL", "C")
            .env("SLURM_TIME_FORMAT", "%s")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(slurm_conf) = &self.slurm_conf {
            process.env("SLURM_CONF", slurm_conf);
        }
        let mut child = process.spawn().map_err(start_error)?;
        let pipes = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let (ended, wait) = channel::<()>();
        let watched = Arc::clone(&child);
        let watchdog = std::thread::spawn(move || {
            let timed_out = wait.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout);
            if timed_out {
                // It may have ended meanwhile.
                let _ = watched.lock().unwrap_or_else(PoisonError::into_inner).kill();
            }
            timed_out
        });
        let result = read_and_wait(pipes, &child);
        drop(ended);
        let timed_out = watchdog.join().unwrap_or(false);
        let (status, output, message) = result.map_err(start_error)?;
        if status.success() {
            return Ok(output);
        }
        let command = command_line(SCONTROL, arguments);
        Err(if timed_out {
            SlurmError::Timeout { command }
        } else {
            // 22.05 prints some errors on standard output.
            let message = message + &output;
            SlurmError::Failed { command, message }
        })
    }
}

type Pipes = (
    Option<std::process::ChildStdout>,
    Option<std::process::ChildStderr>,
);

/// Reads standard output and standard error to their ends, which the end of the process brings.
fn read_and_wait(pipes: Pipes, child: &Mutex<Child>) -> std::io::Result<(ExitStatus, String, String)> {
    let (output, messages) = pipes;
    let messages = std::thread::spawn(move || read(messages));
    let output = read(output)?;
    let messages = messages.join().unwrap_or_else(|_| Ok(String::new()))?;
    let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
    Ok((status, output, messages))
}

fn read(pipe: Option<impl std::io::Read>) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes)?;
    }
    // Any byte may be in the name of a job.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
