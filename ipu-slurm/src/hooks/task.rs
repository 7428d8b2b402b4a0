//! The environment of TaskProlog.

use super::environment::{HookEnvironment, JobIdentity};
use super::ipus::names_model;
use crate::error::InputError;

/// The request of TaskProlog.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskRequest {
    /// The job, or the first component of a heterogeneous one. Without SLUID: a user can set it here.
    pub identity: JobIdentity,
    /// Whether the job asked for IPUs, so that the task must not start without them. Slurm before 24.11 does
    /// not show the licenses here: a job without `--ipus` is then not recognised.
    pub requests_ipus: bool,
    /// Whether only `SLURM_JOB_LICENSES` says so. A job inherits it from the job that submitted it:
    /// [`with_licenses`](Self::with_licenses) decides.
    pub may_be_inherited: bool,
    /// `SLURM_JOB_LICENSES`, of the job or of the job that submitted it; none before Slurm 24.11.
    pub licenses: Option<String>,
    /// `--ipus` of the step, or of its job: the variable `VIPU_IPUS` of the plugin.
    pub ipus: Option<u32>,
    /// The number of the task in its step, from 0.
    pub task: u32,
}

impl TaskRequest {
    /// Parses the variables of TaskProlog.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, or no number.
    pub fn parse(variables: &HookEnvironment, models: &[&str]) -> Result<Self, InputError> {
        variables.check_context("prolog_task", "TaskProlog")?;
        let licenses = variables.text("SLURM_JOB_LICENSES")?.unwrap_or_default();
        // A step of `srun` alone has the first only; a batch step with `--export=NONE` may have the second
        // only.
        let option =
            variables.text("VIPU_IPUS")?.is_some() || variables.text("SLURM_SPANK_VIPU_IPUS")?.is_some();
        let requests_ipus = option || names_model(licenses, |name| models.contains(&name));
        Ok(Self {
            identity: variables.identity(false)?,
            requests_ipus,
            may_be_inherited: requests_ipus && !option,
            licenses: (!licenses.is_empty()).then(|| licenses.to_owned()),
            ipus: match variables.text("VIPU_IPUS")? {
                Some(_) => Some(variables.number("VIPU_IPUS")?),
                None => None,
            },
            task: variables.number("SLURM_PROCID")?,
        })
    }
    /// Decides by the licenses that slurmctld records for the job, see [`SlurmJob::licenses`].
    ///
    /// [`SlurmJob::licenses`]: crate::SlurmJob::licenses
    ///
    /// ```
    /// use ipu_slurm::{HookEnvironment, TaskRequest};
    ///
    /// let variables = [
    ///     ("SLURM_SCRIPT_CONTEXT", "prolog_task"), ("SLURM_CLUSTER_NAME", "testbed"),
    ///     ("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_JOB_LICENSES", "pod64:4"),
    /// ];
    /// let variables = HookEnvironment::new(variables.map(|(name, value)| (name.into(), value.into())));
    /// let request = TaskRequest::parse(&variables, &["pod64"])?;
    /// assert!(request.requests_ipus && request.may_be_inherited);
    /// assert!(!request.with_licenses("(null)", &["pod64"]).requests_ipus);
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    #[must_use]
    pub fn with_licenses(mut self, licenses: &str, models: &[&str]) -> Self {
        if self.may_be_inherited {
            self.requests_ipus = names_model(licenses, |name| models.contains(&name));
            self.may_be_inherited = false;
        }
        self
    }
    /// Keeps the request as it is: the record of the job cannot be read.
    #[must_use]
    pub const fn assume_own_licenses(mut self) -> Self {
        self.may_be_inherited = false;
        self
    }
}
