//! Maps a job to processes of this host: command, working directory and environment of workers and launchers.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipu_core::PartitionId;
use ipu_core::job::{JobKind, JobSpec};
use ipu_core::render::IpuofEnv;
use ipu_k8s::crd::HostContainer;

use super::RunContext;
use super::environment::{self, Variables};
use super::processes::{ProcessId, ProcessRole};
use super::remote_exec::{self, WorkerFile};
use crate::exit_code::{Code, Failure};
use crate::process::{Spawn, Terminal};

/// Address of the controller for the processes of a job.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Identifies the simulated IPU-POD to an `ipuctl` among the processes.
    pub(crate) mark: Option<String>,
}

/// A job that this host can run.
#[derive(Debug)]
pub(crate) struct HostJob {
    pub(crate) spec: JobSpec,
    container: HostContainer,
    directory: Option<PathBuf>,
}

impl HostJob {
    /// Creates the job, before any partition is requested.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the working directory or a program does not exist, [`Code::Data`] without a
    /// command.
    pub(crate) fn new(spec: JobSpec, container: HostContainer) -> Result<Self, Failure> {
        let directory = container
            .working_dir
            .as_ref()
            .filter(|text| !text.is_empty())
            .map(PathBuf::from);
        if let Some(path) = directory.as_ref().filter(|path| !path.is_dir()) {
            return Err(Failure::new(
                Code::NotFound,
                format!(
                    "workingDir {:?} of container {:?} is not a directory of this host; create it, or set it with \
                     --set 'workers.template.spec.containers[0].workingDir=DIR'",
                    path, container.name
                ),
            ));
        }
        let job = Self {
            spec,
            container,
            directory,
        };
        job.require_programs()?;
        Ok(job)
    }

    fn require_programs(&self) -> Result<(), Failure> {
        let command = self.container.program();
        if command.is_none() && matches!(self.spec.shape(), JobKind::Workers) {
            return Err(Failure::new(
                Code::Data,
                format!(
                    "spec.workers.template.spec.containers[0].command of container {:?} is missing: a host does \
                     not use the command of the image; add one, such as [python3, train.py]",
                    self.container.name
                ),
            ));
        }
        // The partition does not exist yet; its variables do not name programs.
        let id = self.spec.partition_id(0);
        let variables = self.worker_variables(
            &Address {
                host: String::new(),
                port: 0,
                mark: None,
            },
            &id,
            0,
        );
        self.require_program(command.as_deref(), &variables)?;
        if let JobKind::Launcher { command } = self.spec.shape() {
            self.require_program(Some(command), &variables)?;
        }
        Ok(())
    }

    fn require_program(&self, command: Option<&[String]>, variables: &Variables) -> Result<(), Failure> {
        let Some(program) =
            command.and_then(|words| environment::command(words, variables).into_iter().next())
        else {
            return Ok(());
        };
        let path = variables
            .iter()
            .find(|(name, _)| name == "PATH")
            .map(|(_, path)| OsString::from(path));
        if is_executable(
            &program,
            self.directory.as_deref(),
            path.or_else(|| std::env::var_os("PATH")),
        ) {
            return Ok(());
        }
        Err(Failure::new(
            Code::NotFound,
            format!("program {program:?} not found on this host: not in PATH, or not executable"),
        ))
    }

    /// Returns the name of a process for people.
    pub(crate) fn label(&self, id: ProcessId) -> String {
        match id.role {
            ProcessRole::Worker(worker) => {
                format!("worker-{}", self.spec.worker_index(id.instance, worker))
            }
            ProcessRole::Launcher if self.spec.instances() > 1 => format!("launcher-{}", id.instance),
            ProcessRole::Launcher => "launcher".to_owned(),
        }
    }

    /// Returns the program of worker `worker` of an instance; none if a launcher starts the processes on it.
    pub(crate) fn worker(&self, address: &Address, partition: &PartitionId, worker: u32) -> Option<Spawn> {
        let variables = self.worker_variables(address, partition, worker);
        let command = environment::command(&self.container.program()?, &variables);
        Some(self.spawn(command, variables, Terminal::Detached))
    }

    /// Returns the program of the launcher of an instance; none for a session without a terminal, which only
    /// holds the partition.
    pub(crate) fn launcher(
        &self,
        context: &RunContext,
        address: &Address,
        partition: &PartitionId,
        instance: u32,
    ) -> Result<Option<Spawn>, Failure> {
        let workers: Vec<WorkerFile> = (0..self.spec.workers_per_instance())
            .map(|worker| WorkerFile {
                directory: self.directory.clone(),
                variables: self.worker_variables(address, partition, worker),
            })
            .collect();
        let mpi = remote_exec::prepare(
            &context.directory,
            &self.spec,
            instance,
            &context.mpi_interface,
            workers,
        )
        .map_err(|error| Failure::because(Code::Host, "write the files for mpirun", error))?;
        let ipuof = ipuof(address, partition, 0);
        let mut variables = environment::launcher(
            &ipuof,
            address.mark.as_deref(),
            &self.container.env,
            partition,
            mpi,
            self.spec.launcher_env(),
        );
        match self.spec.shape() {
            JobKind::Launcher { command } => {
                let command = environment::command(command, &variables);
                Ok(Some(self.spawn(command, variables, Terminal::Detached)))
            }
            JobKind::Interactive { ttl } => {
                if self.spec.workers_per_instance() == 1 {
                    variables.push(("IPUOF_VIPU_API_GCD_ID".to_owned(), "0".to_owned()));
                }
                Ok(self.session(context, variables, *ttl))
            }
            JobKind::Workers => Err(Failure::new(
                Code::Bug,
                "the plan starts a launcher for a job without one",
            )),
        }
    }

    /// Returns a shell on the terminal. Without a terminal, prints the variables and returns none.
    fn session(&self, context: &RunContext, variables: Variables, ttl: Duration) -> Option<Spawn> {
        let seconds = ttl.as_secs();
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            let shell = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
            context.output.say(&format!(
                "Starting {shell} with the partition's variables, for at most {seconds} s."
            ));
            return Some(self.spawn(vec![shell], variables, Terminal::Attached));
        }
        context.output.say(&format!(
            "No terminal: the partition is held for {seconds} s. Its variables:"
        ));
        let exports: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', "'\\''")))
            .collect();
        context.output.result(&exports.concat());
        None
    }

    fn worker_variables(&self, address: &Address, partition: &PartitionId, worker: u32) -> Variables {
        let mark = address.mark.as_deref();
        environment::worker(
            &ipuof(address, partition, worker),
            mark,
            &self.container.env,
            partition,
        )
    }

    fn spawn(&self, command: Vec<String>, variables: Variables, terminal: Terminal) -> Spawn {
        Spawn {
            command: command.into_iter().map(OsString::from).collect(),
            directory: self.directory.clone(),
            environment: variables
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            terminal,
        }
    }
}

fn ipuof(address: &Address, partition: &PartitionId, gcd: u32) -> IpuofEnv {
    IpuofEnv::new(address.host.clone(), address.port, partition.clone(), gcd)
}

/// Returns whether execvp(3) finds `program` from `directory`.
fn is_executable(program: &str, directory: Option<&Path>, path: Option<OsString>) -> bool {
    let is_program = |file: &Path| {
        std::fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let resolve =
        |relative: &Path| directory.map_or_else(|| relative.to_owned(), |directory| directory.join(relative));
    if program.contains('/') {
        return is_program(&resolve(Path::new(program)));
    }
    let path = path.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path).any(|directory| is_program(&resolve(&directory).join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_resolved_as_by_execvp() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let found = |program: &str, path: &str| is_executable(program, Some(home.path()), Some(path.into()));
        assert!(!found("./tool", ""), "not executable");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found("./tool", ""));
        assert!(found("tool", home.path().to_str().unwrap()));
        assert!(found(file.to_str().unwrap(), ""));
        assert!(!found("tool", "/nowhere"));
        assert!(!found("/", "/"));
    }
}
