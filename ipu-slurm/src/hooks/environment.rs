//! The variables of a hook.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use ipu_core::{NameError, Namespace};

use crate::error::{InputError, decimal};
use crate::run::{RunId, RunKey};

/// The variables of a hook.
#[derive(Clone, Debug, Default)]
pub struct HookEnvironment {
    variables: BTreeMap<OsString, OsString>,
}

/// The job of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobIdentity {
    /// `SLURM_JOB_ID`. In the tasks of a heterogeneous job it is the id of the first component.
    pub job_id: u32,
    /// The [namespace](cluster_namespace) of `SLURM_CLUSTER_NAME`.
    pub cluster: Namespace,
    /// `SLURM_JOB_SLUID`, in hooks of slurmctld from Slurm 25.11 on.
    pub sluid: Option<RunId>,
}

/// Returns the namespace of a Slurm cluster, for every name that Slurm accepts: bytes that a namespace cannot
/// have, and `%`, become `%` and two hexadecimal digits.
///
/// # Errors
///
/// If the name is empty, or longer than a namespace.
///
/// ```
/// use ipu_slurm::cluster_namespace;
///
/// assert_eq!(cluster_namespace("zürich/a")?.as_str(), "z%C3%BCrich%2Fa");
/// assert_eq!(
///     cluster_namespace("").unwrap_err().to_string(),
///     "\"\" is not a namespace: 1 to 253 printable characters without blanks or '/'",
/// );
/// # Ok::<(), ipu_core::NameError>(())
/// ```
pub fn cluster_namespace(name: &str) -> Result<Namespace, NameError> {
    let mut namespace = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'/' | b'%') {
            namespace.push(char::from(byte));
        } else {
            namespace.push_str(&format!("%{byte:02X}"));
        }
    }
    Namespace::new(namespace)
}

impl JobIdentity {
    /// Returns the key of the run. `submit_time` of `squeue` is needed where Slurm has no SLUID;
    /// [`RunList::key_of`](crate::RunList::key_of) gives the same key, whatever the name of the job is.
    ///
    /// # Errors
    ///
    /// If there is no SLUID, and `submit_time` is absent or no number of seconds.
    ///
    /// ```
    /// use ipu_slurm::HookEnvironment;
    /// use ipu_slurm::host_map::epilog_request;
    ///
    /// // Variables of Slurm before 25.11: no SLUID.
    /// let variables = [("SLURM_CLUSTER_NAME", "testbed"), ("SLURM_JOB_ID", "7")];
    /// let variables = HookEnvironment::new(variables.map(|(name, value)| (name.into(), value.into())));
    /// let job = epilog_request(&variables)?.expect("it is not a later component").identity;
    /// assert_eq!(job.run_key(Some("1795599506"))?.to_string(), "7.1795599506");
    /// assert_eq!(
    ///     job.run_key(None).unwrap_err().to_string(),
    ///     "SubmitTime is absent: is needed, because this Slurm sets no SLURM_JOB_SLUID; \
    ///      check that squeue can reach slurmctld",
    /// );
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    pub fn run_key(&self, submit_time: Option<&str>) -> Result<RunKey, InputError> {
        let run = match (&self.sluid, submit_time) {
            (Some(sluid), _) => sluid.clone(),
            (None, Some(text)) => RunId::from_submit_time(text)?,
            (None, None) => {
                let rule = "is needed, because this Slurm sets no SLURM_JOB_SLUID";
                let fix = "check that squeue can reach slurmctld";
                return Err(InputError::new("SubmitTime", None, rule, fix));
            }
        };
        Ok(RunKey {
            job_id: self.job_id,
            run,
        })
    }

    /// Returns the name of the file with the job's variables in IpuofDir.
    #[must_use]
    pub fn env_file_name(&self) -> String {
        format!("{}-{}.env", self.cluster, self.job_id)
    }
}

impl HookEnvironment {
    /// Takes the variables of a process, such as `std::env::vars_os()`.
    #[must_use]
    pub fn new(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self {
            variables: variables.into_iter().collect(),
        }
    }

    /// Sets `SLURM_CLUSTER_NAME`. TaskProlog of Slurm 22.05 has none in a step that was started outside its
    /// job, or that of another cluster.
    #[must_use]
    pub fn with_cluster_name(mut self, name: &str) -> Self {
        self.variables.insert("SLURM_CLUSTER_NAME".into(), name.into());
        self
    }

    /// Checks that Slurm started the process as the hook of this `SLURM_SCRIPT_CONTEXT`.
    pub(super) fn check_context(&self, context: &str, key: &str) -> Result<(), InputError> {
        let found = self.text("SLURM_SCRIPT_CONTEXT")?;
        if found == Some(context) {
            return Ok(());
        }
        let rule = format!("must be {context}");
        let fix = format!("set the program as {key} in slurm.conf, and do not start it by hand");
        Err(InputError::new("SLURM_SCRIPT_CONTEXT", found, rule, fix))
    }

    /// Returns the job. The SLUID is read only where a user cannot have set it.
    pub(crate) fn identity(&self, trust_sluid: bool) -> Result<JobIdentity, InputError> {
        let job_id = self.number("SLURM_JOB_ID")?;
        let (old, text) = (self.text("SLURM_JOBID")?, self.text("SLURM_JOB_ID")?);
        if old.is_some_and(|old| Some(old) != text) {
            let rule = "must be the same as SLURM_JOB_ID";
            return Err(InputError::new("SLURM_JOBID", old, rule, BY_SLURM));
        }
        let cluster = self.required("SLURM_CLUSTER_NAME")?;
        let cluster = cluster_namespace(cluster).map_err(|error| {
            InputError::new(
                "SLURM_CLUSTER_NAME",
                Some(cluster),
                format!("must be {}", error.rule),
                "shorten ClusterName in slurm.conf",
            )
        })?;
        let sluid = self.text("SLURM_JOB_SLUID")?.filter(|_| trust_sluid);
        Ok(JobIdentity {
            job_id,
            cluster,
            sluid: sluid.map(RunId::from_sluid).transpose()?,
        })
    }

    /// Returns whether the job is a component of a heterogeneous job other than the first.
    pub(crate) fn is_later_component(&self) -> Result<bool, InputError> {
        Ok(self.text(HET_OFFSET)?.is_some() && self.number(HET_OFFSET)? > 0)
    }

    /// Returns a variable; none if it is absent or empty.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, InputError> {
        let Some(value) = self.variables.get(OsStr::new(name)) else {
            return Ok(None);
        };
        match value.to_str() {
            Some("") => Ok(None),
            Some(text) => Ok(Some(text)),
            None => {
                let shown = value.to_string_lossy();
                Err(InputError::new(name, Some(&shown), "must be UTF-8", BY_SLURM))
            }
        }
    }

    /// Returns a variable that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&str, InputError> {
        let text = self.text(name)?;
        text.ok_or_else(|| InputError::new(name, None, "must be set", BY_SLURM))
    }

    /// Returns a number that must be there.
    pub(super) fn number(&self, name: &str) -> Result<u32, InputError> {
        let text = self.required(name)?;
        let number = decimal(text);
        number.ok_or_else(|| InputError::new(name, Some(text), "must be a number", BY_SLURM))
    }
}

/// The number of a component of a heterogeneous job.
pub(super) const HET_OFFSET: &str = "SLURM_HET_JOB_OFFSET";

/// The fix for every variable that Slurm sets itself.
pub(super) const BY_SLURM: &str = "let Slurm start the hook with its own variables";
