//! Standard Workload Format of the Parallel Workloads Archive (Feitelson et al., version 2.2): one job per
//! line, 18 fields separated by blanks, -1 for unknown values, comments after `;`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use ipu_core::IpuCount;

use super::trace::{MAX_MILLIS, SkipReason, Trace, TraceJob};

/// Number of fields.
const FIELDS: usize = 18;

/// Relevant fields: index from 0, and name.
type Field = (usize, &'static str);
const NUMBER: Field = (0, "job number");
const SUBMIT: Field = (1, "submit time");
const RUNTIME: Field = (3, "run time");
const ALLOCATED: Field = (4, "allocated processors");
const REQUESTED: Field = (7, "requested processors");
const STATUS: Field = (10, "status");

/// Maximum number of characters of a wrong value in an error.
const MAX_SHOWN_CHARS: usize = 40;

/// Conversion of the jobs of a file to jobs on IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwfOptions {
    /// Processors of the file per IPU; 1 by default. The number of IPUs of a job is rounded up to a whole
    /// number and then to a power of two.
    pub processors_per_ipu: NonZeroU32,
}

impl Default for SwfOptions {
    fn default() -> Self {
        Self {
            processors_per_ipu: NonZeroU32::MIN,
        }
    }
}

/// Error in a file in the Standard Workload Format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field} = {value:?}: must be {rule}; {fix}")]
#[non_exhaustive]
pub struct SwfError {
    /// Line number, from 1.
    pub line: usize,
    /// Name and number of the field.
    pub field: String,
    /// Value, truncated if it is long.
    pub value: String,
    /// Violated rule.
    pub rule: &'static str,
    /// Fix.
    pub fix: &'static str,
}

impl Trace {
    /// Parses a file in the Standard Workload Format. Comments may contain invalid UTF-8.
    ///
    /// - A job's size is its allocated processors, else the requested ones, by
    ///   [`SwfOptions::processors_per_ipu`]. All jobs have priority 0.
    /// - Submit and run time may have fractions; they are rounded to milliseconds. Wait times, requested
    ///   times, queues and dependencies are ignored: the replay decides when a job starts.
    /// - A job without a submit time, run time or size, too large, or cancelled before it started is counted
    ///   in [`skipped`](Self::skipped), as are partial records of interrupted jobs.
    /// - Jobs are sorted by submit time.
    ///
    /// ```
    /// use ipu_testkit::{SkipReason, SwfOptions, Trace};
    ///
    /// let text = "; MaxProcs: 64\n\
    ///     1 0 -1 60 3 -1 -1 3 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n\
    ///     2 5 -1 -1 8 -1 -1 8 -1 -1 0 -1 -1 -1 -1 -1 -1 -1\n";
    /// let trace = Trace::parse_swf(text, &SwfOptions::default())?;
    /// assert_eq!(trace.jobs()[0].size.get(), 4);
    /// assert_eq!(trace.skipped()[&SkipReason::UnknownRuntime], 1);
    ///
    /// let wrong = Trace::parse_swf(text.replace("60", "soon"), &SwfOptions::default());
    /// assert_eq!(
    ///     wrong.map_err(|error| error.to_string()),
    ///     Err(
    ///         "line 2: run time (field 4) = \"soon\": must be 0 to 10000000000 seconds, or -1; \
    ///         write a decimal number, or -1 if it is unknown"
    ///             .into()
    ///     )
    /// );
    /// # Ok::<(), ipu_testkit::SwfError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SwfError`] for the first line that has not 18 fields, or an invalid value in a relevant one.
    pub fn parse_swf(text: impl AsRef<[u8]>, options: &SwfOptions) -> Result<Self, SwfError> {
        let mut jobs = Vec::new();
        let mut skipped = BTreeMap::new();
        for (line, bytes) in (1..).zip(text.as_ref().split(|byte| *byte == b'\n')) {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim();
            if text.is_empty() || text.starts_with(';') {
                continue;
            }
            match SwfRecord::parse(line, text)?.job(options)? {
                Ok(job) => jobs.push(job),
                Err(skip) => *skipped.entry(skip).or_insert(0) += 1,
            }
        }
        let mut trace = Self::of_jobs(jobs);
        trace.skipped = skipped;
        Ok(trace)
    }
}

/// Fields of one line.
struct SwfRecord<'a> {
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> SwfRecord<'a> {
    fn parse(line: usize, text: &'a str) -> Result<Self, SwfError> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        if fields.len() == FIELDS {
            return Ok(Self { line, fields });
        }
        Err(SwfError {
            line,
            field: "number of fields".into(),
            value: fields.len().to_string(),
            rule: "18",
            fix: "write -1 for unknown values, and comments on separate lines after `;`",
        })
    }

    /// Returns the job, or the reason to skip it.
    fn job(&self, options: &SwfOptions) -> Result<Result<TraceJob, SkipReason>, SwfError> {
        let number = self.whole_number(NUMBER)?;
        let (submit, runtime) = (self.time(SUBMIT)?, self.time(RUNTIME)?);
        let (allocated, requested) = (self.whole_number(ALLOCATED)?, self.whole_number(REQUESTED)?);
        let status = self.whole_number(STATUS)?;
        let is_partial = matches!(status, Some(2..=4));
        let never_started = status == Some(5) && runtime.is_none_or(|time| time.is_zero());
        let known = |count: &u64| *count > 0;
        let processors = allocated.filter(known).or(requested.filter(known));
        Ok(match (submit, runtime, processors) {
            _ if is_partial => Err(SkipReason::Stretch),
            _ if never_started => Err(SkipReason::NeverStarted),
            (None, ..) => Err(SkipReason::UnknownSubmit),
            (_, None, _) => Err(SkipReason::UnknownRuntime),
            (.., None) => Err(SkipReason::UnknownSize),
            (Some(submit), Some(runtime), Some(processors)) => processors
                .div_ceil(u64::from(options.processors_per_ipu.get()))
                .checked_next_power_of_two()
                .and_then(|ipus| IpuCount::from_order(ipus.trailing_zeros()))
                .map(|size| TraceJob::new(submit, runtime, size).numbered(number.unwrap_or(0)))
                .ok_or(SkipReason::TooLarge),
        })
    }

    /// Returns a time in whole milliseconds; none if unknown.
    fn time(&self, field: Field) -> Result<Option<Duration>, SwfError> {
        match self.fields[field.0].parse::<f64>() {
            Ok(-1.0) => Ok(None),
            Ok(seconds) if (0.0..=MAX_MILLIS as f64 / 1000.0).contains(&seconds) => {
                Ok(Some(Duration::from_millis((seconds * 1000.0).round() as u64)))
            }
            _ => Err(self.invalid(
                field,
                "0 to 10000000000 seconds, or -1",
                "write a decimal number, or -1 if it is unknown",
            )),
        }
    }

    /// Returns a whole number; none if unknown.
    fn whole_number(&self, field: Field) -> Result<Option<u64>, SwfError> {
        let text = self.fields[field.0];
        // "64.0" is accepted like "64"; larger numbers lose no digits.
        match (text.parse::<u64>(), text.parse::<f64>()) {
            (Ok(number), _) => Ok(Some(number)),
            (_, Ok(-1.0)) => Ok(None),
            (_, Ok(value)) if value.fract() == 0.0 && (0.0..=1e15).contains(&value) => Ok(Some(value as u64)),
            _ => Err(self.invalid(
                field,
                "a whole number from 0 on, or -1",
                "write -1 if it is unknown",
            )),
        }
    }

    fn invalid(&self, (index, name): Field, rule: &'static str, fix: &'static str) -> SwfError {
        SwfError {
            line: self.line,
            field: format!("{name} (field {})", index + 1),
            value: self.fields[index].chars().take(MAX_SHOWN_CHARS).collect(),
            rule,
            fix,
        }
    }
}
