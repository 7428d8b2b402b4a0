//! Trackable resources (TRES), which include generic ones: `cpu=1,mem=1G,gres/vipu=4`.

use core::fmt;
use core::str::FromStr;

use crate::gres::cursor::Part;
use crate::gres::error::GresError;
use crate::gres::{self, Gres, MAX_NAME};

/// A trackable resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Tres {
    /// A generic resource: `gres/name=count` or `gres/name:type=count`. It has neither indices nor sockets.
    Gres(Gres),
    /// Any other resource, verbatim: `cpu=1`, `mem=2.50G`, `license/ipu=4`.
    Other {
        /// The text before `=`.
        name: String,
        /// The text after `=`.
        value: String,
    },
}

/// Comma-separated trackable resources, as in `ReqTRES`, `AllocTRES` and accounting (slurm.conf(5),
/// sacct(1)).
///
/// ```
/// let used: ipu_slurm::TresList = "cpu=1,mem=1G,node=1,gres/vipu=4".parse()?;
/// assert_eq!(used.gres().next().map(|gres| gres.count()), Some(4));
/// # Ok::<(), ipu_slurm::GresError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TresList {
    items: Vec<Tres>,
}

impl TresList {
    /// Returns all resources in their order.
    #[must_use]
    pub fn items(&self) -> &[Tres] {
        &self.items
    }

    /// Returns the generic resources.
    pub fn gres(&self) -> impl Iterator<Item = &Gres> {
        self.items.iter().filter_map(|tres| match tres {
            Tres::Gres(gres) => Some(gres),
            Tres::Other { .. } => None,
        })
    }
}

impl FromStr for TresList {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        let part = Part::whole(text).trim();
        if matches!(part.text(), "" | "(null)") {
            return Ok(Self::default());
        }
        let items: Result<_, _> = part.split(',').iter().map(parse).collect();
        Ok(Self { items: items? })
    }
}

impl fmt::Display for TresList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.items.is_empty() {
            return f.write_str("(null)");
        }
        for (i, tres) in self.items.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "," })?;
            match tres {
                Tres::Gres(gres) => {
                    let kind = gres.kind().map(|kind| format!(":{kind}")).unwrap_or_default();
                    write!(f, "gres/{}{kind}={}", gres.name(), gres.count())?;
                }
                Tres::Other { name, value } => write!(f, "{name}={value}")?,
            }
        }
        Ok(())
    }
}

fn parse(part: &Part<'_>) -> Result<Tres, GresError> {
    let Some((name, value)) = part.split_once('=') else {
        return Err(part.error(
            "a trackable resource has a value",
            "write name=value, such as cpu=1",
        ));
    };
    if let Some(gres) = name.strip_prefix("gres/") {
        let (name, kind) = match gres.split_once(':') {
            Some((name, kind)) => (name, Some(kind)),
            None => (gres, None),
        };
        let kind = kind.as_ref().map(gres::parse_kind).transpose()?;
        let Some(count) = gres::parse_count(&value)? else {
            return Err(value.error(
                "a count is a number",
                "write digits, optionally with the suffix K, M, G, T or P",
            ));
        };
        return Gres::new(gres::parse_name(&name)?, kind, count).map(Tres::Gres);
    }
    let text = name.text();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | ':');
    if text.is_empty() || text.len() > MAX_NAME || !text.chars().all(plain) {
        return Err(name.error(
            "the name of a trackable resource has 1 to 253 letters, digits, '_', '-', '.', '/' and ':'",
            "write name=value, such as cpu=1",
        ));
    }
    if value.text().is_empty() || !value.text().chars().all(|c| c.is_ascii_graphic() && c != '=') {
        return Err(value.error(
            "a value has printable characters except spaces and '='",
            "write name=value, such as cpu=1",
        ));
    }
    Ok(Tres::Other {
        name: text.to_owned(),
        value: value.text().to_owned(),
    })
}
