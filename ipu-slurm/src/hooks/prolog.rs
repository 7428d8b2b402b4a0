//! The environment of PrologSlurmctld.

use ipu_core::AccountName;

use super::environment::{HET_OFFSET, HookEnvironment, JobIdentity};
use super::ipus::{JobIpus, LICENSES, names_model, request};
use crate::conf::ConfFiles;
use crate::error::InputError;

/// The request of PrologSlurmctld for a job with IPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrologRequest {
    /// The job.
    pub identity: JobIdentity,
    /// The account; none without accounting.
    pub account: Option<AccountName>,
    /// The IPUs.
    pub ipus: JobIpus,
}

impl PrologRequest {
    /// Checks that the process is the hook, and was not started by hand.
    ///
    /// # Errors
    ///
    /// If `SLURM_SCRIPT_CONTEXT` is another one.
    pub fn check_context(variables: &HookEnvironment) -> Result<(), InputError> {
        variables.check_context("prolog_slurmctld", "PrologSlurmctld")
    }

    /// Returns the job, with IPUs or without, after a check of the variables that Slurm sets for every job.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, no number, or contradicts another.
    pub fn job(variables: &HookEnvironment) -> Result<JobIdentity, InputError> {
        for name in ["SLURM_JOB_USER", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST"] {
            variables.required(name)?;
        }
        variables.number("SLURM_JOB_UID")?;
        variables.identity(true)
    }

    /// Parses the variables of PrologSlurmctld; none for a job without IPUs.
    ///
    /// # Errors
    ///
    /// The first variable that is missing, not UTF-8, no number, contradicts another, or breaks a limit.
    ///
    /// ```
    /// use ipu_slurm::conf::ConfFiles;
    /// use ipu_slurm::{HookEnvironment, PrologRequest};
    ///
    /// let vipu_conf = ("vipu.conf", "VipuIpuofDir=/home/ipuof\n");
    /// let conf = ConfFiles::parse(vipu_conf, &[("pod64", "ApiHost=ipu-pod64-001\n")])?;
    /// let parse = |licenses: &str| {
    ///     let variables = [
    ///         ("SLURM_SCRIPT_CONTEXT", "prolog_slurmctld"), ("SLURM_CLUSTER_NAME", "testbed"),
    ///         ("SLURM_JOB_ID", "7"), ("SLURM_JOB_UID", "1000"), ("SLURM_JOB_USER", "ada"),
    ///         ("SLURM_JOB_PARTITION", "ipu"), ("SLURM_JOB_NODELIST", "n1"),
    ///         ("SLURM_JOB_LICENSES", licenses),
    ///     ];
    ///     let variables = variables.map(|(name, value)| (name.into(), value.into()));
    ///     PrologRequest::parse(&HookEnvironment::new(variables), &conf)
    /// };
    /// let ipus = parse("pod64:4,matlab")?.expect("pod64 is a model").ipus;
    /// assert_eq!((ipus.model.as_str(), ipus.ipus.get()), ("pod64", 4));
    /// assert_eq!(parse("matlab"), Ok(None));
    /// assert_eq!(
    ///     parse("pod64:3").unwrap_err().to_string(),
    ///     "SLURM_JOB_LICENSES = pod64:3: the IPUs of a partition are a power of two; ask for 4",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(variables: &HookEnvironment, conf: &ConfFiles) -> Result<Option<Self>, InputError> {
        Self::check_context(variables)?;
        let offset = variables.text(HET_OFFSET)?;
        if variables.is_later_component()? {
            // Slurm hands the options of the plugin to all components; the licenses decide.
            let licenses = variables.text(LICENSES)?.unwrap_or_default();
            if !names_model(licenses, |name| conf.model(name).is_some()) {
                return Ok(None);
            }
            let rule = "only the first component of a heterogeneous job has IPUs";
            let fix = "ask for them on the first component";
            return Err(InputError::new(HET_OFFSET, offset, rule, fix));
        }
        let Some(ipus) = request(variables, conf)? else {
            return Ok(None);
        };
        Self::with_ipus(variables, ipus).map(Some)
    }

    /// Parses the job of PrologSlurmctld, with IPUs that no variable of it requests.
    pub(crate) fn with_ipus(variables: &HookEnvironment, ipus: JobIpus) -> Result<Self, InputError> {
        let account = match variables.text("SLURM_JOB_ACCOUNT")? {
            None | Some("(null)") => None,
            Some(text) => Some(AccountName::new(text).map_err(|error| {
                let rule = format!("must be {}", error.rule);
                InputError::new("SLURM_JOB_ACCOUNT", Some(text), rule, "use another account")
            })?),
        };
        Ok(Self {
            identity: Self::job(variables)?,
            account,
            ipus,
        })
    }
}
