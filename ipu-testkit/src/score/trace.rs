//! Traces: which jobs come when, how many IPUs they want and for how long.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ipu_core::IpuCount;
use serde::Serialize;

/// The latest moment and the longest run time of a trace in milliseconds, about 317 years: sums of many stay far from
/// overflowing.
pub(super) const MAX_MILLIS: u64 = 10_000_000_000_000;

/// One job of a [`Trace`]. Times are whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TraceJob {
    /// Its number in the file that it comes from; not necessarily unique. Synthetic jobs count from 1.
    pub number: u64,
    /// When it comes, from the beginning of the trace.
    pub submit: Duration,
    /// How long it runs once it has started.
    pub runtime: Duration,
    /// How many IPUs it holds while it runs.
    pub size: IpuCount,
    /// Higher goes first.
    pub priority: i32,
}

impl TraceJob {
    /// A job of priority 0 and number 0.
    #[must_use]
    pub const fn new(submit: Duration, runtime: Duration, size: IpuCount) -> Self {
        Self {
            number: 0,
            submit,
            runtime,
            size,
            priority: 0,
        }
    }

    /// The same job with another number.
    #[must_use]
    pub const fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// The same job with another priority.
    #[must_use]
    pub const fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// IPUs times milliseconds.
    pub(super) fn ipu_millis(&self) -> u128 {
        u128::from(self.size.get()) * u128::from(millis(self.runtime))
    }
}

/// Why a line of a file is no job of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum SkipReason {
    /// It is not known when it came.
    UnknownSubmit,
    /// It is not known how long it ran.
    UnknownRuntime,
    /// Neither the allocated nor the requested number of processors is known.
    UnknownSize,
    /// It wants more IPUs than [`SwfOptions::largest`](crate::SwfOptions::largest).
    TooLarge,
    /// It was cancelled before it started.
    NeverStarted,
    /// It is one stretch of a job that was interrupted; another line tells of the whole job (status 2, 3 and 4).
    Stretch,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::UnknownSubmit => "unknown submit time",
            Self::UnknownRuntime => "unknown run time",
            Self::UnknownSize => "unknown number of processors",
            Self::TooLarge => "too many processors",
            Self::NeverStarted => "cancelled before it started",
            Self::Stretch => "one stretch of a job told elsewhere",
        })
    }
}

/// What the header of a file says, as far as it is of use here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct SwfHeader {
    /// Processors of the machine (`MaxProcs`).
    pub max_procs: Option<u64>,
    /// Nodes of the machine (`MaxNodes`).
    pub max_nodes: Option<u64>,
    /// When the trace begins, in seconds since the Unix epoch (`UnixStartTime`).
    pub unix_start_time: Option<u64>,
}

/// Jobs by the time at which they come: from a file in the Standard Workload Format ([`Trace::parse_swf`]), made up
/// ([`Trace::synthetic`]), or listed ([`Trace::of_jobs`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    jobs: Vec<TraceJob>,
    pub(super) header: SwfHeader,
    pub(super) skipped: BTreeMap<SkipReason, u64>,
}

impl Trace {
    /// The trace of these jobs. Those that come at the same time stay in their order; times are cut to milliseconds and
    /// to 317 years.
    #[must_use]
    pub fn of_jobs(jobs: impl IntoIterator<Item = TraceJob>) -> Self {
        let whole = |time: Duration| Duration::from_millis(millis(time));
        let mut jobs: Vec<TraceJob> = jobs
            .into_iter()
            .map(|job| TraceJob {
                submit: whole(job.submit),
                runtime: whole(job.runtime),
                ..job
            })
            .collect();
        jobs.sort_by_key(|job| job.submit);
        Self {
            jobs,
            ..Self::default()
        }
    }

    /// The jobs, first come first.
    #[must_use]
    pub fn jobs(&self) -> &[TraceJob] {
        &self.jobs
    }

    /// What the header of the file says; nothing if there is no file.
    #[must_use]
    pub const fn header(&self) -> SwfHeader {
        self.header
    }

    /// How many lines of the file are no job of this trace, and why.
    #[must_use]
    pub const fn skipped(&self) -> &BTreeMap<SkipReason, u64> {
        &self.skipped
    }

    /// The work of the jobs divided by what `ipus` IPUs can do from the first to the last submission. From 1 on the line
    /// grows without bound. None if the jobs come all at once, or there are no IPUs.
    #[must_use]
    pub fn load(&self, ipus: u32) -> Option<f64> {
        let span = millis(self.jobs.last()?.submit) - millis(self.jobs.first()?.submit);
        let work: u128 = self.jobs.iter().map(TraceJob::ipu_millis).sum();
        let can_do = u128::from(span) * u128::from(ipus);
        (can_do > 0).then(|| work as f64 / can_do as f64)
    }

    /// The same jobs, with the times between their submissions all stretched or shrunk so that the [load](Self::load)
    /// on `ipus` IPUs is `load`. This is how a file from one machine is made to fit another. Unchanged if the trace has
    /// no load, or `load` is not a positive number.
    #[must_use]
    pub fn at_load(&self, load: f64, ipus: u32) -> Self {
        let (Some(now), true) = (self.load(ipus), load.is_finite() && load > 0.0) else {
            return self.clone();
        };
        let factor = now / load;
        let stretched = self.jobs.iter().map(|job| TraceJob {
            // Beyond the limit `as` stops at the largest number, and `of_jobs` at the limit.
            submit: Duration::from_millis((millis(job.submit) as f64 * factor).round() as u64),
            ..job.clone()
        });
        Self {
            header: self.header,
            skipped: self.skipped.clone(),
            ..Self::of_jobs(stretched)
        }
    }
}

/// Milliseconds, at most [`MAX_MILLIS`].
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS))
}
