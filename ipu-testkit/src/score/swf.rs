//! The Standard Workload Format of the Parallel Workloads Archive (Feitelson et al., version 2.2): a line a job, 18
//! fields apart by blanks, -1 for what is not known, comments after `;`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use ipu_core::IpuCount;

use super::trace::{MAX_MILLIS, SkipReason, SwfHeader, Trace, TraceJob, millis};

/// The fields in their order, from field 1 on.
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

/// The places of the fields that matter here, from 0.
const NUMBER: usize = 0;
const SUBMIT: usize = 1;
const RUNTIME: usize = 3;
const ALLOCATED: usize = 4;
const REQUESTED: usize = 7;
const STATUS: usize = 10;
const QUEUE: usize = 14;

/// Most characters of a wrong value that an error repeats.
const SHOWN: usize = 40;

/// How the jobs of a file become jobs on IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwfOptions {
    /// How many processors of the file are one IPU; 1 by default. A job gets the IPUs that its processors make, rounded
    /// up to a whole number and then up to a power of two.
    pub processors_per_ipu: NonZeroU32,
    /// Jobs of more IPUs are skipped as [`SkipReason::TooLarge`]; [`IpuCount::MAX`] by default.
    pub largest: IpuCount,
    /// The priority of the jobs of a queue. Queues that are not here have what the file says of them in a comment such as
    /// `; Queue: 3 priority 10` (as [`Trace::to_swf`] writes them), else 0.
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

/// What is wrong with a file in the Standard Workload Format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {field} = {value:?}: must be {rule}; {fix}")]
#[non_exhaustive]
pub struct SwfError {
    /// The line, from 1.
    pub line: usize,
    /// The field's name and number.
    pub field: String,
    /// What is there, cut if it is long.
    pub value: String,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// What to write instead.
    pub fix: &'static str,
}

impl Trace {
    /// Parses a file in the Standard Workload Format. Bytes that are no UTF-8 are fine in comments.
    ///
    /// - A job's size is its allocated processors, else the requested ones, by [`SwfOptions::processors_per_ipu`].
    /// - Submit and run time may have fractions; they are rounded to milliseconds. Wait times, requested times and
    ///   dependencies are not used: a replay decides anew when a job starts.
    /// - A job without a submit time, run time or size, too large, or cancelled before it started is counted in
    ///   [`skipped`](Self::skipped), as are single stretches of jobs that were interrupted.
    /// - Jobs out of order are put in order of their submit times.
    ///
    /// ```
    /// use ipu_testkit::{Skip, SwfOptions, Trace};
    ///
    /// let text = "; MaxProcs: 64\n\
    ///     1 0 -1 60 3 -1 -1 3 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n\
    ///     2 5 -1 -1 8 -1 -1 8 -1 -1 0 -1 -1 -1 -1 -1 -1 -1\n";
    /// let trace = Trace::parse_swf(text, &SwfOptions::default())?;
    /// assert_eq!(trace.jobs()[0].size.get(), 4);
    /// assert_eq!(trace.skipped()[&Skip::UnknownRuntime], 1);
    /// assert_eq!(trace.header().max_procs, Some(64));
    ///
    /// let wrong = Trace::parse_swf(text.replace("60", "soon"), &SwfOptions::default());
    /// assert_eq!(
    ///     wrong.map_err(|error| error.to_string()),
    ///     Err(
    ///         "line 2: run time (field 4) = \"soon\": must be 0 to 10000000000 seconds, or -1; \
    ///         write a decimal number, or -1 if it is not known"
    ///             .into()
    ///     )
    /// );
    /// # Ok::<(), ipu_testkit::SwfError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SwfError`] for the first line that is not 18 numbers, or has a number that cannot be.
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

    /// The trace in the Standard Workload Format, a processor an IPU: [`parse_swf`](Self::parse_swf) with the default
    /// options answers the same jobs. Priorities become queues, which a comment for each explains.
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

/// What the comments say.
#[derive(Default)]
struct Header {
    known: SwfHeader,
    /// The priorities of queues.
    priorities: BTreeMap<u64, i32>,
}

impl Header {
    /// Reads a comment. It is free text: what is not understood is not wrong.
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

/// The fields of one line.
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
                fix: "write -1 for what is not known, and comments on lines of their own after `;`",
            });
        }
        for field in 0..FIELDS.len() {
            let number = record.texts[field].parse::<f64>().ok();
            record.values[field] = number.filter(|value| value.is_finite()).ok_or_else(|| {
                if field == SUBMIT || field == RUNTIME {
                    record.wrong_time(field)
                } else {
                    record.wrong(field, "a number", "write -1 if it is not known")
                }
            })?;
        }
        Ok(record)
    }

    /// The job and its queue, or why it is none.
    fn job(&self, options: &SwfOptions) -> Result<Result<(TraceJob, Option<u64>), SkipReason>, SwfError> {
        let number = self.whole(NUMBER)?;
        let submit = self.time(SUBMIT)?;
        let runtime = self.time(RUNTIME)?;
        let (allocated, requested) = (self.whole(ALLOCATED)?, self.whole(REQUESTED)?);
        let queue = self.whole(QUEUE)?;
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

    /// A time in milliseconds; none if it is not known.
    fn time(&self, field: usize) -> Result<Option<u64>, SwfError> {
        match self.values[field] {
            -1.0 => Ok(None),
            seconds if (0.0..=MAX_MILLIS as f64 / 1000.0).contains(&seconds) => {
                Ok(Some((seconds * 1000.0).round() as u64))
            }
            _ => Err(self.wrong_time(field)),
        }
    }

    /// A whole number; none if it is not known.
    fn whole(&self, field: usize) -> Result<Option<u64>, SwfError> {
        // By way of a fraction large numbers would not stay exact; "64.0" is as good as "64" all the same.
        match (self.texts[field].parse::<u64>(), self.values[field]) {
            (Ok(number), _) => Ok(Some(number)),
            (_, -1.0) => Ok(None),
            (_, value) if value.fract() == 0.0 && (0.0..=1e15).contains(&value) => Ok(Some(value as u64)),
            _ => Err(self.wrong(
                field,
                "a whole number from 0 on, or -1",
                "write -1 if it is not known",
            )),
        }
    }

    fn wrong_time(&self, field: usize) -> SwfError {
        self.wrong(
            field,
            "0 to 10000000000 seconds, or -1",
            "write a decimal number, or -1 if it is not known",
        )
    }

    fn wrong(&self, field: usize, rule: &'static str, fix: &'static str) -> SwfError {
        SwfError {
            line: self.line,
            field: format!("{} (field {})", FIELDS[field], field + 1),
            value: self.texts[field].chars().take(SHOWN).collect(),
            rule,
            fix,
        }
    }
}

/// Milliseconds as seconds, without a fraction where there is none.
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
