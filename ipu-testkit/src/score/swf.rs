//! Standard Workload Format of the Parallel Workloads Archive (Feitelson et al., version 2.2): one job per
//! line, 18 fields separated by blanks, -1 for unknown values, comments after `;`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use ipu_core::IpuCount;

use super::trace::{MAX_MILLIS, SkipReason, SwfHeader, Trace, TraceJob, millis};

/// Field names, from field 1 on.
const FIELDS: [&str; 18] = [
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
];

/// Indexes of the relevant fields, from 0.
const NUMBER: usize = 0;
const SUBMIT: usize = 1;
const RUNTIME: usize = 3;
const ALLOCATED: usize = 4;
const REQUESTED: usize = 7;
const STATUS: usize = 10;
const QUEUE: usize = 14;

/// Maximum number of characters of a wrong value in an error.
const MAX_SHOWN_CHARS: usize = 40;

/// Conversion of the jobs of a file to jobs on IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwfOptions {
    /// Processors of the file per IPU; 1 by default. The number of IPUs of a job is rounded up to a whole
    /// number and then to a power of two.
    pub processors_per_ipu: NonZeroU32,
    /// Larger jobs are skipped as [`SkipReason::TooLarge`]; [`IpuCount::MAX`] by default.
    pub largest: IpuCount,
    /// Priorities by queue. Other queues have the priority in a comment of the file such as `; Queue: 3
    /// priority 10` (as [`Trace::to_swf`] writes them), or 0.
    pub priorities: BTreeMap<u64, i32>,
}

impl Default for SwfOptions {
    fn default() -> Self {
        Self {
            processors_per_ipu: NonZeroU32::MIN,
            largest: IpuCount::MAX,
            priorities: BTreeMap::new(),
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
    ///   [`SwfOptions::processors_per_ipu`].
    /// - Submit and run time may have fractions; they are rounded to milliseconds. Wait times, requested
    ///   times and dependencies are ignored: the replay decides when a job starts.
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
    /// assert_eq!(trace.header().max_procs, Some(64));
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
    /// [`SwfError`] for the first line that is not 18 numbers, or has a number out of range.
    pub fn parse_swf(text: impl AsRef<[u8]>, options: &SwfOptions) -> Result<Self, SwfError> {
        let mut header = Header::default();
        let mut skipped = BTreeMap::new();
        let mut jobs = Vec::new();
        for (line, bytes) in (1..).zip(text.as_ref().split(|byte| *byte == b'\n')) {
            let text = String::from_utf8_lossy(bytes);
            let text = text.trim();
            if let Some(comment) = text.strip_prefix(';') {
                header.read(comment);
            } else if !text.is_empty() {
                match SwfRecord::parse(line, text)?.job(options)? {
                    Ok(job) => jobs.push(job),
                    Err(skip) => *skipped.entry(skip).or_insert(0) += 1,
                }
            }
        }
        let jobs = jobs.into_iter().map(|(job, queue)| {
            let priority = queue.and_then(|queue| {
                let chosen = options.priorities.get(&queue);
                chosen.or_else(|| header.priorities.get(&queue)).copied()
            });
            job.with_priority(priority.unwrap_or(0))
        });
        let mut trace = Self::of_jobs(jobs);
        trace.header = header.known;
        trace.skipped = skipped;
        Ok(trace)
    }

    /// Returns the trace in the Standard Workload Format, with one processor per IPU:
    /// [`parse_swf`](Self::parse_swf) with the default options returns the same jobs. Priorities become
    /// queues, each explained by a comment.
    #[must_use]
    pub fn to_swf(&self) -> String {
        let priorities: BTreeSet<i32> = self.jobs().iter().map(|job| job.priority).collect();
        let queues: BTreeMap<i32, usize> = priorities.into_iter().zip(1..).collect();
        let mut text = String::from("; Version: 2.2\n; Note: a processor is an IPU\n");
        let header = self.header();
        let known = [
            ("MaxJobs", Some(self.jobs().len() as u64)),
            ("MaxNodes", header.max_nodes),
            ("MaxProcs", header.max_procs),
            ("UnixStartTime", header.unix_start_time),
        ];
        for (key, value) in known {
            if let Some(value) = value {
                push(&mut text, format_args!("; {key}: {value}\n"));
            }
        }
        if queues.keys().any(|priority| *priority != 0) {
            for (priority, queue) in &queues {
                push(&mut text, format_args!("; Queue: {queue} priority {priority}\n"));
            }
        }
        for job in self.jobs() {
            push(
                &mut text,
                format_args!(
                    "{} {} -1 {} {size} -1 -1 {size} -1 -1 1 -1 -1 -1 {} -1 -1 -1\n",
                    job.number,
                    Seconds(millis(job.submit)),
                    Seconds(millis(job.runtime)),
                    queues.get(&job.priority).copied().unwrap_or(1),
                    size = job.size.get(),
                ),
            );
        }
        text
    }
}

/// Contents of the comments.
#[derive(Default)]
struct Header {
    known: SwfHeader,
    /// Priorities of queues.
    priorities: BTreeMap<u64, i32>,
}

impl Header {
    /// Parses a comment. Comments are free text: unknown ones are ignored.
    fn read(&mut self, comment: &str) {
        let Some((key, value)) = comment.split_once(':') else {
            return;
        };
        let mut words = value.split_whitespace();
        let number = words.next().and_then(|word| word.parse().ok());
        match key.trim() {
            "MaxProcs" => self.known.max_procs = number.or(self.known.max_procs),
            "MaxNodes" => self.known.max_nodes = number.or(self.known.max_nodes),
            "UnixStartTime" => self.known.unix_start_time = number.or(self.known.unix_start_time),
            "Queue" => {
                let priority = words.next().filter(|word| *word == "priority").and(words.next());
                if let (Some(queue), Some(Ok(priority))) = (number, priority.map(str::parse)) {
                    self.priorities.insert(queue, priority);
                }
            }
            _ => {}
        }
    }
}

/// Fields of one line.
struct SwfRecord<'a> {
    line: usize,
    texts: [&'a str; 18],
    values: [f64; 18],
}

impl<'a> SwfRecord<'a> {
    fn parse(line: usize, text: &'a str) -> Result<Self, SwfError> {
        let mut record = Self {
            line,
            texts: ["-1"; 18],
            values: [-1.0; 18],
        };
        let mut count = 0;
        for word in text.split_whitespace() {
            if let Some(place) = record.texts.get_mut(count) {
                *place = word;
            }
            count += 1;
        }
        if count != FIELDS.len() {
            return Err(SwfError {
                line,
                field: "number of fields".into(),
                value: count.to_string(),
                rule: "18",
                fix: "write -1 for unknown values, and comments on separate lines after `;`",
            });
        }
        for field in 0..FIELDS.len() {
            let number = record.texts[field].parse::<f64>().ok();
            record.values[field] = number.filter(|value| value.is_finite()).ok_or_else(|| {
                if field == SUBMIT || field == RUNTIME {
                    record.invalid_time(field)
                } else {
                    record.invalid(field, "a number", "write -1 if it is unknown")
                }
            })?;
        }
        Ok(record)
    }

    /// Returns the job and its queue, or the reason to skip it.
    fn job(&self, options: &SwfOptions) -> Result<Result<(TraceJob, Option<u64>), SkipReason>, SwfError> {
        let number = self.whole_number(NUMBER)?;
        let submit = self.time(SUBMIT)?;
        let runtime = self.time(RUNTIME)?;
        let (allocated, requested) = (self.whole_number(ALLOCATED)?, self.whole_number(REQUESTED)?);
        let queue = self.whole_number(QUEUE)?;
        let status = self.values[STATUS];
        if [2.0, 3.0, 4.0].contains(&status) {
            return Ok(Err(SkipReason::Stretch));
        }
        if status == 5.0 && runtime.is_none_or(|time| time == 0) {
            return Ok(Err(SkipReason::NeverStarted));
        }
        let Some(submit) = submit else {
            return Ok(Err(SkipReason::UnknownSubmit));
        };
        let Some(runtime) = runtime else {
            return Ok(Err(SkipReason::UnknownRuntime));
        };
        let known = |count: &u64| *count > 0;
        let Some(processors) = allocated.filter(known).or(requested.filter(known)) else {
            return Ok(Err(SkipReason::UnknownSize));
        };
        let ipus = processors.div_ceil(u64::from(options.processors_per_ipu.get()));
        let size = ipus
            .checked_next_power_of_two()
            .and_then(|ipus| IpuCount::from_order(ipus.trailing_zeros()))
            .filter(|size| *size <= options.largest);
        let Some(size) = size else {
            return Ok(Err(SkipReason::TooLarge));
        };
        let job = TraceJob::new(
            Duration::from_millis(submit),
            Duration::from_millis(runtime),
            size,
        );
        Ok(Ok((job.numbered(number.unwrap_or(0)), queue)))
    }

    /// Returns a time in milliseconds; none if unknown.
    fn time(&self, field: usize) -> Result<Option<u64>, SwfError> {
        match self.values[field] {
            -1.0 => Ok(None),
            seconds if (0.0..=MAX_MILLIS as f64 / 1000.0).contains(&seconds) => {
                Ok(Some((seconds * 1000.0).round() as u64))
            }
            _ => Err(self.invalid_time(field)),
        }
    }

    /// Returns a whole number; none if unknown.
    fn whole_number(&self, field: usize) -> Result<Option<u64>, SwfError> {
        // A fraction would lose digits of large numbers; "64.0" is accepted like "64".
        match (self.texts[field].parse::<u64>(), self.values[field]) {
            (Ok(number), _) => Ok(Some(number)),
            (_, -1.0) => Ok(None),
            (_, value) if value.fract() == 0.0 && (0.0..=1e15).contains(&value) => Ok(Some(value as u64)),
            _ => Err(self.invalid(
                field,
                "a whole number from 0 on, or -1",
                "write -1 if it is unknown",
            )),
        }
    }

    fn invalid_time(&self, field: usize) -> SwfError {
        self.invalid(
            field,
            "0 to 10000000000 seconds, or -1",
            "write a decimal number, or -1 if it is unknown",
        )
    }

    fn invalid(&self, field: usize, rule: &'static str, fix: &'static str) -> SwfError {
        SwfError {
            line: self.line,
            field: format!("{} (field {})", FIELDS[field], field + 1),
            value: self.texts[field].chars().take(MAX_SHOWN_CHARS).collect(),
            rule,
            fix,
        }
    }
}

/// Milliseconds, displayed as seconds, without a zero fraction.
struct Seconds(u64);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.0 / 1000, self.0 % 1000) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, part) => write!(f, "{whole}.{part:03}"),
        }
    }
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("writing to a string does not fail");
}
