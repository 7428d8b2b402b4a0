//! The resources that a job has on its nodes, in the output of `scontrol -o -d show job`: one record a line,
//! `Key=value` separated by blanks. No other command of Slurm 22.05 prints them.
//!
//! Users choose some of the values (JobName, Account, Comment, Command, WorkDir), and those may contain
//! blanks, line feeds and `Key=`. The parser relies on the core of a record, `JobState` to `Licenses`: its
//! values have no blanks, and the keys read here occur once each and in order. A record with two possible
//! cores, and output of several lines, are refused as ambiguous.

use crate::error::{InputError, decimal};
use crate::gres::GresList;

/// The keys of the core that are read, in the order in which Slurm prints them.
const CORE_KEYS: [&str; 8] = [
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

/// Parses the output of `scontrol -o -d show job ID` and returns the resources that the job `id` has on the
/// first of its nodes. It has the same `vipu` on every node; other resources may differ.
///
/// # Errors
///
/// If the output is not exactly one line, not the record of the job, or can be read in two ways, such as for
/// arrays, heterogeneous jobs, and jobs whose texts imitate a record:
/// [`parse_squeue_gres`](crate::parse_squeue_gres) reads those. If the nodes have different `vipu`.
///
/// ```
/// use ipu_slurm::parse_allocated_gres;
///
/// let text = "JobId=7 JobName=true JobState=RUNNING Reason=None Restarts=0 TimeLimit=UNLIMITED \
///             SubmitTime=1795617923 StartTime=1795617923 NodeList=n[1-2] JOB_GRES=vipu:2:2   \
///             Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=vipu:2(CNT:1) Licenses=(null) Network=(null)\n";
/// assert_eq!(parse_allocated_gres(text, 7)?.to_string(), "vipu:2:1");
///
/// let forged = text.replace("JobName=true", "JobName=x JobState=RUNNING Reason=None");
/// let error = parse_allocated_gres(&forged, 7).unwrap_err();
/// assert_eq!(&*error.violation.rule, "the record can be read in two ways");
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
pub fn parse_allocated_gres(text: &str, id: u32) -> Result<GresList, InputError> {
    // Slurm indents `Nodes=` also on one line.
    let text = collapse_blanks(text, "Nodes=");
    let core = core_of(record_of(&text, id)?)?;
    let error = |value: &str, rule: &str| {
        let fix = "ask for partitions with --gres=vipu:<size>:<count>";
        InputError::new("GRES", Some(value), rule, fix)
    };
    let values = core.split(' ').filter_map(|token| token.strip_prefix("GRES="));
    let mut first: Option<GresList> = None;
    for value in values {
        let list: GresList = value
            .parse()
            .map_err(|_| error(value, "is not as Slurm prints it"))?;
        match &first {
            None => first = Some(list),
            Some(first) if first.named("vipu").eq(list.named("vipu")) => {}
            Some(_) => return Err(error(value, "the nodes of the job have different vipu resources")),
        }
    }
    first.ok_or_else(|| {
        let fix = "pass the output of scontrol -o -d show job of a running job";
        InputError::new("GRES", None, "the job has no nodes", fix)
    })
}

/// Replaces several blanks before a key by one.
fn collapse_blanks(text: &str, key: &str) -> String {
    let mut parts = text.split(key).peekable();
    let mut collapsed = String::with_capacity(text.len());
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            collapsed.push_str(part);
            break;
        }
        let trimmed = part.trim_end_matches(' ');
        collapsed.push_str(trimmed);
        if trimmed.len() < part.len() {
            collapsed.push(' ');
        }
        collapsed.push_str(key);
    }
    collapsed
}

/// Returns the record of a job, if it is the only line of the output.
fn record_of(text: &str, id: u32) -> Result<&str, InputError> {
    let record = text.trim_end_matches('\n');
    let id_text = id.to_string();
    let error = |rule, fix| InputError::new("JobId", Some(&id_text), rule, fix);
    let found = record
        .strip_prefix("JobId=")
        .and_then(|rest| rest.split_once(' '));
    if found.and_then(|(found, _)| decimal(found)) != Some(id) {
        return Err(error(
            "the output has no record of the job",
            "pass the output of scontrol -o -d show job ID",
        ));
    }
    if record.contains('\n') {
        return Err(error(
            "the output has several lines, and a text of the user may have added them",
            "pass the output of squeue",
        ));
    }
    Ok(record)
}

/// Returns the core of a record.
fn core_of(record: &str) -> Result<&str, InputError> {
    let error = |rule: &str, fix: &str| InputError::new("JobState", Some(record), rule, fix);
    let ambiguous = || {
        error(
            "the record can be read in two ways",
            "remove keys of scontrol from name, account and comment of the job",
        )
    };
    let mut starts = occurrences(record, CORE_KEYS[0]).filter(|offset| {
        let mut tokens = record[*offset..].split(' ');
        tokens.next().is_some() && tokens.next().is_some_and(|next| next.starts_with("Reason="))
    });
    let Some(start) = starts.next() else {
        return Err(error("the record has no JobState", "check the version of Slurm"));
    };
    if starts.next().is_some() {
        return Err(ambiguous());
    }
    let Some(end) = core_end(&record[start..], 0) else {
        return Err(error(
            "JobState to Licenses are not as Slurm prints them",
            "check the version of Slurm",
        ));
    };
    for (i, key) in CORE_KEYS.iter().enumerate().skip(1) {
        let cores = occurrences(record, key).filter(|offset| core_end(&record[*offset..], i).is_some());
        if cores.count() != 1 {
            return Err(ambiguous());
        }
    }
    Ok(&record[start..start + end])
}

/// Returns the positions of ` key=`, after the blank.
fn occurrences<'a>(text: &'a str, key: &str) -> impl Iterator<Item = usize> + 'a + use<'a> {
    let pattern = format!(" {key}=");
    let mut from = 0;
    core::iter::from_fn(move || {
        let offset = from + text.get(from..)?.find(&pattern)?;
        from = offset + 1;
        Some(offset + 1)
    })
}

/// Returns the position of `Network=` after the core from its key number `first` on.
fn core_end(text: &str, first: usize) -> Option<usize> {
    let (mut next, mut offset) = (first, 0);
    for token in text.split(' ') {
        let (key, value) = token.split_once('=')?;
        if key == END_KEY {
            return (next == CORE_KEYS.len()).then_some(offset);
        }
        if !is_key(key) || value.contains(char::is_whitespace) {
            return None;
        }
        if CORE_KEYS.contains(&key) {
            if CORE_KEYS.get(next) != Some(&key) {
                return None;
            }
            next += 1;
        }
        offset += token.len() + 1;
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
