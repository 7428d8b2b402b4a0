//! The options that the plugin adds to Slurm's commands.

use std::ffi::CStr;

/// An option of `srun`, `sbatch` and `salloc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobOption {
    Ipus,
    Model,
    Gcds,
    Reconfigurable,
}

impl JobOption {
    pub(crate) const ALL: [Self; 4] = [Self::Ipus, Self::Model, Self::Gcds, Self::Reconfigurable];

    /// Returns the name without the dashes.
    pub(crate) const fn name(self) -> &'static CStr {
        match self {
            Self::Ipus => c"ipus",
            Self::Model => c"ipu-model",
            Self::Gcds => c"ipu-gcds",
            Self::Reconfigurable => c"ipu-reconfigurable",
        }
    }

    /// Returns the placeholder of the value in `--help`; `None` for an option without a value.
    pub(crate) const fn placeholder(self) -> Option<&'static CStr> {
        match self {
            Self::Ipus => Some(c"N"),
            Self::Model => Some(c"name"),
            Self::Gcds => Some(c"K"),
            Self::Reconfigurable => None,
        }
    }

    /// Returns the line of `--help`.
    pub(crate) const fn usage(self) -> &'static CStr {
        match self {
            Self::Ipus => c"number of IPUs of the job's partition: a power of two",
            Self::Model => c"system that the IPUs belong to",
            Self::Gcds => c"graph compilation domains of the partition (default 1)",
            Self::Reconfigurable => c"create a reconfigurable partition",
        }
    }

    /// Returns the environment variable of the value.
    pub(crate) const fn variable(self) -> &'static CStr {
        match self {
            Self::Ipus => c"VIPU_IPUS",
            Self::Model => c"VIPU_MODEL",
            Self::Gcds => c"VIPU_GCDS",
            Self::Reconfigurable => c"VIPU_RECONFIGURABLE",
        }
    }
}

/// Returns a constant text as `str`; all constants of this module are ASCII.
pub(crate) fn text(constant: &'static CStr) -> &'static str {
    constant.to_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_constants_are_texts() {
        for option in JobOption::ALL {
            let constants = [option.name(), option.usage(), option.variable()];
            for constant in constants.into_iter().chain(option.placeholder()) {
                assert!(!text(constant).is_empty(), "{constant:?}");
            }
        }
    }
}
