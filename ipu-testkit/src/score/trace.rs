//! Traces: jobs with submit times, sizes and run times.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ipu_core::IpuCount;
use serde::Serialize;

/// Maximum time and run time of a trace in milliseconds, about 317 years: sums of many do not overflow.
pub(super) const MAX_MILLIS: u64 = 10_000_000_000_000;

/// Job of a [`Trace`]. Times are whole milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct TraceJob {
    /// Number in its source file; not necessarily unique. Synthetic jobs count from 1.
    pub number: u64,
    /// Submit time, from the beginning of the trace.
    pub submit: Duration,
    /// Run time.
    pub runtime: Duration,
    /// Number of IPUs.
    pub size: IpuCount,
    /// Priority; higher values go first.
    pub priority: i32,
}

impl TraceJob {
    /// Creates a job of priority 0 and number 0.
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

    /// Returns the job with another number.
    #[must_use]
    pub const fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Returns the job with another priority.
    #[must_use]
    pub const fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Returns IPUs times milliseconds.
    pub(super) fn ipu_millis(&self) -> u128 {
        u128::from(self.size.get()) * u128::from(millis(self.runtime))
    }
}

/// Reason for which a record of a file is not a job of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SkipReason {
    /// The submit time is unknown.
    UnknownSubmit,
    /// The run time is unknown.
    UnknownRuntime,
    /// Neither the allocated nor the requested number of processors is known.
    UnknownSize,
    /// The job needs more IPUs than [`IpuCount::MAX`].
    TooLarge,
    /// The job was cancelled before it started.
    NeverStarted,
    /// The record is a part of an interrupted job that has a record of its own (status 2, 3 and 4).
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
            Self::Stretch => "partial record of an interrupted job",
        })
    }
}

/// Jobs ordered by submit time: from a file in the Standard Workload Format ([`Trace::parse_swf`]), synthetic
/// ([`Trace::synthetic`]), or listed ([`Trace::of_jobs`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    jobs: Vec<TraceJob>,
    pub(super) skipped: BTreeMap<SkipReason, u64>,
}

impl Trace {
    /// Creates the trace of these jobs. Jobs with the same submit time keep their order; times are truncated
    /// to milliseconds and to 317 years.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ipu_core::IpuCount;
    /// use ipu_core::hardware::Topology;
    /// use ipu_core::placement::BestFit;
    /// use ipu_testkit::{Trace, TraceJob, score_policy};
    ///
    /// let hour = Duration::from_secs(3600);
    /// let jobs = [64, 4].map(|ipus| IpuCount::try_from(ipus).map(|size| TraceJob::new(Duration::ZERO, hour, size)));
    /// let trace = Trace::of_jobs(jobs.into_iter().collect::<Result<Vec<_>, _>>()?);
    /// println!("{}", score_policy::<BestFit>(&trace, &Topology::pod64()));
    /// # Ok::<(), ipu_core::IpuCountError>(())
    /// ```
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

    /// Returns the jobs by submit time.
    #[must_use]
    pub fn jobs(&self) -> &[TraceJob] {
        &self.jobs
    }

    /// Returns the number of skipped records, by reason.
    #[must_use]
    pub const fn skipped(&self) -> &BTreeMap<SkipReason, u64> {
        &self.skipped
    }

    /// Returns the requested IPU time divided by the available time of `ipus` IPUs between the first and the
    /// last submission. From 1 on the queue grows without bound. None if all jobs arrive at once, or `ipus`
    /// is 0.
    #[must_use]
    pub fn load(&self, ipus: u32) -> Option<f64> {
        let span = millis(self.jobs.last()?.submit) - millis(self.jobs.first()?.submit);
        let work: u128 = self.jobs.iter().map(TraceJob::ipu_millis).sum();
        let can_do = u128::from(span) * u128::from(ipus);
        (can_do > 0).then(|| work as f64 / can_do as f64)
    }

    /// Returns the same jobs with scaled intervals between submissions, so that the [load](Self::load) on
    /// `ipus` IPUs is `load`. This adapts a file from one machine to another. Unchanged if the trace has no
    /// load, or `load` is not a positive number.
    #[must_use]
    pub fn at_load(&self, load: f64, ipus: u32) -> Self {
        let (Some(now), true) = (self.load(ipus), load.is_finite() && load > 0.0) else {
            return self.clone();
        };
        let factor = now / load;
        let stretched = self.jobs.iter().map(|job| TraceJob {
            // `as` saturates, and `of_jobs` truncates at the limit.
            submit: Duration::from_millis((millis(job.submit) as f64 * factor).round() as u64),
            ..job.clone()
        });
        Self {
            skipped: self.skipped.clone(),
            ..Self::of_jobs(stretched)
        }
    }
}

/// Returns milliseconds, at most [`MAX_MILLIS`].
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).map_or(MAX_MILLIS, |millis| millis.min(MAX_MILLIS))
}
