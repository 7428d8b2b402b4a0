//! A job of `scontrol -o show job`.

use super::record;
use crate::conf::LicenseList;
use crate::error::{InputError, decimal};
use crate::job_state::JobState;

/// A job as `scontrol -o show job` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlurmJob {
    /// The job id. Each task of an array and each component of a heterogeneous job has its own.
    pub id: u32,
    /// The place in an array.
    pub array: Option<ArrayTask>,
    /// The place in a heterogeneous job.
    pub het: Option<HetComponent>,
    /// The name, any text.
    pub name: String,
    /// The name of the user.
    pub user: String,
    /// The id of the user.
    pub uid: u32,
    /// The account; none for `(null)`.
    pub account: Option<String>,
    /// The state.
    pub state: JobState,
    /// The reason, such as `Licenses`.
    pub reason: String,
    /// The number of requeues. It is not an identity of a run: hooks of one run see different ones.
    pub restarts: u32,
    /// The time limit in seconds; none without limit.
    pub time_limit: Option<u64>,
    /// The submission of this run as Slurm prints it: seconds since 1970 with `SLURM_TIME_FORMAT=%s`.
    pub submit_time: String,
    /// The (expected) start as Slurm prints it.
    pub start_time: String,
    /// The allocated nodes; none for an empty list. While the job completes, those that are not done.
    pub node_list: Option<String>,
    /// The requested licenses as Slurm prints them.
    pub licenses: String,
    /// The comment of an administrator.
    pub admin_comment: AdminComment,
}

/// The place of a job in an array.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArrayTask {
    /// The id of the array.
    pub job_id: u32,
    /// The task, or the set of tasks that are pending together, such as `3-5%2`.
    pub task_id: String,
}

/// The place of a job in a heterogeneous job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HetComponent {
    /// The id of the first component.
    pub job_id: u32,
    /// The number of this component, from 0.
    pub offset: u32,
}

/// The AdminComment of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminComment {
    /// None is set.
    Absent,
    /// The text.
    Text(String),
    /// A text of the user contains ` AdminComment=`, so that the value is uncertain.
    Ambiguous,
}

impl SlurmJob {
    /// Returns the id by which `scontrol` changes this job alone. One task of an array has the id of the
    /// array, which addresses all tasks. None for a set of pending tasks that Slurm has abbreviated.
    #[must_use]
    pub fn scontrol_id(&self) -> Option<String> {
        let Some(ArrayTask { job_id, task_id }) = &self.array else {
            return Some(self.id.to_string());
        };
        if decimal::<u32>(task_id).is_some() {
            return Some(format!("{job_id}_{task_id}"));
        }
        let (tasks, _) = task_id.split_once('%').unwrap_or((task_id, ""));
        let is_set = !tasks.is_empty() && tasks.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b));
        is_set.then(|| format!("{job_id}_[{tasks}]"))
    }

    /// Parses the requested licenses.
    #[must_use]
    pub fn license_list(&self) -> LicenseList {
        LicenseList::parse("Licenses", &self.licenses)
    }
}

/// Parses a record.
pub(super) fn parse(record: &str) -> Result<SlurmJob, InputError> {
    let core = record::core(record)?;
    let mut head = Head(core.before);
    let id = head.number("JobId")?;
    let array = match head.token("ArrayJobId") {
        Some(job_id) => Some(ArrayTask {
            job_id: number("ArrayJobId", job_id)?,
            task_id: head.token("ArrayTaskId").unwrap_or_default().to_owned(),
        }),
        None => None,
    };
    let _ = head.token("ArrayTaskThrottle");
    let het = match head.token("HetJobId") {
        Some(job_id) => Some(HetComponent {
            job_id: number("HetJobId", job_id)?,
            offset: head.number("HetJobOffset")?,
        }),
        None => None,
    };
    let Some(rest) = head.0.strip_prefix("JobName=") else {
        return Err(unreadable("JobName", head.0));
    };
    let at = rest.rfind(" UserId=").ok_or_else(|| unreadable("UserId", rest))?;
    let name = match (&het, rest[..at].rsplit_once(" HetJobIdSet=")) {
        (Some(_), Some((name, set))) if !set.contains(' ') => name,
        _ => &rest[..at],
    };
    let owner = owner(&rest[at + 1..])?;
    let [
        state,
        reason,
        restarts,
        time_limit,
        submit,
        start,
        nodes,
        licenses,
    ] = core.values;
    Ok(SlurmJob {
        id,
        array,
        het,
        name: name.to_owned(),
        user: owner.user.to_owned(),
        uid: owner.uid,
        account: owner.account.map(str::to_owned),
        state: JobState::parse(state).ok_or_else(|| unreadable("JobState", state))?,
        reason: reason.to_owned(),
        restarts: number("Restarts", restarts)?,
        time_limit: parse_time_limit(time_limit)?,
        submit_time: submit.to_owned(),
        start_time: start.to_owned(),
        node_list: (!matches!(nodes, "" | "(null)")).then(|| nodes.to_owned()),
        licenses: licenses.to_owned(),
        admin_comment: parse_admin_comment(core.after),
    })
}

/// The beginning of a record, from which tokens are taken.
struct Head<'a>(&'a str);

impl<'a> Head<'a> {
    /// Takes `key=value` if it is next.
    fn token(&mut self, key: &str) -> Option<&'a str> {
        let (token, rest) = self.0.split_once(' ')?;
        let value = token.strip_prefix(key)?.strip_prefix('=')?;
        self.0 = rest;
        Some(value)
    }

    fn number(&mut self, key: &str) -> Result<u32, InputError> {
        match self.token(key) {
            Some(value) => number(key, value),
            None => Err(unreadable(key, self.0)),
        }
    }
}

struct Owner<'a> {
    user: &'a str,
    uid: u32,
    account: Option<&'a str>,
}

/// Parses `UserId=… GroupId=… MCS_label=… Priority=… Nice=… Account=… QOS=… [WCKey=…]`.
fn owner(text: &str) -> Result<Owner<'_>, InputError> {
    const KEYS: [&str; 7] = [
        "UserId",
        "GroupId",
        "MCS_label",
        "Priority",
        "Nice",
        "Account",
        "QOS",
    ];
    let mut head = Head(text);
    let mut values = [""; KEYS.len()];
    for (key, value) in KEYS.iter().zip(&mut values) {
        *value = head.token(key).ok_or_else(|| unreadable(key, head.0))?;
    }
    let _ = head.token("WCKey");
    if !head.0.is_empty() {
        return Err(unreadable("Account", values[5]));
    }
    let user = values[0].strip_suffix(')').and_then(|text| text.rsplit_once('('));
    let Some((user, uid)) = user else {
        return Err(unreadable("UserId", values[0]));
    };
    Ok(Owner {
        user,
        uid: number("UserId", uid)?,
        account: (!matches!(values[5], "" | "(null)")).then_some(values[5]),
    })
}

fn number(key: &str, text: &str) -> Result<u32, InputError> {
    decimal(text)
        .ok_or_else(|| InputError::new(key, Some(text), "must be a number", "check the version of Slurm"))
}

fn unreadable(key: &str, text: &str) -> InputError {
    let rule = "is not as Slurm prints it";
    InputError::new(
        key,
        Some(text),
        rule,
        "remove keys of scontrol and blanks from the account and the name of the job",
    )
}

/// Parses `UNLIMITED`, `Partition_Limit`, `NOT_SET` (of `squeue`), `MM:SS`, `HH:MM:SS` or `D-HH:MM:SS` into
/// seconds.
pub(crate) fn parse_time_limit(text: &str) -> Result<Option<u64>, InputError> {
    if matches!(text, "UNLIMITED" | "Partition_Limit" | "NOT_SET") {
        return Ok(None);
    }
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds: Option<u64> = Some(0);
    for part in clock.split(':') {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let part: Option<u64> = part.parse().ok().filter(|_| digits);
        seconds = seconds
            .zip(part)
            .and_then(|(sum, part)| sum.checked_mul(60)?.checked_add(part));
    }
    let days = decimal::<u64>(days).and_then(|days| days.checked_mul(86_400));
    let parts = clock.split(':').count();
    match days.zip(seconds).and_then(|(days, rest)| days.checked_add(rest)) {
        Some(sum) if matches!(parts, 2 | 3) => Ok(Some(sum)),
        _ => Err(InputError::new(
            "TimeLimit",
            Some(text),
            "must be UNLIMITED or D-HH:MM:SS",
            "check the version of Slurm",
        )),
    }
}

pub(super) fn parse_admin_comment(rest: &str) -> AdminComment {
    let mut parts = rest.split(" AdminComment=");
    let _ = parts.next();
    match (parts.next(), parts.next()) {
        (None, _) => AdminComment::Absent,
        (Some(text), None) => {
            let ends = [" SystemComment=", " Comment=", " StdErr="];
            let end = ends.iter().filter_map(|key| text.find(key)).min();
            AdminComment::Text(text[..end.unwrap_or(text.len())].trim_end().to_owned())
        }
        (Some(_), Some(_)) => AdminComment::Ambiguous,
    }
}
