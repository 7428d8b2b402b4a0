//! Errors of options. Each text has the option, the value, the rule and a value that is possible.

use std::fmt;

use crate::job_option::{JobOption, text};

/// Maximum IPUs of a partition that any documented system could form. Limits of a site are in
/// `job_submit.lua`.
pub(crate) const MAX_IPUS: u32 = 65_536;

/// Maximum IPUs of a reconfigurable partition: one link domain.
pub(crate) const MAX_RECONFIGURABLE: u32 = 64;

/// Maximum length of the name of a system, as of other names in this project.
pub(crate) const MAX_MODEL: usize = 253;

/// The reason that an option is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OptionError {
    /// Not a whole number in decimal digits.
    NotANumber { option: JobOption, value: String },
    /// Not a power of two from 1 to [`MAX_IPUS`].
    NotAPowerOfTwo {
        option: JobOption,
        value: String,
        next: u32,
    },
    /// No name of a system.
    NotAModel { value: String },
    /// More GCDs than IPUs.
    TooManyGcds { gcds: u32, ipus: u32 },
    /// A reconfigurable partition of several link domains.
    TooLargeToReconfigure { ipus: u32 },
    /// A later component of a heterogeneous job asks for IPUs.
    LaterComponent { option: JobOption, value: String },
    /// A step asks for something else than its job.
    StepDiffers {
        option: JobOption,
        value: String,
        job_value: Option<String>,
    },
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber { option, value } => write!(
                f,
                "{}: {} is a whole number in decimal digits, a power of two from 1 to {MAX_IPUS}; use 1, 2, 4 \
                 or 8",
                assignment(*option, value),
                noun(*option)
            ),
            Self::NotAPowerOfTwo { option, value, next } => write!(
                f,
                "{}: {} is a power of two from 1 to {MAX_IPUS}; use {next}",
                assignment(*option, value),
                noun(*option)
            ),
            Self::NotAModel { value } => write!(
                f,
                "{}: the name of a system begins with a letter and has up to {MAX_MODEL} letters, digits, \
                 '_', '-' and '.'; use a name such as pod64",
                assignment(JobOption::Model, value)
            ),
            Self::TooManyGcds { gcds, ipus } => write!(
                f,
                "--ipu-gcds={gcds}: the GCDs divide the {ipus} IPUs of --ipus; use a power of two from 1 to \
                 {ipus}"
            ),
            Self::TooLargeToReconfigure { ipus } => write!(
                f,
                "--ipu-reconfigurable: a reconfigurable partition has at most {MAX_RECONFIGURABLE} IPUs, and \
                 --ipus={ipus} asks for more; use --ipus={MAX_RECONFIGURABLE}, or leave the option out"
            ),
            Self::LaterComponent { option, value } => write!(
                f,
                "{}: only the first component of a heterogeneous job has IPUs; ask for them on the first \
                 component",
                assignment(*option, value)
            ),
            Self::StepDiffers {
                option,
                value,
                job_value,
            } => {
                write!(
                    f,
                    "{}: a step has the partition of its job, ",
                    assignment(*option, value)
                )?;
                match job_value {
                    Some(job) => write!(f, "which was submitted with {}", assignment(*option, job))?,
                    None => write!(f, "which was submitted without --{}", text(option.name()))?,
                }
                f.write_str("; leave the option out")?;
                if *option == JobOption::Ipus && job_value.is_some() {
                    let share =
                        ", and submit the job with --ipu-gcds=N to share its IPUs among N tasks of a step";
                    f.write_str(share)?;
                }
                Ok(())
            }
        }
    }
}

fn noun(option: JobOption) -> &'static str {
    match option {
        JobOption::Gcds => "the number of GCDs",
        _ => "the number of IPUs of a partition",
    }
}

fn assignment(option: JobOption, value: &str) -> String {
    match option {
        JobOption::Reconfigurable => format!("--{}", text(option.name())),
        _ => format!("--{}={value}", text(option.name())),
    }
}
