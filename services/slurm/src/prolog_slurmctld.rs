//! PrologSlurmctld: gets the partition of a job and writes its files. The job is CONFIGURING meanwhile.
//!
//! 1. Take over the file of the job: no task starts with that of an earlier run.
//! 2. Ask slurmctld for the run.
//! 3. Ask the proxy for the partition of the run, and wait for it.
//! 4. Check that slurmctld still waits for this hook, and write the files.

mod acquire;
mod admin_comment;
mod hook;

use std::path::Path;

use ipu_core::AgentId;
use ipu_slurm::conf::{ConfFiles, ModelConf};
use ipu_slurm::host_map::sole_vipu_controller;
use ipu_slurm::text::ready;
use ipu_slurm::{HookEnvironment, HostMapRequest, PrologRequest, may_request_ipus};

use self::acquire::Acquisition;
use self::admin_comment::AdminCommentWriter;
use self::hook::{Hook, JobFile, Refusal};
use crate::conf_facts::ConfFacts;
use crate::conf_files::{self, LoadError};
use crate::failure::Failure;
use crate::host_map;
use crate::ipuof_directory;
use crate::run_file;
use crate::slurm_commands::Slurm;

/// Gets the partition of the job, if it has IPUs.
pub(crate) fn run(variables: &HookEnvironment) -> Result<(), Failure> {
    let directory = conf_files::directory();
    let hook = Hook::new(Slurm::find(&directory));
    let loaded = conf_files::load_for_job(&directory, &conf_files::license_names());
    // A job without IPUs starts whatever the configuration is like.
    if loaded.is_err() && !ConfFacts::gather(&directory).may_request_ipus(variables) {
        return Ok(());
    }
    if loaded.is_ok() {
        // Before the first change: a hook that was started by hand touches no job.
        PrologRequest::check_context(variables)?;
    }
    crate::block_on(async {
        match start(&hook, variables, loaded).await {
            Ok(()) => Ok(()),
            Err(refusal) => Err(hook.explain(refusal).await),
        }
    })
}

async fn start(
    hook: &Hook,
    variables: &HookEnvironment,
    loaded: Result<ConfFiles, LoadError>,
) -> Result<(), Refusal> {
    let conf = loaded?;
    hook.ensure_parent()?;
    let requested = requested(variables, &conf);
    let own = match &requested {
        Ok(Some((request, _))) => Some(model_and_directory(&conf, request)?),
        Ok(None) | Err(_) => None,
    };
    remove_other_files(&conf, variables, own.map(|(_, directory)| directory))?;
    let (Some((request, machines)), Some((model, directory))) = (requested?, own) else {
        return Ok(());
    };
    let mut job_file = JobFile::take_over(directory, request.identity.env_file_name(), hook)?;
    let mut acquisition = None;
    let result: Result<(), Refusal> = async {
        let id = request.identity.job_id;
        let job = hook.job(id).await?;
        let key = request.identity.run_key(Some(&job.submit_time))?;
        let proxy = crate::proxy::connect(&conf)?;
        let earlier = job_file.earlier.take();
        let acquisition = acquisition.insert(Acquisition::new(
            proxy, &conf, &request, model, &machines, key, earlier,
        )?);
        acquisition.set_time_limit(job.time_limit);
        let mut comment = AdminCommentWriter::new(&hook.slurm, &job);
        let partition = acquisition.run(hook, &mut job_file, &mut comment).await?;
        let sentence = ready(partition.id.as_str(), partition.size, &request.ipus.model);
        comment.replace(&sentence).await;
        Ok(())
    }
    .await;
    // The marker of a superseded hook stays: it shows EpilogSlurmctld that no task has the partition.
    if let Err(Refusal::Requeue(_) | Refusal::Hold(_)) = &result {
        job_file.remove()?;
        if let Some(acquisition) = &acquisition {
            acquisition.give_up().await;
        }
    }
    result
}

/// Returns the request of the job, with the machines of its hosts if those decide.
fn requested(
    variables: &HookEnvironment,
    conf: &ConfFiles,
) -> Result<Option<(PrologRequest, Vec<AgentId>)>, Refusal> {
    match PrologRequest::parse(variables, conf) {
        Ok(Some(request)) => return Ok(Some((request, Vec::new()))),
        Ok(None) => {}
        Err(error) => return Err(Refusal::Hold(error.into())),
    }
    let Some(map) = host_map::load_for(variables, conf)? else {
        return Ok(None);
    };
    match HostMapRequest::parse(variables, conf, &map) {
        Ok(hosted) => Ok(hosted.map(|hosted| (hosted.job, hosted.machines))),
        // The settings are at fault, and the job starts once they are corrected.
        Err(error) if sole_vipu_controller(conf).is_err() => Err(Refusal::Requeue(error.into())),
        Err(error) => Err(Refusal::Hold(error.into())),
    }
}

/// Returns the job's model and the model's IPUoF directory. Fails if users other than SlurmUser may write
/// there.
fn model_and_directory<'a>(
    conf: &'a ConfFiles,
    request: &PrologRequest,
) -> Result<(&'a ModelConf, &'a Path), Failure> {
    let model = conf.model(&request.ipus.model);
    let model = model.ok_or_else(|| Failure(format!("there is no model {}", request.ipus.model)))?;
    let directory = Path::new(model.ipuof_dir());
    ipuof_directory::check(directory)?;
    Ok((model, directory))
}

/// Removes the files of earlier hooks with the job id, except that in the directory `own`. This includes jobs
/// without IPUs: TaskProlog of Slurm 22.05 cannot recognize such a job.
fn remove_other_files(
    conf: &ConfFiles,
    variables: &HookEnvironment,
    own: Option<&Path>,
) -> Result<(), Failure> {
    let requests_ipus = may_request_ipus(variables, |license| conf.model(license).is_some());
    // PrologRequest names a variable that is wrong.
    let Ok(job) = PrologRequest::job(variables) else {
        return Ok(());
    };
    let name = job.env_file_name();
    let known = conf_files::ipuof_directories(conf);
    // The file of another model may have mistakes.
    let mut directories = ConfFacts::gather(&conf_files::directory()).ipuof_directories();
    directories.retain(|directory| !known.contains(directory));
    let directories = directories.into_iter().map(|directory| (directory, false));
    for (directory, is_needed) in directories.chain(known.into_iter().map(|known| (known, requests_ipus))) {
        if own == Some(directory.as_path()) {
            continue;
        }
        match run_file::remove_job(&directory, &name) {
            // A directory that cannot be used keeps no job without IPUs from its start.
            Err(error) if is_needed || directory.join(&name).exists() => {
                return Err(Failure(format!(
                    "cannot remove {}/{name}: {error}",
                    directory.display()
                )));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
