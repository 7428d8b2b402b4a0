//! Files by which `mpirun` starts processes on the workers of an instance, which all are on this host: a
//! hostfile, and a script in place of `ssh`. The script calls `ipuctl __exec`, which is also in this file.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ipu_core::job::JobSpec;
use ipu_core::render::{MpiEnv, hostfile};
use serde::{Deserialize, Serialize};

use super::environment::Variables;
use crate::exit_code::{Code, Failure};
use crate::state_dir::write_file;

/// Working directory and variables of processes on a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WorkerFile {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) variables: Variables,
}

/// Writes the files of instance `instance` into `directory`. Returns the variables for its launcher.
pub(crate) fn prepare(
    directory: &Path,
    job: &JobSpec,
    instance: u32,
    interface: &str,
    workers: Vec<WorkerFile>,
) -> io::Result<Vec<(&'static str, String)>> {
    for (worker, mut file) in (0..).zip(workers) {
        let name = job.worker_name(instance, worker);
        // Open MPI treats the workers as different hosts. Without separate directories its daemons would
        // create the same one concurrently, and all but one would fail.
        let scratch = directory.join(&name).to_string_lossy().into_owned();
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&scratch)?;
        file.variables
            .push(("OMPI_MCA_orte_tmpdir_base".to_owned(), scratch));
        write_file(&worker_path(directory, &name), 0o600, &serde_json::to_vec(&file)?)?;
    }
    let hosts = directory.join(format!("hostfile-{instance}"));
    write_file(&hosts, 0o600, hostfile(job, instance).as_bytes())?;
    let agent = directory.join("kubexec.sh");
    let script = format!(
        "#!/bin/sh\n# Runs a command on a worker: kubexec.sh WORKER COMMAND...\nexec {} __exec {} \"$@\"\n",
        quoted(&std::env::current_exe()?),
        quoted(directory)
    );
    write_file(&agent, 0o700, script.as_bytes())?;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let mpi = MpiEnv {
        remote_agent: &text(&agent),
        hostfile: &text(&hosts),
        tcp_interface: Some(interface),
    };
    Ok(mpi.vars())
}

/// Rejects a directory with blanks or colons: Open MPI splits `plm_rsh_agent` there and supports no quotes.
pub(crate) fn require_plain(directory: &Path) -> Result<(), Failure> {
    let text = directory.to_string_lossy();
    match text.chars().find(|c| c.is_whitespace() || *c == ':') {
        None => Ok(()),
        Some(character) => Err(Failure::new(
            Code::Host,
            format!(
                "mpirun cannot call a script in {}, which contains {character:?}: set another --state-dir for jobs with \
                 a launcher",
                directory.display()
            ),
        )),
    }
}

fn worker_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.json"))
}

/// Quotes `path` as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"))
}

/// Runs `ipuctl __exec DIRECTORY WORKER COMMAND…`: replaces itself by a shell that runs the command as a
/// process of the worker. As with `ssh`, the words are joined and the shell splits them again.
pub(crate) fn exec(arguments: &[OsString]) -> ExitCode {
    let [directory, worker, command @ ..] = arguments else {
        return fail("directory and worker are required");
    };
    let path = worker_path(Path::new(directory), &worker.to_string_lossy());
    let file = match std::fs::read(&path).map(|text| serde_json::from_slice::<WorkerFile>(&text)) {
        Ok(Ok(file)) => file,
        Ok(Err(error)) => return fail(&format!("{}: {error}", path.display())),
        Err(error) => return fail(&format!("worker {} not found: {error}", worker.to_string_lossy())),
    };
    let mut shell = Command::new("/bin/sh");
    shell
        .arg("-c")
        .arg(command.join(&OsString::from(" ")))
        .envs(file.variables);
    if let Some(directory) = file.directory {
        shell.current_dir(directory);
    }
    fail(&format!("start /bin/sh: {}", shell.exec()))
}

fn fail(message: &str) -> ExitCode {
    use std::io::Write as _;
    let _ = writeln!(io::stderr(), "ipuctl __exec: {message}");
    // The exit code of ssh for its own errors.
    ExitCode::from(255)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_mpirun_would_split_is_rejected() {
        assert!(require_plain(Path::new("/a/it's")).is_ok());
        for path in ["/a b", "/a:b", "/a\tb"] {
            assert_eq!(
                require_plain(Path::new(path)).unwrap_err().code,
                Code::Host,
                "{path}"
            );
        }
    }

    #[test]
    fn a_path_with_a_quote_is_one_word() {
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }
}
