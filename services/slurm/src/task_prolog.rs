//! TaskProlog: runs as the user of the job before each task. TaskProlog has no network: the file of the job
//! has the partition. Slurm reads the standard output.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ipu_core::render::IpuofEnv;
use ipu_slurm::conf::ConfFiles;
use ipu_slurm::text::{hook_failure, no_partition_file, step_differs, unknown_licenses};
use ipu_slurm::{HookEnvironment, SlurmJob, TaskRequest};

use crate::conf_facts::ConfFacts;
use crate::conf_files::{self, LoadError};
use crate::failure::Failure;
use crate::ipuof_directory;
use crate::run_file::{self, Grant, RunFile};
use crate::slurm_commands::Slurm;

/// Maximum wait for the file of a job that asked for IPUs. The file is there before the job starts, but a
/// client of NFS may not see it at once.
const MAX_FILE_WAIT: Duration = Duration::from_secs(20);
/// Pause between two checks for the file.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Prints the variables of the partition of the task's job. If that fails, the task does not start, and the
/// user finds the reason in its output.
pub(crate) fn run(variables: &HookEnvironment) -> Result<(), Failure> {
    let result = print_variables(variables);
    if let Err(Failure(problem)) = &result {
        // Slurm copies the rest of such a line to the standard output of the task.
        let line = hook_failure("task-prolog", None, problem);
        let _ = writeln!(io::stdout(), "print {line}");
    }
    result
}

fn print_variables(variables: &HookEnvironment) -> Result<(), Failure> {
    let directory = conf_files::task_directory();
    // A user can set the variable of a task, and one of another cluster would select the file of its job.
    let renamed = conf_files::cluster_name(&directory).map(|name| variables.clone().with_cluster_name(&name));
    let variables = renamed.as_ref().unwrap_or(variables);
    let loaded = conf_files::load(&directory, &[]);
    let loaded = loaded.or_else(|error| conf_with_file(variables, &directory).ok_or(error));
    let conf = match loaded {
        Ok(conf) => conf,
        Err(error) => {
            let facts = ConfFacts::gather(&directory);
            if facts.task_wants_ipus(variables)? {
                return Err(error.into());
            }
            if let LoadError::Absent(path) = &error
                && !facts.has_model()
            {
                ensure_no_licenses(variables, &directory, path)?;
            }
            // A task without IPUs starts whatever the configuration is like.
            return print_lines(&BTreeMap::new(), "").map_err(Failure::from);
        }
    };
    let slurm = || Slurm::find(&directory);
    if let Some(variables) = crate::pool::task::ipuof_variables(variables, &conf, slurm)? {
        return print_lines(&variables, "").map_err(Failure::from);
    }
    let models: Vec<&str> = conf.models().map(|(name, _)| name).collect();
    let mut request = TaskRequest::parse(variables, &models)?;
    let has_machines = crate::host_map::has_machines(variables, &conf)?;
    let name = request.identity.env_file_name();
    let paths: Vec<PathBuf> = conf_files::ipuof_directories(&conf)
        .iter()
        .map(|directory| directory.join(&name))
        .collect();
    let started = Instant::now();
    let mut awaited = AwaitedHook::default();
    loop {
        let mut is_pending = false;
        for path in &paths {
            let read = match RunFile::read(path) {
                // A job that may have no IPUs does not need a directory that cannot be read.
                Err(_) if !request.requests_ipus && !path.exists() => None,
                read => read.map_err(|error| Failure(format!("{}: {error}", path.display())))?,
            };
            if read.is_some() {
                ipuof_directory::check_writers(path.parent().unwrap_or(path))?;
            }
            let Some(file) = read else { continue };
            awaited.check(&file)?;
            let Some(grant) = file.active() else {
                is_pending = true;
                continue;
            };
            return match request.ipus.filter(|step| *step != grant.ipus) {
                Some(step) => Err(Failure(step_differs(step, grant.ipus))),
                None => print(grant, request.task).map_err(Failure::from),
            };
        }
        if request.may_be_inherited && !is_pending {
            request = with_record(request, &directory, &models);
        }
        if !request.requests_ipus && !has_machines && !is_pending {
            return print_lines(&BTreeMap::new(), "").map_err(Failure::from);
        }
        if started.elapsed() >= MAX_FILE_WAIT {
            let path = paths.first().map(|path| path.display().to_string());
            return Err(Failure(no_partition_file(&path.unwrap_or(name), MAX_FILE_WAIT)));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the configuration of the models without mistakes, if the job has a file of one of them.
fn conf_with_file(variables: &HookEnvironment, directory: &Path) -> Option<ConfFiles> {
    let conf = conf_files::load_valid(directory, &[]).ok()?;
    let name = TaskRequest::parse(variables, &[]).ok()?.identity.env_file_name();
    let mut directories = conf_files::ipuof_directories(&conf).into_iter();
    directories
        .any(|directory| run_file::exists(&directory, &name))
        .then_some(conf)
}

/// The hook whose file a task has found without variables. The file of another hook is that of a later start
/// of the job: slurmctld has forgotten the start of this task, and its partition belongs to other tasks.
#[derive(Debug, Default)]
struct AwaitedHook(Option<String>);

impl AwaitedHook {
    fn check(&mut self, file: &RunFile) -> Result<(), Failure> {
        let hook = self.0.get_or_insert_with(|| file.hook.clone());
        if *hook == file.hook {
            return Ok(());
        }
        Err(Failure(
            "slurmctld has started the job again since this task started; this task gets no IPUs".into(),
        ))
    }
}

/// Checks that a job has no license, on a node that does not know the licenses of IPUs. The variable
/// may be that of the job that submitted it, so slurmctld decides.
fn ensure_no_licenses(
    variables: &HookEnvironment,
    directory: &Path,
    vipu_conf: &Path,
) -> Result<(), Failure> {
    let request = TaskRequest::parse(variables, &[])?;
    let Some(licenses) = &request.licenses else {
        return Ok(());
    };
    let is_empty = |job: SlurmJob| job.license_list().is_empty();
    if record_of(request.identity.job_id, directory).is_some_and(is_empty) {
        return Ok(());
    }
    Err(Failure(unknown_licenses(
        &vipu_conf.display().to_string(),
        licenses,
    )))
}

/// Returns the record of a job; none if slurmctld does not answer.
fn record_of(id: u32, directory: &Path) -> Option<SlurmJob> {
    let job = async { Ok(Slurm::find(directory).job(id).await?) };
    crate::block_on(job).ok().flatten()
}

/// Asks slurmctld for the licenses of a job without a file. If it does not answer, the task waits for the
/// file.
fn with_record(request: TaskRequest, directory: &Path, models: &[&str]) -> TaskRequest {
    match record_of(request.identity.job_id, directory) {
        Some(job) => request.with_licenses(&job.licenses, models),
        None => request.assume_own_licenses(),
    }
}

/// Prints the variables of a run's task.
fn print(grant: &Grant, task: u32) -> io::Result<()> {
    let mut gcd = String::new();
    if grant.gcds > 1 {
        // The tasks of a step share the GCDs in turn, as the instances of PopRun do.
        gcd = format!("export IPUOF_VIPU_API_GCD_ID={}\n", task % grant.gcds);
    }
    print_lines(&grant.variables, &gcd)
}

/// Prints the lines that Slurm reads: `unset NAME` and `export NAME=value`. A job inherits the variables of
/// the login shell, or of the job that submitted it, whose partition it must not use.
fn print_lines(variables: &BTreeMap<String, String>, more: &str) -> io::Result<()> {
    let mut names: BTreeSet<String> = IpuofEnv::NAMES.map(str::to_owned).into();
    let inherited = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    // Slurm ends a line at a control character.
    let is_name = |name: &String| IpuofEnv::selects_ipus(name) && !name.contains(char::is_control);
    names.extend(inherited.filter(is_name));
    let mut text = String::new();
    for name in names {
        text.push_str(&format!("unset {name}\n"));
    }
    for (name, value) in variables {
        text.push_str(&format!("export {name}={value}\n"));
    }
    text.push_str(more);
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_waits_for_a_hook_takes_no_partition_of_a_later_one() {
        let file = |hook: &str| RunFile {
            hook: hook.to_owned(),
            grant: None,
        };
        let mut awaited = AwaitedHook::default();
        awaited.check(&file("1-1")).unwrap();
        awaited.check(&file("1-1")).unwrap();
        let error = awaited.check(&file("2-2")).unwrap_err().0;
        assert!(error.contains("started the job again"), "{error}");
    }
}
