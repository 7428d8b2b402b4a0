//! The environment of EpilogSlurmctld.

use super::environment::{HookEnvironment, JobIdentity};
use super::ipus::may_request_ipus;
use crate::conf::ConfFiles;
use crate::error::InputError;

/// The request of EpilogSlurmctld for a job that may have IPUs.
///
/// The request for IPUs is not checked: what PrologSlurmctld created is released even if a limit has
/// changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EpilogRequest {
    /// The job.
    pub identity: JobIdentity,
}

impl EpilogRequest {
    /// Parses the variables of EpilogSlurmctld; none for a job without IPUs, and for later components of a
    /// heterogeneous job, whose IPUs PrologSlurmctld refuses. Without a configuration, any
    /// license may be that of a model.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, or no number.
    ///
    /// ```
    /// use ipu_slurm::conf::ConfFiles;
    /// use ipu_slurm::{EpilogRequest, HookEnvironment};
    ///
    /// let variables = [
    ///     ("SLURM_SCRIPT_CONTEXT", "epilog_slurmctld"), ("SLURM_CLUSTER_NAME", "testbed"),
    ///     ("SLURM_JOB_ID", "7"), ("SLURM_JOB_LICENSES", "pod64:4"),
    /// ];
    /// let variables = HookEnvironment::new(variables.map(|(name, value)| (name.into(), value.into())));
    /// let request = EpilogRequest::parse(&variables, None)?.expect("pod64 may be a model");
    /// assert_eq!(request.identity.job_id, 7);
    ///
    /// // This configuration has no model pod64.
    /// let conf = ConfFiles::parse(("vipu.conf", ""), &[])?;
    /// assert_eq!(EpilogRequest::parse(&variables, Some(&conf))?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(variables: &HookEnvironment, conf: Option<&ConfFiles>) -> Result<Option<Self>, InputError> {
        variables.check_context("epilog_slurmctld", "EpilogSlurmctld")?;
        let is_model = |name: &str| conf.is_none_or(|conf| conf.model(name).is_some());
        if variables.is_later_component()? || !may_request_ipus(variables, is_model) {
            return Ok(None);
        }
        Ok(Some(Self {
            identity: variables.identity(true)?,
        }))
    }
}
