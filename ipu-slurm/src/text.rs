//! Every sentence that a person reads: AdminComment, messages of `scontrol notify`, lines of failed hooks.

use core::time::Duration;

/// The beginning of every AdminComment of ours. Any other AdminComment is never replaced.
pub const ADMIN_COMMENT_PREFIX: &str = "vipu: ";
/// Maximum number of owners in a sentence. The others are counted.
const MAX_HOLDERS: usize = 3;
/// Maximum length of a text that another system supplied, in characters.
const MAX_PART: usize = 200;

/// An owner that holds IPUs which a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The owner, such as `SlurmJob testbed/slurm-7`.
    pub owner: String,
    /// The number of IPUs that it holds.
    pub ipus: u32,
    /// The expected end of the hold; none if it is not known.
    pub until: Option<String>,
}

/// The facts about a job that waits for IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The model.
    pub model: String,
    /// The IPUs of the job.
    pub ipus: u32,
    /// The free IPUs of the model.
    pub free: u32,
    /// The largest partition that fits now; 0 for none.
    pub largest: u32,
    /// The owners that hold IPUs of the model.
    pub holders: Vec<Holder>,
}

/// Returns the sentence about a job that waits for IPUs, as a list of facts.
///
/// ```
/// use ipu_slurm::text::{Holder, Shortage, shortage};
///
/// let holder = Holder {
///     owner: "SlurmJob testbed/slurm-7".to_owned(),
///     ipus: 48,
///     until: Some("10:30".to_owned()),
/// };
/// let holders = vec![holder];
/// let facts = Shortage { model: "pod64".to_owned(), ipus: 32, free: 16, largest: 16, holders };
/// assert_eq!(
///     shortage(&facts),
///     "waits for 32 IPUs of pod64: 16 free, largest partition 16; \
///      held by SlurmJob testbed/slurm-7 (48, until 10:30)",
/// );
/// ```
#[must_use]
pub fn shortage(facts: &Shortage) -> String {
    let Shortage {
        model,
        ipus,
        free,
        largest,
        holders,
    } = facts;
    let mut text = format!("waits for {ipus} IPUs of {model}: {free} free, largest partition {largest}");
    if holders.is_empty() {
        return one_line(&text);
    }
    text.push_str("; held by ");
    text.push_str(&list_holders(holders));
    one_line(&text)
}

/// Returns the first holders, and the number of the others.
pub(crate) fn list_holders(holders: &[Holder]) -> String {
    let shown: Vec<String> = holders.iter().take(MAX_HOLDERS).map(holder).collect();
    let mut text = shown.join(", ");
    if let Some(more) = holders.len().checked_sub(MAX_HOLDERS).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn holder(holder: &Holder) -> String {
    let Holder { owner, ipus, until } = holder;
    let owner = shorten(owner, MAX_PART);
    match until {
        Some(until) => format!("{owner} ({ipus}, until {})", shorten(until, MAX_PART)),
        None => format!("{owner} ({ipus})"),
    }
}

/// Returns the sentence about a job whose wait in PrologSlurmctld has ended without IPUs. `reason` is a
/// sentence of [`shortage`] or [`proxy_failure`].
#[must_use]
pub fn describe_timeout(waited: Duration, reason: &str) -> String {
    let seconds = waited.as_secs();
    one_line(&format!("no IPUs within {seconds} s (WaitInProlog): {reason}"))
}

/// Returns the sentence about a proxy that cannot be used.
#[must_use]
pub fn proxy_failure(url: &str, problem: &str) -> String {
    one_line(&format!(
        "the proxy {} failed: {}",
        shorten(url, MAX_PART),
        shorten(problem, MAX_PART)
    ))
}

/// Returns the sentence about a job whose partition is ready.
#[must_use]
pub fn ready(partition: &str, ipus: u32, model: &str) -> String {
    one_line(&format!("has partition {partition} with {ipus} IPUs of {model}"))
}

/// Returns the AdminComment for a sentence.
#[must_use]
pub fn admin_comment(sentence: &str) -> String {
    format!("{ADMIN_COMMENT_PREFIX}{}", one_line(sentence))
}

/// Returns whether an AdminComment may be replaced: there is none, or it is one of ours.
///
/// ```
/// use ipu_slurm::text::{admin_comment, may_replace, ready};
///
/// let comment = admin_comment(&ready("p-slurm-7-0-abc", 4, "pod64"));
/// assert_eq!(comment, "vipu: has partition p-slurm-7-0-abc with 4 IPUs of pod64");
/// assert!(may_replace(Some(&comment)));
/// assert!(!may_replace(Some("ticket 4711")));
/// ```
#[must_use]
pub fn may_replace(comment: Option<&str>) -> bool {
    comment.is_none_or(|text| text.starts_with(ADMIN_COMMENT_PREFIX.trim_end()))
}

/// Returns the text of `scontrol notify`, which `srun` and `salloc` print.
#[must_use]
pub fn notification(job_id: u32, sentence: &str) -> String {
    format!("vipu: job {job_id} {}", one_line(sentence))
}

/// Returns the line of a hook that fails, for standard error and syslog.
#[must_use]
pub fn hook_failure(hook: &str, job_id: Option<u32>, problem: &str) -> String {
    let problem = one_line(problem);
    match job_id {
        Some(job_id) => format!("ipu-slurm {hook}: job {job_id}: {problem}"),
        None => format!("ipu-slurm {hook}: {problem}"),
    }
}

/// Returns the problem of a task that finds no file of an active partition.
#[must_use]
pub fn no_partition_file(path: &str, waited: Duration) -> String {
    let (path, seconds) = (shorten(path, MAX_PART), waited.as_secs());
    one_line(&format!(
        "the job asked for IPUs, but {path} has not appeared within {seconds} s; see AdminComment of \
         scontrol show job"
    ))
}

/// Returns the problem of a task with licenses on a node without configuration, where they may be of IPUs.
#[must_use]
pub fn unknown_licenses(vipu_conf: &str, licenses: &str) -> String {
    let (path, licenses) = (shorten(vipu_conf, MAX_PART), shorten(licenses, MAX_PART));
    one_line(&format!(
        "{path} is absent on this node, and the licenses {licenses} of the job may be IPUs; copy vipu.conf and \
         the files of the models to the node"
    ))
}

/// Returns the problem of a step that requests another number of IPUs than its job has. Outside the job, the
/// plugin does not know the job's number.
#[must_use]
pub fn step_differs(step: u32, job: u32) -> String {
    format!(
        "--ipus={step}: a step has the partition of its job, which has {job} IPUs; leave the option out, and submit the job \
         with --ipu-gcds=N to share its IPUs among N tasks of a step"
    )
}

/// Returns a text on one line: blanks instead of line feeds and other control characters.
pub(crate) fn one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect()
}

/// Returns a text on one line, with at most `max` characters and an ellipsis.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(max).map(plain).collect();
    if text.chars().nth(max).is_some() {
        short.push('…');
    }
    short
}
