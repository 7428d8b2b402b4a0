//! `ipuctl run`: one IPUJob on this host, from manifest to exit code.

mod engine;
mod environment;
mod host_job;
mod partitions;
mod processes;
mod progress_display;
mod remote_exec;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use ipu_allocator::process::ProcessHolder;
use ipu_core::job::JobKind;

use self::engine::Engine;
use self::host_job::HostJob;
use self::partitions::Partitions;
use self::report::Report;
use crate::cli::{Global, RunArgs};
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::local_server::Requirement;
use crate::manifest::{self, Overrides};
use crate::output::{Output, Stream};
use crate::run_record::RunRecord;
use crate::signals::Signals;
use crate::{commands, display, table};

pub(crate) use self::remote_exec::exec;

/// Options of a run that its processes need.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) output: Output,
    pub(crate) grace: Duration,
    /// Directory of the files of this run.
    pub(crate) directory: PathBuf,
    pub(crate) mpi_interface: String,
}

/// Runs the job and returns its exit code.
pub(crate) async fn run(arguments: RunArgs, global: &Global, output: &Output) -> Result<Code, Failure> {
    let uid = random_uid()?;
    let selected = manifest::one(manifest::read(&arguments.manifest, output)?)?;
    let name = manifest::name_of(&selected);
    let overrides = Overrides {
        uid: uid.clone(),
        allocation: arguments.allocation,
        priority: arguments.priority,
    };
    let job = manifest::parse(selected, &overrides, output)
        .map_err(|violations| manifest::refuse(&name, &violations))?;
    manifest::report_ignored_fields(&job.host, output);
    if let Some(reason) = manifest::idle_reason(&job.spec) {
        return Err(Failure::new(
            Code::Idle,
            format!("IPUJob {name} runs nothing: {reason}"),
        ));
    }
    let job = HostJob::new(job.spec, job.host.container)?;

    let connection = Connection::open(global, Requirement::All, output).await?;
    connection.require_answer().await?;
    commands::gc::sweep(&connection).await?.report(output);
    if global.verbose > 0 && connection.is_simulated() {
        output.say(commands::map::simulated(&connection.state).await?.trim_end());
    }
    print_summary(&job, output);
    if matches!(job.spec.shape(), JobKind::Launcher { .. }) {
        remote_exec::require_plain(&connection.state.runs_dir())?;
    }
    let holder =
        ProcessHolder::own().map_err(|error| Failure::because(Code::Host, "identify this process", error))?;
    let partitions = Partitions::new(&connection, arguments.no_wait, output);
    let context = RunContext {
        output: output.clone(),
        grace: Duration::from_secs(arguments.grace),
        directory: connection.state.create_run_dir(&holder)?,
        mpi_interface: arguments.mpi_interface,
    };
    let mut record = new_record(&job, &uid, &connection);
    let unwritable = |error| Failure::because(Code::Host, "write the record of the run", error);
    record.write_active(&context.directory).map_err(unwritable)?;
    let signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    let result = Engine::new(&job, &context, partitions).run(signals).await;
    for id in &result.unreleased {
        output.warn(&format!(
            "partition {id} is not released yet: run `ipuctl gc` later"
        ));
    }
    // A failed removal is retried by `ipuctl gc`.
    let _ = std::fs::remove_dir_all(&context.directory);
    let report = Report::new(&job, &result);
    if global.output.is_text() {
        report
            .table()
            .iter()
            .for_each(|table| output.say(table.trim_end()));
    } else {
        output.result(&table::render(global.output, &report, String::new)?);
    }
    let code = report::exit_code(&result).0;
    report.phase().clone_into(&mut record.phase);
    record.exit_code = Some(code.number());
    record.write_finished(&connection.state).ok();
    if result.failure.is_none() {
        let style = if code == Code::Job(0) {
            anstyle::AnsiColor::Green
        } else {
            anstyle::AnsiColor::Red
        };
        output.say(&match report.outcome() {
            Some(outcome) => {
                let outcome = output.styled(Stream::Err, style.on_default().bold(), outcome);
                format!("{outcome}: {}", report.message())
            }
            None => report.message().to_owned(),
        });
    }
    Ok(code)
}

/// Returns the record of a run that starts now.
fn new_record(job: &HostJob, uid: &str, connection: &Connection) -> RunRecord {
    let spec = &job.spec;
    RunRecord {
        uid: uid.to_owned(),
        namespace: spec.key().namespace.to_string(),
        name: spec.key().name.to_string(),
        phase: "Pending".to_owned(),
        partitions: (0..spec.instances())
            .map(|instance| spec.partition_id(instance))
            .collect(),
        started: ipu_proxy_client::now(),
        exit_code: None,
        proxy: connection.remote_url(),
    }
}

/// Prints the job and its size in one line.
fn print_summary(job: &HostJob, output: &Output) {
    let spec = &job.spec;
    let workers = display::count(spec.workers_per_instance(), "worker");
    let processes = match spec.shape() {
        JobKind::Launcher { .. } => format!("{workers} and a launcher"),
        JobKind::Interactive { ttl } => format!("a session of {} s", ttl.as_secs()),
        _ => workers,
    };
    output.say(&format!(
        "IPUJob {}: {} of {}, each with {processes}",
        spec.key(),
        display::count(spec.instances(), "instance"),
        display::count(spec.ipus_per_instance().get(), "IPU"),
    ));
}

/// Returns a random uid for this run.
fn random_uid() -> Result<String, Failure> {
    let path = "/proc/sys/kernel/random/uuid";
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|error| Failure::because(Code::Host, format!("read {path}"), error))
}
