//! Commands of Slurm for hooks of nodes, which start no asynchronous runtime.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use ipu_slurm::{
    GresList, InputError, RunKey, RunList, SQUEUE_ARGS, SQUEUE_GRES_ARGS, SQUEUE_JOB_ARGS, SlurmJob,
    UNKNOWN_JOB, parse_allocated_gres, parse_job, parse_squeue_gres, parse_squeue_job,
};

use super::{PATH, Slurm, SlurmError, TIMEOUT, command_line, output};

impl Slurm {
    /// Returns a job; none if slurmctld does not know it. Its name and comments may be unknown.
    pub(crate) fn job_blocking(&self, id: u32) -> Result<Option<SlurmJob>, SlurmError> {
        let text = match self.run_blocking("scontrol", &["-o", "show", "job", &id.to_string()]) {
            Err(SlurmError::Failed { message, .. }) if message.contains(UNKNOWN_JOB) => return Ok(None),
            text => text?,
        };
        match parse_job(&text, id) {
            Ok(job) => Ok(Some(job)),
            Err(_) => self
                .squeue_blocking(&SQUEUE_JOB_ARGS, id, parse_squeue_job)
                .map(Some),
        }
    }

    /// Returns the resources that a job has on each of its nodes; those that it requested, if its texts make
    /// the record ambiguous.
    pub(crate) fn gres_blocking(&self, id: u32) -> Result<GresList, SlurmError> {
        let text = self.run_blocking("scontrol", &["-o", "-d", "show", "job", &id.to_string()])?;
        match parse_allocated_gres(&text, id) {
            Ok(gres) => Ok(gres),
            Err(_) => self.squeue_blocking(&SQUEUE_GRES_ARGS, id, parse_squeue_gres),
        }
    }

    /// Returns the present run of a job id.
    pub(crate) fn run_key_blocking(&self, id: u32) -> Result<RunKey, SlurmError> {
        let runs = self.squeue_blocking(&SQUEUE_ARGS, id, |text, _| RunList::parse(text))?;
        runs.key_of(id).ok_or_else(|| SlurmError::Failed {
            command: command_line("squeue", &SQUEUE_ARGS),
            message: UNKNOWN_JOB.to_owned(),
        })
    }

    /// Returns an answer without a text of a user.
    fn squeue_blocking<T>(
        &self,
        format: &[&str],
        id: u32,
        parse: impl Fn(&str, u32) -> Result<T, InputError>,
    ) -> Result<T, SlurmError> {
        let jobs = format!("--jobs={id}");
        let arguments: Vec<&str> = format.iter().copied().chain([jobs.as_str()]).collect();
        let text = self.run_blocking("squeue", &arguments)?;
        parse(&text, id).map_err(|source| output("squeue", &arguments, source))
    }

    /// Runs a command and returns its standard output.
    fn run_blocking(&self, name: &'static str, arguments: &[&str]) -> Result<String, SlurmError> {
        let start_error = |source| SlurmError::Start {
            command: name,
            source,
        };
        let mut process = Command::new(self.directory.join(name));
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
        let command = command_line(name, arguments);
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
