//! Output of `scontrol -o show licenses`.

use crate::error::decimal;

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
    /// Parses the output of `scontrol -o show licenses`. A line that cannot be read is left out: it may be
    /// about a license that is not for IPUs.
    ///
    /// ```
    /// use ipu_slurm::LicenseCounts;
    ///
    /// let text = "LicenseName=pod64 Total=64 Used=5 Free=59 Reserved=48 Remote=no\n";
    /// let counts = LicenseCounts::parse_list(text);
    /// assert_eq!((counts[0].total, counts[0].free, counts[0].reserved), (64, 59, 48));
    /// ```
    #[must_use]
    pub fn parse_list(text: &str) -> Vec<Self> {
        text.lines().filter_map(Self::parse).collect()
    }

    fn parse(line: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut values = line.split_whitespace().filter_map(|token| {
                let (name, value) = token.split_once('=')?;
                (name == key).then_some(value)
            });
            let first = values.next()?;
            values.next().is_none().then_some(first)
        };
        let count = |key: &str| decimal(value(key)?);
        Some(Self {
            name: value("LicenseName")?.to_owned(),
            total: count("Total")?,
            used: count("Used")?,
            free: count("Free")?,
            reserved: count("Reserved")?,
            remote: value("Remote")? == "yes",
        })
    }
}
