//! Output of `scontrol -o show licenses`.

use crate::error::{InputError, decimal};

/// The counts of a license as `scontrol -o show licenses` shows them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LicenseCounts {
    /// The name.
    pub name: String,
    /// All that Slurm has.
    pub total: u32,
    /// Those of running jobs.
    pub used: u32,
    /// Those that no job has. Reserved ones are among them.
    pub free: u32,
    /// Those of reservations. More than `free` is possible.
    pub reserved: u32,
    /// Whether another cluster or slurmdbd serves it.
    pub remote: bool,
}

impl LicenseCounts {
    /// Parses the output of `scontrol -o show licenses`.
    ///
    /// # Errors
    ///
    /// The first line that cannot be read.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InputError> {
        if text.trim() == "No licenses configured in Slurm." {
            return Ok(Vec::new());
        }
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(Self::parse)
            .collect()
    }

    fn parse(line: &str) -> Result<Self, InputError> {
        let value = |key: &str| {
            let mut values = line.split_whitespace().filter_map(|token| {
                let (name, value) = token.split_once('=')?;
                (name == key).then_some(value)
            });
            let first = values.next();
            first.filter(|_| values.next().is_none()).ok_or_else(|| {
                let rule = format!("a license has {key} once");
                InputError::new("LicenseName", Some(line), rule, "check the version of Slurm")
            })
        };
        let count = |key: &str| {
            let text = value(key)?;
            decimal(text).ok_or_else(|| {
                InputError::new(key, Some(text), "must be a number", "check the version of Slurm")
            })
        };
        Ok(Self {
            name: value("LicenseName")?.to_owned(),
            total: count("Total")?,
            used: count("Used")?,
            free: count("Free")?,
            reserved: count("Reserved")?,
            remote: value("Remote")? == "yes",
        })
    }
}
