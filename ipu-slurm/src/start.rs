//! Starts of a run.
//!
//! A slurmctld that was killed may have forgotten a start, and start the run again while processes of the
//! first start still run. Slurm before 25.11 also gives one [`RunKey`] to two jobs: if they have one job id
//! and were submitted in one second, and if they are tasks of one array. So each start that cannot prove that
//! it repeats an earlier one has a partition of its own.

use core::fmt;

use ipu_core::{JobKey, NameError, Owner};

use crate::error::{InputError, decimal};
use crate::run::{OWNER_KIND, RunKey};
use crate::squeue::{ListedState, RunList, may_use_nodes};

/// A start of a run, which owns a partition.
///
/// Displays as the uid of the owner: that of the run, and `.<number>` after it for further starts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunStart {
    /// The run.
    pub key: RunKey,
    /// The number of the start, from 0.
    pub number: u32,
}

impl RunStart {
    /// Returns the first start of a run.
    #[must_use]
    pub const fn first(key: RunKey) -> Self {
        Self { key, number: 0 }
    }

    /// Returns the first start that a hook of the run `key` may have now. `used` is the latest whose
    /// partition tasks may have used, if any. A SLUID proves that the hook repeats that start.
    ///
    /// ```
    /// use ipu_slurm::RunStart;
    ///
    /// let chosen_after = |used: &str| {
    ///     let used = RunStart::from_uid(used).unwrap();
    ///     RunStart::choose(&used.key, Some(&used)).to_string()
    /// };
    /// assert_eq!(chosen_after("7.1795599506"), "7.1795599506.1");
    /// assert_eq!(chosen_after("7.s7CHM89146VJ00"), "7.s7CHM89146VJ00");
    /// ```
    #[must_use]
    pub fn choose(key: &RunKey, used: Option<&Self>) -> Self {
        match used.filter(|used| used.key == *key) {
            None => Self::first(key.clone()),
            Some(used) if key.run.is_sluid() => used.clone(),
            Some(used) => used.next(),
        }
    }

    /// Returns the next start of the run.
    #[must_use]
    pub fn next(&self) -> Self {
        Self {
            key: self.key.clone(),
            number: self.number.saturating_add(1),
        }
    }

    /// Returns whether `other` is a later start of the run.
    #[must_use]
    pub fn is_followed_by(&self, other: &Self) -> bool {
        self.key == other.key && self.number < other.number
    }

    /// Returns the entry of slurmctld's list for this start. If `starts` has a later one, the entry of the
    /// run is about that one.
    #[must_use]
    pub fn listed_in<'a>(&self, runs: &RunList, starts: impl IntoIterator<Item = &'a Self>) -> ListedState {
        match runs.state_of(&self.key) {
            ListedState::SameRun { state, has_nodes }
                if starts.into_iter().any(|start| self.is_followed_by(start)) =>
            {
                ListedState::LaterStart {
                    has_nodes: may_use_nodes(&state, has_nodes),
                }
            }
            listed => listed,
        }
    }

    /// Parses the uid of an owner, `<job id>.<run>` or `<job id>.<run>.<start>`.
    ///
    /// # Errors
    ///
    /// If the uid has another form.
    pub fn from_uid(uid: &str) -> Result<Self, InputError> {
        let further = uid
            .rsplit_once('.')
            .filter(|(run, _)| run.contains('.'))
            .map(|(run, number)| (run, decimal::<u32>(number)));
        match further {
            None => Ok(Self::first(RunKey::from_uid(uid)?)),
            Some((run, Some(number))) if number > 0 => Ok(Self {
                key: RunKey::from_uid(run)?,
                number,
            }),
            Some(_) => Err(InputError::new(
                "uid",
                Some(uid),
                "must be <job id>.<run> or <job id>.<run>.<start>",
                "leave owners of kind SlurmJob to the hooks",
            )),
        }
    }

    /// Returns the owner of the start's partition: kind `SlurmJob`, namespace `cluster`, name
    /// `slurm-<job id>`.
    ///
    /// # Errors
    ///
    /// If `cluster` is not a namespace.
    ///
    /// ```
    /// use ipu_slurm::RunStart;
    ///
    /// let owner = RunStart::from_uid("7.1795599506.1").unwrap().owner("testbed")?;
    /// assert_eq!((owner.kind.as_str(), owner.job.uid.as_str()), ("SlurmJob", "7.1795599506.1"));
    /// assert_eq!(owner.job.to_string(), "testbed/slurm-7");
    /// # Ok::<(), ipu_core::NameError>(())
    /// ```
    pub fn owner(&self, cluster: &str) -> Result<Owner, NameError> {
        let name = format!("slurm-{}", self.key.job_id);
        Ok(Owner {
            kind: OWNER_KIND.to_owned(),
            job: JobKey::new(cluster, name, self.to_string())?,
        })
    }
}

impl fmt::Display for RunStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => write!(f, "{}", self.key),
            number => write!(f, "{}.{number}", self.key),
        }
    }
}
