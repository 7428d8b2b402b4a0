//! A job as this host runs it: which command a worker or a launcher becomes, where, with which variables.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipu_core::{IpuofEnv, JobKind, JobSpec, PartitionId};
use ipu_k8s::crd::HostContainer;

use super::RunContext;
use super::environment::{self, Variables};
use super::processes::{ProcessId, ProcessRole};
use super::remote_exec::{self, WorkerFile};
use crate::exit_code::{Code, Failure};
use crate::process::{Spawn, Terminal};

/// Where the processes of a job reach the controller.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// What tells an `ipuctl` among the processes that this is the simulated Pod of its own user.
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
    /// The job, if everything that it names is there: found out before anything is allocated.
    pub(crate) fn new(spec: JobSpec, container: HostContainer) -> Result<Self, Failure> {
        let directory = container
            .working_dir
            .as_ref()
            .filter(|text| !text.is_empty())
            .map(PathBuf::from);
        if let Some(missing) = directory.as_ref().filter(|path| !path.is_dir()) {
            return Err(Failure::new(
                Code::NotFound,
                format!(
                    "workingDir {:?} of container {:?} is not a directory of this host; create it or change it with \
                     --set 'workers.template.spec.containers[0].workingDir=DIR'",
                    missing, container.name
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
        let workers = self.container.program();
        if workers.is_none() && matches!(self.spec.shape(), JobKind::Workers) {
            return Err(Failure::new(
                Code::Data,
                format!(
                    "container {:?} has no command, and on a host its image's own is not known",
                    self.container.name
                ),
            ));
        }
        // The variables of a partition that does not exist yet cannot name a program.
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
        self.require(workers.as_deref(), &variables)?;
        if let JobKind::Launcher { command } = self.spec.shape() {
            self.require(Some(command), &variables)?;
        }
        Ok(())
    }

    fn require(&self, command: Option<&[String]>, variables: &Variables) -> Result<(), Failure> {
        let Some(program) =
            command.and_then(|words| environment::command(words, variables).into_iter().next())
        else {
            return Ok(());
        };
        let path = variables
            .iter()
            .find(|(name, _)| name == "PATH")
            .map(|(_, path)| OsString::from(path));
        if find_program(
            &program,
            self.directory.as_deref(),
            path.or_else(|| std::env::var_os("PATH")),
        ) {
            return Ok(());
        }
        Err(Failure::new(
            Code::NotFound,
            format!("program {program:?} is not on this host: not in PATH, or not executable"),
        ))
    }

    /// What people call a process.
    pub(crate) fn label(&self, which: ProcessId) -> String {
        match which.role {
            ProcessRole::Worker(worker) => {
                format!("worker-{}", self.spec.worker_index(which.instance, worker))
            }
            ProcessRole::Launcher if self.spec.instances() > 1 => format!("launcher-{}", which.instance),
            ProcessRole::Launcher => "launcher".to_owned(),
        }
    }

    /// What worker `worker` of an instance becomes; nothing if it only waits for what a launcher starts on it.
    pub(crate) fn worker(&self, address: &Address, partition: &PartitionId, worker: u32) -> Option<Spawn> {
        let variables = self.worker_variables(address, partition, worker);
        let command = environment::command(&self.container.program()?, &variables);
        Some(self.spawn(command, variables, Terminal::Detached))
    }

    /// What the launcher of an instance becomes; nothing if it only holds the partition for people who come from elsewhere.
    pub(crate) fn launcher(
        &self,
        setting: &RunContext,
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
            &setting.directory,
            &self.spec,
            instance,
            &setting.mpi_interface,
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
                Ok(self.session(setting, variables, *ttl))
            }
            JobKind::Workers => Err(Failure::new(
                Code::Bug,
                "a launcher was planned for a job without one",
            )),
            other => Err(Failure::new(
                Code::Bug,
                format!("a job of an unknown shape: {other:?}"),
            )),
        }
    }

    /// A shell on the terminal, or what a person elsewhere needs.
    fn session(&self, setting: &RunContext, variables: Variables, ttl: Duration) -> Option<Spawn> {
        let seconds = ttl.as_secs();
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            let shell = std::env::var("SHELL").ok().filter(|shell| !shell.is_empty());
            let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
            setting.output.say(&format!(
                "{shell} with the partition's variables, for {seconds} s at most:"
            ));
            return Some(self.spawn(vec![shell], variables, Terminal::Attached));
        }
        setting.output.say(&format!(
            "no terminal: the partition is held for {seconds} s, for processes that have set:"
        ));
        let exports: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', "'\\''")))
            .collect();
        setting.output.result(&exports.concat());
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

/// Whether `program` can be run from `directory`, looked for as execvp(3) does.
fn find_program(program: &str, directory: Option<&Path>, path: Option<OsString>) -> bool {
    let runs = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let from =
        |relative: &Path| directory.map_or_else(|| relative.to_owned(), |directory| directory.join(relative));
    if program.contains('/') {
        return runs(&from(Path::new(program)));
    }
    let path = path.unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path).any(|place| runs(&from(&place).join(program)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_the_kernel_does() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let found = |program: &str, path: &str| find_program(program, Some(home.path()), Some(path.into()));
        assert!(!found("./tool", ""), "not executable");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert!(found("./tool", ""));
        assert!(found("tool", home.path().to_str().unwrap()));
        assert!(found(file.to_str().unwrap(), ""));
        assert!(!found("tool", "/nowhere"));
        assert!(!found("/", "/"));
    }
}
