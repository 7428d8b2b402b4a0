//! Lists of resources: the value of `--gres`, and the output of `Gres=`, `GRES=` and `TresPerNode=`.

use core::fmt;
use core::str::FromStr;

use crate::gres::cursor::Part;
use crate::gres::error::GresError;
use crate::gres::{self, Gres};

/// Comma-separated resources. The empty list is the empty text or `(null)`, as in Slurm's output. A leading
/// `--gres=` is removed. A resource may occur twice, as in Slurm.
///
/// ```
/// let list: ipu_slurm::GresList = "vipu:1,gpu:a100:4(IDX:0-2,7)".parse()?;
/// assert_eq!(list.to_string(), "vipu:1,gpu:a100:4(IDX:0-2,7)");
/// # Ok::<(), ipu_slurm::GresError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GresList {
    items: Vec<Gres>,
}

impl GresList {
    /// Returns the resources in their order.
    #[must_use]
    pub fn items(&self) -> &[Gres] {
        &self.items
    }

    /// Returns the resources named `name`.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Gres> {
        self.items.iter().filter(move |gres| gres.name() == name)
    }
}

impl FromIterator<Gres> for GresList {
    fn from_iter<I: IntoIterator<Item = Gres>>(items: I) -> Self {
        Self {
            items: items.into_iter().collect(),
        }
    }
}

impl FromStr for GresList {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        let part = Part::whole(text).trim();
        let part = part.strip_prefix("--gres=").unwrap_or(part);
        if matches!(part.text(), "" | "(null)") {
            return Ok(Self::default());
        }
        part.split_list().iter().map(gres::parse).collect()
    }
}

impl fmt::Display for GresList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.items.is_empty() {
            return f.write_str("(null)");
        }
        for (i, gres) in self.items.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{gres}")?;
        }
        Ok(())
    }
}
