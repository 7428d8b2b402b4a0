//! Output of `scontrol show config`.

use core::time::Duration;

use crate::error::{InputError, decimal};

/// The start of slurmctld and the timeouts after which a node has ended all processes that it must end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlurmctldConfig {
    /// The start of slurmctld in seconds since 1970 (`BOOT_TIME`). From 24.11 on, a reconfigure moves it.
    pub started: u64,
    /// `SlurmdTimeout`: a node without contact for so long is down.
    pub slurmd_timeout: Duration,
    /// `KillWait`: between SIGTERM and SIGKILL.
    pub kill_wait: Duration,
    /// `UnkillableStepTimeout`: a node with a process that survives SIGKILL for so long is drained.
    pub unkillable_step_timeout: Duration,
    /// Whether there is a backup slurmctld. If so, `started` may differ from the time when slurmctld got
    /// control.
    pub has_backup: bool,
    /// The first slurmctld that answers a ping, such as `Slurmctld(primary) at host`: it has control.
    pub in_control: Option<String>,
}

impl SlurmctldConfig {
    /// Parses the output of `scontrol show config` with `SLURM_TIME_FORMAT=%s` in its environment.
    ///
    /// # Errors
    ///
    /// The first value that is absent, given twice, or no number.
    ///
    /// ```
    /// use ipu_slurm::SlurmctldConfig;
    ///
    /// let text = "BOOT_TIME               = 1795599505\n\
    ///             KillWait                = 30 sec\n\
    ///             SlurmdTimeout           = 300 sec\n\
    ///             UnkillableStepTimeout   = 60 sec\n\
    ///             Slurmctld(primary) at ctl is UP\n";
    /// let config = SlurmctldConfig::parse(text)?;
    /// assert_eq!((config.started, config.settle_time().as_secs()), (1_795_599_505, 390));
    /// assert_eq!(config.in_control.as_deref(), Some("Slurmctld(primary) at ctl"));
    /// # Ok::<(), ipu_slurm::InputError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, InputError> {
        Ok(Self {
            started: value(text, "BOOT_TIME", "")?,
            slurmd_timeout: Duration::from_secs(value(text, "SlurmdTimeout", " sec")?),
            kill_wait: Duration::from_secs(value(text, "KillWait", " sec")?),
            unkillable_step_timeout: Duration::from_secs(value(text, "UnkillableStepTimeout", " sec")?),
            has_backup: text.lines().any(|line| line.starts_with("SlurmctldHost[1]")),
            in_control: text.lines().find_map(|line| {
                let slurmctld = line.trim_end().strip_suffix(" is UP")?;
                slurmctld.starts_with("Slurmctld(").then(|| slurmctld.to_owned())
            }),
        })
    }

    /// Returns whether the slurmctld of both answers is the same process. A backup may have started in the
    /// same second as the primary.
    #[must_use]
    pub fn is_same_slurmctld(&self, other: &Self) -> bool {
        (self.started, &self.in_control) == (other.started, &other.in_control)
    }

    /// Returns how long slurmctld may not know of processes that still run, after it has got control.
    #[must_use]
    pub fn settle_time(&self) -> Duration {
        self.slurmd_timeout
            .saturating_add(self.kill_wait)
            .saturating_add(self.unkillable_step_timeout)
    }
}

/// Returns the first value of a key in the output of `scontrol show config`, such as `ClusterName`.
#[must_use]
pub fn config_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    values(text, key).next()
}

fn values<'a>(text: &'a str, key: &str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| {
        let (name, value) = line.split_once('=')?;
        (name.trim_end() == key).then_some(value.trim())
    })
}

/// Returns the number of the line `key = number unit`.
fn value(text: &str, key: &str, unit: &str) -> Result<u64, InputError> {
    let mut values = values(text, key);
    let (first, second) = (values.next(), values.next());
    let number = first.and_then(|value| decimal(value.strip_suffix(unit)?));
    match (number, second) {
        (Some(number), None) => Ok(number),
        _ => Err(InputError::new(
            key,
            first,
            "must be there once, as a number",
            "run scontrol show config with SLURM_TIME_FORMAT=%s",
        )),
    }
}
