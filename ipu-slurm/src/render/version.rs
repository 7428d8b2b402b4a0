//! The version of Slurm.

use core::fmt;
use core::str::FromStr;

use crate::InputError;

/// The oldest version with every function that the integration needs.
const MIN_VERSION: SlurmVersion = SlurmVersion::new(22, 5, None);

/// A version of Slurm by year, month and, if it is known, the micro version: 24.11 or 24.11.5.
///
/// ```
/// use ipu_slurm::render::SlurmVersion;
///
/// let version: SlurmVersion = "slurm-wlm 25.11.6".parse()?;
/// assert_eq!((version.to_string().as_str(), version.loses_licenses()), ("25.11.6", true));
/// assert_eq!(
///     "21.08".parse::<SlurmVersion>().unwrap_err().to_string(),
///     "Slurm version = 21.08: must be at least 22.05; use 24.11, for example",
/// );
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlurmVersion {
    year: u8,
    month: u8,
    micro: Option<u8>,
}

impl SlurmVersion {
    /// The first version with `name=count` in a list of licenses.
    pub(super) const EQUALS_SIGN: Self = Self::new(23, 11, None);
    /// The first version that runs all programs of a hook, if its key has several lines.
    pub(super) const SEVERAL_HOOKS: Self = Self::new(24, 5, None);
    /// The first version that shows licenses to TaskProlog.
    pub(super) const LICENSES_IN_TASKS: Self = Self::new(24, 11, None);
    /// The first version with `SchedulerParameters=requeue_delay`.
    pub(super) const REQUEUE_DELAY: Self = Self::new(25, 11, None);

    const fn new(year: u8, month: u8, micro: Option<u8>) -> Self {
        Self { year, month, micro }
    }

    /// Returns whether requeued jobs lose their licenses, from 25.05 to 25.11.6 (changelog of 25.11.7). An
    /// unknown micro version may be one of them.
    #[must_use]
    pub fn loses_licenses(self) -> bool {
        (Self::new(25, 5, None)..=Self::new(25, 11, Some(6))).contains(&self)
    }
}

/// Parses `22.05`, `22.05.8` or the output of `scontrol -V`, such as `slurm-wlm 22.05.8`.
impl FromStr for SlurmVersion {
    type Err = InputError;

    fn from_str(text: &str) -> Result<Self, InputError> {
        let error = |rule: String| {
            Err(InputError::new(
                "Slurm version",
                Some(text),
                rule,
                "use 24.11, for example",
            ))
        };
        let last = text.split_ascii_whitespace().last().unwrap_or_default();
        let mut parts = last.split('.');
        let mut two_digits = || {
            let part = parts
                .next()
                .filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()));
            part.and_then(|part| part.parse::<u8>().ok())
        };
        let (year, month) = (two_digits(), two_digits());
        // It may end in a suffix, such as 1-3+b1 of a package.
        let micro = parts.next().and_then(|part| {
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().ok()
        });
        match (year, month) {
            (Some(year), Some(month)) if (1..=12).contains(&month) => {
                let version = Self::new(year, month, micro);
                if version < MIN_VERSION {
                    return error(format!("must be at least {MIN_VERSION}"));
                }
                Ok(version)
            }
            _ => error("has a year and a month of two digits each".to_owned()),
        }
    }
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, micro } = self;
        write!(f, "{year:02}.{month:02}")?;
        match micro {
            Some(micro) => write!(f, ".{micro}"),
            None => Ok(()),
        }
    }
}
