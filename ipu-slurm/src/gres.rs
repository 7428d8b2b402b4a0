//! Generic resources (GRES) in Slurm's text forms: `vipu:2:3`, `gres/vipu:2:3`, `vipu:2(CNT:3)`,
//! `gpu:a100:4(IDX:0-2,7)`.
//!
//! Sources: Graphcore's Slurm guide, §8.3 (`type:model:count`; a number directly after the type is a count)
//! and §8.5.3 (`no_consume`); slurm.conf(5) under `Gres=`, gres.conf(5) and sbatch(1) under `--gres`
//! (suffixes of counts); and the output of Slurm 22.05 and 24.11, string by string in this crate's tests. Up
//! to 23.02 Slurm writes the prefix `gres:`, from 23.11 on `gres/`. The parser accepts both; `Display` writes
//! neither.

use core::fmt;
use core::str::FromStr;

use ipu_core::{IpuCount, IpuCountError};

use crate::text::shorten;

/// Maximum length of a name or a type in characters. Slurm has no documented limit; this one equals that of
/// other names in this project.
const MAX_NAME: usize = 253;
/// Maximum length of a text in an error, in characters.
const MAX_EXCERPT: usize = 80;
const NO_CONSUME: &str = "no_consume";
const FORMS: &str = "write name, name:count or name:type:count";
const DETAIL_FORMS: &str = "write (CNT:number), (IDX:numbers) or (S:numbers)";

/// A generic resource with a count, requested or allocated.
///
/// Parses from `[gres:|gres/]name[:type][:no_consume][:count][(details)]`; the indices and sockets of devices
/// in the details are not read. Prints the same form without prefix and details, and always with a count:
/// `vipu:2` requests two, `vipu:2:1` requests one of type 2.
///
/// ```
/// let requested: ipu_slurm::Gres = "gres:vipu:pod16:4".parse()?;
/// assert_eq!(requested.to_string(), "vipu:pod16:4");
/// assert_eq!(requested.ipus().map(|ipus| ipus.get()), Ok(4));
/// # Ok::<(), ipu_slurm::GresError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gres {
    name: String,
    kind: Option<String>,
    counting: Counting,
    count: u64,
}

/// Whether jobs consume a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// A job's count is not available to other jobs.
    #[default]
    Consumed,
    /// `no_consume`: the count limits each job, and Slurm does not account for it.
    NotConsumed,
}

/// Comma-separated resources. The empty list is the empty text or `(null)`, as in Slurm's output. A leading
/// `--gres=` is removed. A resource may occur twice, as in Slurm.
///
/// ```
/// let list: ipu_slurm::GresList = "vipu:1,gpu:a100:4(IDX:0-2,7)".parse()?;
/// assert_eq!(list.to_string(), "vipu:1,gpu:a100:4");
/// # Ok::<(), ipu_slurm::GresError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GresList(Vec<Gres>);

/// The error for a text that is not a valid Slurm resource.
///
/// ```
/// let error = "vipu:2:three".parse::<ipu_slurm::Gres>().unwrap_err();
/// assert_eq!((error.position, error.part.as_str()), (8, "three"));
/// assert_eq!(
///     error.to_string(),
///     "\"vipu:2:three\", character 8 (\"three\"): a count is a number; \
///      write digits, optionally with the suffix K, M, G, T or P",
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}, character {position} ({part:?}): {rule}; {fix}")]
#[non_exhaustive]
pub struct GresError {
    /// The whole text, truncated to 80 characters.
    pub text: String,
    /// The position of the invalid part, in characters from 1.
    pub position: usize,
    /// The invalid part, truncated to 80 characters; empty if a part is missing.
    pub part: String,
    /// The violated rule.
    pub rule: &'static str,
    /// The fix.
    pub fix: &'static str,
}

impl Gres {
    /// Returns the name, for example `vipu`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type, which Slurm's guides also call model: `pod16`, or `2` for partitions of two IPUs.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// Returns the count; 1 if the text has none. A job holds a count of zero of a resource that is not
    /// consumed.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether jobs consume the resource.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        self.counting
    }

    /// Returns the count as the size of a partition.
    ///
    /// # Errors
    ///
    /// The count is not a valid partition size, which is a power of two.
    pub fn ipus(&self) -> Result<IpuCount, IpuCountError> {
        IpuCount::try_from(u32::try_from(self.count).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for Gres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(kind) = &self.kind {
            write!(f, ":{kind}")?;
        }
        if self.counting == Counting::NotConsumed {
            write!(f, ":{NO_CONSUME}")?;
        }
        write!(f, ":{}", self.count)
    }
}

impl FromStr for Gres {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        Parser(text).resource(text)
    }
}

impl GresList {
    /// Returns the resources in their order.
    #[must_use]
    pub fn items(&self) -> &[Gres] {
        &self.0
    }

    /// Returns the resources named `name`.
    pub fn named<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a Gres> {
        self.0.iter().filter(move |gres| gres.name == name)
    }
}

impl FromStr for GresList {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        let list = text.trim();
        let list = list.strip_prefix("--gres=").unwrap_or(list);
        if matches!(list, "" | "(null)") {
            return Ok(Self::default());
        }
        let (mut start, mut depth, mut items) = (0, 0_usize, Vec::new());
        for (offset, c) in list.char_indices().chain([(list.len(), ',')]) {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                ',' if depth == 0 || offset == list.len() => {
                    items.push(Parser(text).resource(&list[start..offset])?);
                    start = offset + 1;
                }
                _ => {}
            }
        }
        Ok(Self(items))
    }
}

impl fmt::Display for GresList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(null)");
        }
        for (i, gres) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{gres}")?;
        }
        Ok(())
    }
}

/// A parser of parts of a text, which are slices of it.
struct Parser<'a>(&'a str);

impl Parser<'_> {
    fn error(&self, part: &str, rule: &'static str, fix: &'static str) -> GresError {
        let before = part.as_ptr().addr().saturating_sub(self.0.as_ptr().addr());
        let before = self.0.get(..before).unwrap_or_default();
        GresError {
            text: shorten(self.0, MAX_EXCERPT),
            position: before.chars().count() + 1,
            part: shorten(part, MAX_EXCERPT),
            rule,
            fix,
        }
    }

    fn resource(&self, part: &str) -> Result<Gres, GresError> {
        let without_prefix = ["gres:", "gres/"]
            .iter()
            .find_map(|prefix| part.strip_prefix(prefix));
        let part = without_prefix.unwrap_or(part);
        let (fields, mut count) = match part.split_once('(') {
            Some((fields, details)) => (fields, self.details(details)?),
            None => (part, None),
        };
        let mut parts: Vec<&str> = fields.split(':').collect();
        if let Some(empty) = parts.iter().find(|part| part.is_empty()) {
            return Err(self.error(empty, "a part between colons is empty", FORMS));
        }
        let name = self.name(parts.remove(0))?;
        // In the detailed form the count is in the parentheses only, so a number before them is a type.
        if let (None, Some(last)) = (count, parts.last()) {
            count = self.count(last)?;
            if count.is_some() {
                parts.pop();
            }
        }
        let mut counting = Counting::Consumed;
        if parts.last() == Some(&NO_CONSUME) {
            counting = Counting::NotConsumed;
            parts.pop();
        }
        let kind = match parts.as_slice() {
            [] => None,
            [kind] => Some(self.kind(kind)?),
            [_, excess, ..] => {
                let (rule, fix) = match count {
                    Some(_) => ("there is one type between name and count", "remove this part"),
                    None => (
                        "a count is a number",
                        "write digits, optionally with the suffix K, M, G, T or P",
                    ),
                };
                return Err(self.error(excess, rule, fix));
            }
        };
        Ok(Gres {
            name,
            kind,
            counting,
            count: count.unwrap_or(1),
        })
    }

    /// Parses a name. It starts with a letter, so that a count is not a name.
    fn name(&self, part: &str) -> Result<String, GresError> {
        let name = self.word(part)?;
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let rule = "the name of a resource starts with a letter";
            return Err(self.error(part, rule, "write name:type:count"));
        }
        if name == "gres" {
            let rule = "gres is the prefix of resources";
            return Err(self.error(part, rule, "write the resource's own name after it"));
        }
        Ok(name)
    }

    fn kind(&self, part: &str) -> Result<String, GresError> {
        if part == NO_CONSUME {
            let fix = "write name:type:no_consume:count";
            return Err(self.error(part, "no_consume is not a type", fix));
        }
        self.word(part)
    }

    fn word(&self, part: &str) -> Result<String, GresError> {
        if part.len() > MAX_NAME {
            let fix = "give the resource a shorter one";
            return Err(self.error(part, "a name has at most 253 characters", fix));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        match part.find(|c| !plain(c)) {
            None => Ok(part.to_owned()),
            Some(offset) => {
                let rule = "a name has letters, digits, '_', '-' and '.' only";
                Err(self.error(&part[offset..], rule, "remove this character"))
            }
        }
    }

    /// Parses a count; none if the text is not a number and may be a type. Suffixes multiply by powers of
    /// 1024.
    fn count(&self, part: &str) -> Result<Option<u64>, GresError> {
        let digits = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let exponent = match &part[digits.len()..] {
            "" => 0,
            "k" | "K" => 1,
            "m" | "M" => 2,
            "g" | "G" => 3,
            "t" | "T" => 4,
            "p" | "P" => 5,
            _ => return Ok(None),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Ok(None);
        }
        let number: Option<u64> = digits.parse().ok();
        match number.and_then(|number| number.checked_mul(1 << (10 * exponent))) {
            Some(count) => Ok(Some(count)),
            None => Err(self.error(part, "a count is less than 2^64", "write a smaller one")),
        }
    }

    /// Parses one or more of `CNT:3)`, `IDX:0-3,8)`, `S:0-1)`, without the first opening parenthesis. Returns
    /// the count.
    fn details(&self, part: &str) -> Result<Option<u64>, GresError> {
        let mut count = None;
        let mut rest = part;
        loop {
            let Some((detail, after)) = rest.split_once(')') else {
                return Err(self.error(rest, "a parenthesis is not closed", DETAIL_FORMS));
            };
            match detail.split_once(':') {
                Some(("CNT", value)) if count.is_none() => {
                    let error = || self.error(value, "a count is a number", "write digits");
                    count = Some(self.count(value)?.ok_or_else(error)?);
                }
                Some(("IDX" | "S", _)) => {}
                _ => return Err(self.error(detail, "this is not a detail of a resource", DETAIL_FORMS)),
            }
            rest = match after.strip_prefix('(') {
                Some(next) => next,
                None if after.is_empty() => return Ok(count),
                None => {
                    let rule = "there is text after the parenthesis";
                    return Err(self.error(after, rule, "remove it"));
                }
            };
        }
    }
}
