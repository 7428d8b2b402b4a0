//! Identity of a run of a job.
//!
//! Slurm reuses job ids: after a kill of slurmctld, a new job can have the id of one whose processes still
//! run. A requeue keeps the id too. So a run has an identity of its own: the SLUID from Slurm 25.11 on,
//! before that the submission in seconds since 1970.

use core::fmt;

use crate::error::{InputError, decimal};

/// The kind of owner that every run of Slurm has.
pub const OWNER_KIND: &str = "SlurmJob";
/// Maximum length of a SLUID. Slurm 26.05 prints 14 characters.
const MAX_SLUID_LEN: usize = 32;

/// The identity of a run among runs with the same job id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RunId {
    /// The submission in seconds since 1970. A requeue changes it.
    Submitted(u64),
    /// The SLUID: a letter, then letters and digits. A requeue changes it.
    Sluid(String),
}

/// A run: the job id and the identity among runs with that id.
///
/// Displays as `<job id>.<run>`, the uid of the run's owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunKey {
    /// The job id. Tasks of an array and components of a heterogeneous job have their own.
    pub job_id: u32,
    /// The identity of the run.
    pub run: RunId,
}

impl RunId {
    /// Parses `SLURM_JOB_SLUID`.
    ///
    /// # Errors
    ///
    /// If the text is not a letter followed by letters and digits.
    pub fn from_sluid(text: &str) -> Result<Self, InputError> {
        let starts = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric());
        if starts && plain && text.len() <= MAX_SLUID_LEN {
            return Ok(Self::Sluid(text.to_owned()));
        }
        Err(InputError::new(
            "SLURM_JOB_SLUID",
            Some(text),
            "must be a letter followed by letters and digits",
            "leave it as Slurm sets it",
        ))
    }

    /// Parses SubmitTime of `scontrol` or `squeue`. Times of the local zone are refused: the hooks and the
    /// agent may have different zones, and an hour of each autumn occurs twice.
    ///
    /// # Errors
    ///
    /// If the text is not a number of seconds since 1970.
    pub fn from_submit_time(text: &str) -> Result<Self, InputError> {
        let seconds = decimal(text).filter(|seconds| *seconds > 0);
        seconds.map(Self::Submitted).ok_or_else(|| {
            InputError::new(
                "SubmitTime",
                Some(text),
                "must be seconds since 1970",
                "set SLURM_TIME_FORMAT=%s",
            )
        })
    }

    /// Returns whether it is a SLUID, which no two jobs share.
    #[must_use]
    pub const fn is_sluid(&self) -> bool {
        matches!(self, Self::Sluid(_))
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Submitted(seconds) => write!(f, "{seconds}"),
            Self::Sluid(text) => f.write_str(text),
        }
    }
}

impl RunKey {
    /// Parses the uid of an owner, `<job id>.<run>`.
    ///
    /// # Errors
    ///
    /// If the uid has another form.
    ///
    /// ```
    /// use ipu_slurm::{RunId, RunKey};
    ///
    /// assert_eq!(RunKey::from_uid("7.1795599506")?.run, RunId::Submitted(1_795_599_506));
    /// assert_eq!(RunKey::from_uid("7.s7CHM89146VJ00")?.run, RunId::from_sluid("s7CHM89146VJ00")?);
    /// assert_eq!(
    ///     RunKey::from_uid("slurm-7").unwrap_err().to_string(),
    ///     "uid = slurm-7: must be <job id>.<run>; leave owners of kind SlurmJob to the hooks",
    /// );
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    pub fn from_uid(uid: &str) -> Result<Self, InputError> {
        let error = || {
            InputError::new(
                "uid",
                Some(uid),
                "must be <job id>.<run>",
                "leave owners of kind SlurmJob to the hooks",
            )
        };
        let (job_id, run) = uid.split_once('.').ok_or_else(error)?;
        let job_id = decimal(job_id).ok_or_else(error)?;
        let run = if run.starts_with(|c: char| c.is_ascii_digit()) {
            RunId::from_submit_time(run)
        } else {
            RunId::from_sluid(run)
        };
        let run = run.map_err(|_| error())?;
        Ok(Self { job_id, run })
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job_id, self.run)
    }
}
