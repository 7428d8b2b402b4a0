//! PrologSlurmctld: gets the partition of a job and writes its files. The job is CONFIGURING meanwhile.

mod acquire;
mod acquire_error;
mod admin_comment;
mod allocate;
mod current;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::AgentId;
use ipu_proxy_client::OwnerDocument;
use ipu_slurm::conf::ConfFiles;
use ipu_slurm::host_map::sole_vipu_controller;
use ipu_slurm::text::{describe_timeout, notification, ready};
use ipu_slurm::{HookEnvironment, HostMapRequest, PrologRequest, RunStart, SlurmJob, may_request_ipus};
use tokio::time::Instant;

use self::acquire::{Acquisition, StartChoice};
use self::acquire_error::AcquireError;
use self::admin_comment::AdminCommentWriter;
use self::allocate::Allocate;
use self::current::{Hook, JobFile, OwnRun};
use crate::conf_facts::ConfFacts;
use crate::conf_files;
use crate::failure::Failure;
use crate::host_map::{self, Allocations};
use crate::ipuof_directory;
use crate::run_file::{self, FileState, RunFile};
use crate::slurm_commands::Slurm;

/// The end of a hook without a partition.
enum Refusal {
    /// Slurm requeues the job: IPUs may be free later.
    Requeue(Failure),
    /// The request can never be granted. Slurm would otherwise requeue the job again and again.
    Hold(Failure),
    /// A later hook of the same run goes on.
    Superseded(Failure),
}

impl<E: Into<Failure>> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Requeue(error.into())
    }
}

/// Gets the partition of the job, if it has IPUs.
pub(crate) fn run(variables: &HookEnvironment) -> Result<(), Failure> {
    let own_run = OwnRun::new();
    let directory = conf_files::directory();
    let loaded = conf_files::load(&directory, &license_names());
    let conf = match loaded {
        Ok(conf) => conf,
        // A job without IPUs starts whatever the configuration is like.
        Err(_) if !ConfFacts::gather(&directory).may_request_ipus(variables) => return Ok(()),
        Err(error) => return report_refusal(&Slurm::find(&directory), &own_run, Refusal::from(error)),
    };
    // Before the first change: a hook that was started by hand touches no job.
    PrologRequest::check_context(variables)?;
    if let Err(refusal) = own_run.ensure_parent() {
        return report_refusal(&Slurm::find(&directory), &own_run, refusal);
    }
    let slurm = Slurm::find(&directory);
    let requested = requested(variables, &conf);
    let first = match &requested {
        Ok(Some((request, _))) => first_file(request).map(Some),
        _ => Ok(None),
    };
    let taken = first.and_then(|first| {
        let own = match (&requested, &first) {
            (Ok(Some((request, _))), Some(first)) => Some((own_directory(&conf, request)?, first)),
            _ => None,
        };
        let earlier = take_over_files(&conf, variables, own)?;
        Ok((first, earlier))
    });
    let (first, earlier) = match taken {
        Ok(taken) => taken,
        Err(failure) => return report_refusal(&slurm, &own_run, Refusal::Requeue(failure)),
    };
    let (request, machines, first) = match (requested, first) {
        (Ok(Some((request, machines))), Some(first)) => (request, machines, first),
        (Ok(_), _) => return Ok(()),
        (Err(refusal), _) => return report_refusal(&slurm, &own_run, refusal),
    };
    crate::block_on(async {
        let facts = JobFacts {
            machines: &machines,
            first: &first,
            earlier: &earlier,
            own_run: &own_run,
        };
        match get_partition(&conf, &slurm, &request, &facts).await {
            Ok(()) => Ok(()),
            Err(refusal) => Err(explain(&slurm, &own_run, refusal).await),
        }
    })
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

/// Reports a refusal on every channel that the user may read.
fn report_refusal(slurm: &Slurm, own_run: &OwnRun, refusal: Refusal) -> Result<(), Failure> {
    crate::block_on(async { Err(explain(slurm, own_run, refusal).await) })
}

/// Returns the names of the job's licenses.
fn license_names() -> Vec<String> {
    let licenses = std::env::var("SLURM_JOB_LICENSES").unwrap_or_default();
    let separators = [',', ';', '|', ':'];
    licenses.split(separators).map(str::to_owned).collect()
}

/// Returns the directory of the files of a job, in which only SlurmUser may write.
fn own_directory<'a>(conf: &'a ConfFiles, request: &PrologRequest) -> Result<&'a Path, Failure> {
    let model = conf.model(&request.ipus.model);
    let model = model.ok_or_else(|| Failure(format!("there is no model {}", request.ipus.model)))?;
    let directory = Path::new(model.ipuof_dir());
    ipuof_directory::check(directory)?;
    Ok(directory)
}

/// Returns the file of this hook before it knows the run: without SLUID, slurmctld tells the submission. The
/// present moment stands for it, because no run with this job id was submitted later.
fn first_file(request: &PrologRequest) -> Result<RunFile, Failure> {
    let identity = &request.identity;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = RunStart::first(identity.run_key(Some(&now.as_secs().to_string()))?);
    Ok(RunFile {
        state: FileState::Undecided,
        used: None,
        left: Vec::new(),
        hook: current::hook_id(),
        partition: start.owner(identity.cluster.as_str())?.job.partition_id(0),
        start,
        ipus: Some(request.ipus.ipus.get()),
        gcds: request.ipus.gcds,
        variables: BTreeMap::new(),
    })
}

/// Removes the files of earlier hooks with the job id, and returns them. Also for a job without IPUs:
/// TaskProlog of Slurm 22.05 cannot tell such a job. In the directory of the job, `own`, the file of this
/// hook follows at once.
fn take_over_files(
    conf: &ConfFiles,
    variables: &HookEnvironment,
    own: Option<(&Path, &RunFile)>,
) -> Result<Vec<RunFile>, Failure> {
    let requests_ipus = may_request_ipus(variables, |license| conf.model(license).is_some());
    // PrologRequest names a variable that is wrong.
    let Ok(job) = PrologRequest::job(variables) else {
        return Ok(Vec::new());
    };
    let name = job.env_file_name();
    let mut earlier = Vec::new();
    // An active file in another directory would start a task, so it goes first.
    for directory in conf_files::ipuof_directories(conf) {
        if own.is_some_and(|(own, _)| own == directory) {
            continue;
        }
        match run_file::remove_job(&directory, &name) {
            // A directory that cannot be used keeps no job without IPUs from its start.
            Err(error) if requests_ipus || directory.join(&name).exists() => {
                return Err(Failure(format!(
                    "cannot remove {}/{name}: {error}",
                    directory.display()
                )));
            }
            Ok(found) => earlier.extend(found),
            Err(_) => {}
        }
    }
    if let Some((directory, first)) = own {
        let taken = run_file::take_over(directory, &name, first).map_err(|error| {
            Failure(format!(
                "cannot write the files of the job to {}: {error}",
                directory.display()
            ))
        });
        earlier.extend(taken?);
    }
    Ok(earlier)
}

/// Reports a refusal in AdminComment and at the terminal of srun and salloc, and holds the job if it can
/// never start. All are best effort, and for the run of this hook only: the job id may have another one by
/// now.
async fn explain(slurm: &Slurm, own_run: &OwnRun, refusal: Refusal) -> Failure {
    let (failure, hold) = match refusal {
        Refusal::Requeue(failure) => (failure, false),
        Refusal::Hold(failure) => (failure, true),
        Refusal::Superseded(failure) => return failure,
    };
    let id = std::env::var("SLURM_JOB_ID").ok().and_then(|id| id.parse().ok());
    if let Some(id) = id {
        let Some(job) = own_run.waiting_job(slurm, id).await else {
            return failure;
        };
        AdminCommentWriter::new(slurm, &job).write(&failure.0).await;
        let (job, text) = (id.to_string(), notification(id, &failure.0));
        let _ = slurm.scontrol(&["notify", &job, &text]).await;
        // The commands before may have waited for a slurmctld that started meanwhile.
        if hold && own_run.waiting_job(slurm, id).await.is_some() {
            // srun and salloc are not requeued: Slurm cancels them.
            let _ = slurm.scontrol(&["requeuehold", &address(id)]).await;
        }
    }
    failure
}

/// Returns the id by which `scontrol` requeues the job of this hook alone. The last task of an array has the
/// id of the array, which addresses all tasks. Slurm requeues the components of a heterogeneous job together,
/// by the id of the first.
fn address(job_id: u32) -> String {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    match (number("SLURM_ARRAY_JOB_ID"), number("SLURM_ARRAY_TASK_ID")) {
        (Some(array), Some(task)) => format!("{array}_{task}"),
        _ => number("SLURM_HET_JOB_ID").unwrap_or(job_id).to_string(),
    }
}

/// The facts about a job besides its request.
struct JobFacts<'a> {
    /// The machines of its hosts, if those decide.
    machines: &'a [AgentId],
    /// The file of this hook.
    first: &'a RunFile,
    /// The files of earlier hooks with the job id.
    earlier: &'a [RunFile],
    /// The run of the hook.
    own_run: &'a OwnRun,
}

async fn get_partition(
    conf: &ConfFiles,
    slurm: &Slurm,
    request: &PrologRequest,
    facts: &JobFacts<'_>,
) -> Result<(), Refusal> {
    let id = request.identity.job_id;
    let model = conf
        .model(&request.ipus.model)
        .ok_or_else(|| Failure(format!("there is no model {}", request.ipus.model)))?;
    let job_file = JobFile {
        directory: Path::new(model.ipuof_dir()),
        name: request.identity.env_file_name(),
    };
    let job = match slurm.job(id).await {
        Ok(Some(job)) => job,
        problem => {
            // Without an earlier file, it tells nothing.
            if facts.earlier.is_empty() {
                job_file.remove(facts.first)?;
            }
            problem?;
            return Err(Failure("slurmctld does not know the job".into()).into());
        }
    };
    facts.own_run.see(&job);
    let key = request.identity.run_key(Some(&job.submit_time))?;
    let cluster = request.identity.cluster.as_str();
    let first = RunStart::first(key.clone());
    let mut put = acquire::put_request(
        &first.owner(cluster)?,
        request,
        model,
        facts.machines,
        time_limit(&job),
    );
    let choice = StartChoice {
        cluster,
        key: &key,
        request: &put,
        earlier: facts.earlier,
    };
    let start = choice.unused().unwrap_or(&first).clone();
    let mut file = RunFile {
        state: match choice.unused() {
            Some(_) => FileState::Pending,
            None => FileState::Undecided,
        },
        used: choice.highest_used(),
        left: choice.left(),
        partition: start.owner(cluster)?.job.partition_id(0),
        start,
        ..facts.first.clone()
    };
    let hook = Hook {
        slurm,
        job: &job,
        own_run: facts.own_run,
    };
    facts.own_run.ensure_parent()?;
    job_file.replace(&file)?;
    let proxy = crate::proxy::connect(conf)?;
    let wait = conf.cluster().wait_in_prolog();
    let deadline = Instant::now() + wait;
    let mut comment = AdminCommentWriter::new(slurm, &job);
    let (start, state) = match choice.choose(&proxy, deadline, &mut comment).await {
        Ok(chosen) => chosen,
        Err(error) => {
            job_file.remove(&file)?;
            return Err(refusal(error, wait));
        }
    };
    file.state = state;
    file.set_start(cluster, start)?;
    job_file.replace(&file)?;
    let unused = choice.unused().cloned();
    if let Some(unused) = unused.as_ref().filter(|unused| **unused != file.start) {
        acquire::withdraw(&proxy, conf, cluster, unused, None).await;
    }
    let size = put.size;
    put.owner = OwnerDocument::from(&file.start.owner(cluster)?);
    let mut acquisition = Acquisition {
        proxy,
        partition: file.partition.clone(),
        request: put,
        model: &request.ipus.model,
        deadline,
        job_file: &job_file,
        hook: file.hook.clone(),
        attempt: Cell::new(None),
    };
    let allocations = match facts.machines {
        [] => None,
        _ => Allocations::of(conf)?,
    };
    let acquired = loop {
        let allocate = allocations.as_ref().map(|allocations| Allocate {
            allocations,
            cluster,
            start: &file.start,
            machines: facts.machines,
        });
        let result = match &allocate {
            None => acquisition.run_on_machines(&mut comment).await,
            Some(allocate) => allocate.run(&mut acquisition, &mut comment).await,
        };
        match result {
            Ok(acquired) => break acquired,
            // The job has other hosts or other licenses since the start that slurmctld forgot.
            Err(AcquireError::OtherProperties(_)) if Instant::now() < deadline => {
                let earlier = file.start.clone();
                file.state = FileState::Pending;
                file.set_start(cluster, earlier.next())?;
                job_file.replace(&file)?;
                if unused.as_ref() == Some(&earlier) {
                    acquire::withdraw(&acquisition.proxy, conf, cluster, &earlier, None).await;
                    if let Some(allocations) = &allocations {
                        // The agent repeats a removal that fails.
                        let _ = allocations.remove(&acquisition.proxy, cluster, &earlier).await;
                    }
                }
                acquisition.partition = file.partition.clone();
                acquisition.request.owner = OwnerDocument::from(&file.start.owner(cluster)?);
                acquisition.request.size = size;
            }
            Err(error) => {
                // A later hook may go on with the request.
                job_file.remove(&file)?;
                if matches!(error, AcquireError::TimedOut(_)) {
                    let attempt = acquisition.attempt.get();
                    acquire::withdraw(&acquisition.proxy, conf, cluster, &file.start, attempt).await;
                }
                if let Some(allocate) = &allocate {
                    allocate.remove(&acquisition.proxy, &error).await;
                }
                return Err(refusal(error, wait));
            }
        }
    };
    file.variables = acquired.partition.env;
    file.state = FileState::Active;
    run_file::write_configuration(job_file.directory, &file, &acquired.config)
        .map_err(|error| job_file.cannot_write(&error))?;
    hook.ensure_current().await?;
    job_file.replace(&file)?;
    // EpilogSlurmctld needs the file of a job that was cancelled meanwhile.
    if let Err(refusal) = hook.same_run().await {
        job_file.remove(&file)?;
        return Err(refusal);
    }
    let ipus = acquired.partition.size;
    let sentence = ready(file.partition.as_str(), ipus, &request.ipus.model);
    comment.replace(&sentence).await;
    Ok(())
}

/// Returns the refusal of a job whose wait was `wait` at most.
fn refusal(error: AcquireError, wait: Duration) -> Refusal {
    match error {
        AcquireError::TimedOut(reason) => Refusal::Requeue(Failure(describe_timeout(wait, &reason))),
        AcquireError::OtherProperties(sentence) => Refusal::Requeue(Failure(sentence)),
        AcquireError::Refused(sentence) | AcquireError::NoPlace(sentence) => Refusal::Hold(Failure(sentence)),
        AcquireError::Superseded(sentence) => Refusal::Superseded(Failure(sentence)),
    }
}

/// Returns the time limit of a job in seconds.
fn time_limit(job: &SlurmJob) -> Option<u64> {
    job.time_limit.filter(|seconds| *seconds > 0)
}
