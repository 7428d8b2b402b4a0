//! Records and their parts.

use crate::error::{InputError, decimal};

/// The keys of the core that are read, in the order in which Slurm prints them.
pub(super) const CORE_KEYS: [&str; 8] = [
    "JobState",
    "Reason",
    "Restarts",
    "TimeLimit",
    "SubmitTime",
    "StartTime",
    "NodeList",
    "Licenses",
];
/// The key after the core.
const END_KEY: &str = "Network";

/// The core of a record.
#[derive(Debug)]
pub(super) struct Core<'a> {
    /// The text before it.
    pub(super) before: &'a str,
    /// The values of [`CORE_KEYS`].
    pub(super) values: [&'a str; CORE_KEYS.len()],
    /// Its text, up to `Network=`.
    pub(super) text: &'a str,
    /// The text after it, from `Network=` on.
    pub(super) after: &'a str,
}

/// Splits output into records: each begins a line with `JobId=` and a number.
pub(super) fn split(text: &str) -> Result<Vec<&str>, InputError> {
    if matches!(text.trim(), "" | "No jobs in the system") {
        return Ok(Vec::new());
    }
    let mut starts = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if job_id(line).is_some() {
            starts.push(at);
        }
        at += line.len();
    }
    if starts.first() != Some(&0) {
        let first = text.lines().next();
        let fix = "pass the output of scontrol -o show job";
        return Err(InputError::new("JobId", first, "a record begins with JobId", fix));
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let ranges = starts.iter().zip(ends);
    Ok(ranges
        .map(|(start, end)| text[*start..end].trim_end_matches('\n'))
        .collect())
}

/// Returns the id at the beginning of a record.
pub(super) fn job_id(record: &str) -> Option<u32> {
    let (id, _) = record.strip_prefix("JobId=")?.split_once(' ')?;
    decimal(id)
}

/// Finds the core of a record.
pub(super) fn core(record: &str) -> Result<Core<'_>, InputError> {
    let error = |rule: &str, fix: &str| InputError::new("JobState", Some(record), rule, fix);
    let ambiguous = || {
        error(
            "the record can be read in two ways",
            "remove keys of scontrol from name, account and comment of the job",
        )
    };
    let mut starts = occurrences(record, CORE_KEYS[0]).filter(|at| {
        let mut tokens = record[*at..].split(' ');
        tokens.next().is_some() && tokens.next().is_some_and(|next| next.starts_with("Reason="))
    });
    let Some(start) = starts.next() else {
        return Err(error("the record has no JobState", "check the version of Slurm"));
    };
    if starts.next().is_some() {
        return Err(ambiguous());
    }
    let Some((values, end)) = run(&record[start..], 0) else {
        return Err(error(
            "JobState to Licenses are not as Slurm prints them",
            "check the version of Slurm",
        ));
    };
    for (i, key) in CORE_KEYS.iter().enumerate().skip(1) {
        let runs = occurrences(record, key).filter(|at| run(&record[*at..], i).is_some());
        if runs.count() != 1 {
            return Err(ambiguous());
        }
    }
    let mut core = Core {
        before: &record[..start],
        values: [""; CORE_KEYS.len()],
        text: &record[start..start + end],
        after: &record[start + end..],
    };
    for (to, from) in core.values.iter_mut().zip(values) {
        *to = from;
    }
    Ok(core)
}

/// Returns the positions of ` key=`, after the blank.
fn occurrences<'a>(text: &'a str, key: &str) -> impl Iterator<Item = usize> + 'a + use<'a> {
    let pattern = format!(" {key}=");
    let mut from = 0;
    core::iter::from_fn(move || {
        let at = from + text.get(from..)?.find(&pattern)?;
        from = at + 1;
        Some(at + 1)
    })
}

/// Parses the core from its key number `first` on, up to `Network=`. Returns the values and the end.
fn run(text: &str, first: usize) -> Option<(Vec<&str>, usize)> {
    let mut values = Vec::new();
    let mut at = 0;
    for token in text.split(' ') {
        let (key, value) = token.split_once('=')?;
        if key == END_KEY {
            return (first + values.len() == CORE_KEYS.len()).then_some((values, at));
        }
        if !is_key(key) || value.contains(char::is_whitespace) {
            return None;
        }
        if CORE_KEYS.contains(&key) {
            if CORE_KEYS.get(first + values.len()) != Some(&key) {
                return None;
            }
            values.push(value);
        }
        at += token.len() + 1;
    }
    None
}

/// Returns whether a text may be a key, such as `ReqB:S:C:T` or `CPUs/Task`.
fn is_key(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b':' | b'/' | b'_'))
}
