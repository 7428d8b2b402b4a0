//! `ipuctl run`: one IPUJob on this host, from manifest to exit code.

mod engine;
mod environment;
mod host_job;
mod partitions;
mod processes;
mod progress;
mod remote_exec;
mod report;
mod signals;

use std::path::PathBuf;
use std::time::Duration;

use ipu_core::{JobKind, OnNoCapacity};

use self::engine::Engine;
use self::host_job::HostJob;
use self::partitions::Partitions;
use self::report::Report;
use self::signals::Signals;
use crate::cli::{Format, Global, RunArgs};
use crate::connection::Connection;
use crate::exit_code::{Code, Failure};
use crate::manifest::{self, Overrides};
use crate::output::{Output, Stream};
use crate::{commands, table};

pub(crate) use self::partitions::{OWNER_KIND, never_fits};
pub(crate) use self::remote_exec::exec;

/// What a run is set up with.
#[derive(Debug)]
pub(crate) struct RunContext {
    pub(crate) output: Output,
    pub(crate) grace: Duration,
    /// The run's own files.
    pub(crate) directory: PathBuf,
    pub(crate) mpi_interface: String,
}

/// Runs the job; the exit code is the job's.
pub(crate) async fn run(arguments: RunArgs, global: &Global, output: &Output) -> Result<Code, Failure> {
    let uid = random_uid()?;
    let chosen = manifest::one(manifest::read(&arguments.manifest, output)?)?;
    let name = manifest::name_of(&chosen);
    let overrides = Overrides {
        uid: uid.clone(),
        allocation: arguments.allocation,
        priority: arguments.priority,
    };
    let job = manifest::parse(chosen, &overrides, output)
        .map_err(|violations| manifest::refuse(&name, &violations))?;
    manifest::report_ignored_fields(&job.host, output);
    let job = HostJob::new(job.spec, job.host.container)?;

    let connection = Connection::open(global, output).await?;
    connection.require_answer().await?;
    commands::gc::sweep(&connection, output).await?;
    connection.show(output)?;
    print_summary(&job, output);
    let line = if arguments.no_wait {
        OnNoCapacity::Reject
    } else {
        OnNoCapacity::Queue
    };
    if matches!(job.spec.shape(), JobKind::Launcher { .. }) {
        remote_exec::require_plain(&connection.state.runs())?;
    }
    let partitions = Partitions::new(&connection, line, output)?;
    let setting = RunContext {
        output: output.clone(),
        grace: Duration::from_secs(arguments.grace),
        directory: connection.state.run(&uid, partitions.holder())?,
        mpi_interface: arguments.mpi_interface,
    };
    let signals =
        Signals::listen().map_err(|error| Failure::because(Code::Host, "listen to signals", error))?;
    let ended = Engine::new(&job, &setting, partitions).run(signals).await;
    for id in &ended.left {
        output.warn(&format!(
            "partition {id} is not released yet: run `ipuctl gc` later"
        ));
    }
    // Nothing but files of ours; what cannot be removed now is removed by `ipuctl gc`.
    let _ = std::fs::remove_dir_all(&setting.directory);
    let report = Report::new(&job, &ended);
    if global.output == Format::Table {
        report
            .table()
            .iter()
            .for_each(|table| output.say(table.trim_end()));
    } else {
        output.result(&table::render(global.output, &report, String::new)?);
    }
    let code = report::code(&ended).0;
    if ended.failure.is_none() {
        let style = if code == Code::Job(0) {
            anstyle::AnsiColor::Green
        } else {
            anstyle::AnsiColor::Red
        };
        let phase = output.styled(Stream::Err, style.on_default().bold(), report.outcome());
        output.say(&format!("{phase}: {}", report.message()));
    }
    connection.close().await;
    Ok(code)
}

/// What is going to run, in one line.
fn print_summary(job: &HostJob, output: &Output) {
    let spec = &job.spec;
    let count = |number: u32, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let workers = match spec.shape() {
        JobKind::Workers => count(spec.workers_per_instance(), "worker"),
        JobKind::Launcher { .. } => {
            format!("{} and a launcher", count(spec.workers_per_instance(), "worker"))
        }
        JobKind::Interactive { ttl } => format!("a session of {} s", ttl.as_secs()),
        _ => count(spec.workers_per_instance(), "worker"),
    };
    output.say(&format!(
        "IPUJob {}: {} of {}, each with {workers}",
        spec.key(),
        count(spec.instances(), "instance"),
        count(spec.ipus_per_instance().get(), "IPU"),
    ));
}

/// What tells this run from every other one.
fn random_uid() -> Result<String, Failure> {
    let path = "/proc/sys/kernel/random/uuid";
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .map_err(|error| Failure::because(Code::Host, format!("read {path}"), error))
}
