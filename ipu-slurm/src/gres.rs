//! Generic resources (GRES) in Slurm's text forms: `vipu:2:3`, `gres/vipu:2:3`, `vipu:2(CNT:3)`,
//! `gpu:a100:4(IDX:0-2,7)`.
//!
//! Sources: seed 004 §8.3 (`type:model:count`; a number directly after the type is a count) and §8.5.3
//! (`no_consume`); slurm.conf(5) under `Gres=`, gres.conf(5) and sbatch(1) under `--gres` (suffixes of
//! counts); and the output of Slurm 22.05 and 24.11, string by string in this crate's tests. Up to 23.02
//! Slurm writes the prefix `gres:`, from 23.11 on `gres/`. The parser accepts both; `Display` writes neither.

pub(crate) mod cursor;
pub(crate) mod error;
pub(crate) mod indices;
pub(crate) mod list;
pub(crate) mod tres;

use core::fmt;
use core::str::FromStr;

use ipu_core::{IpuCount, IpuCountError};

use self::cursor::Part;
use self::error::GresError;
use self::indices::Indices;

/// Maximum length of a name or a type in characters. Slurm has no documented limit; this one equals that of
/// other names in this project.
pub(crate) const MAX_NAME: usize = 253;

/// A generic resource with a count, requested or allocated.
///
/// Parses from `[gres:|gres/]name[:type][:no_consume][:count][(details)]`. Prints the same form without a
/// prefix and always with a count, so that the output parses to the same value: `vipu:2` requests two,
/// `vipu:2:1` requests one of type 2.
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
    indices: Option<Indices>,
    sockets: Option<Indices>,
}

/// Whether jobs consume a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// A job's count is not available to other jobs.
    #[default]
    Consumed,
    /// `no_consume`: the count limits each job, and Slurm does not account for it (seed 004 §8.5.3).
    NotConsumed,
}

impl Gres {
    /// Creates a resource `name` with `count`, and with type `kind` if given.
    ///
    /// # Errors
    ///
    /// [`GresError`] if Slurm's text form does not allow the name or the type.
    pub fn new(name: &str, kind: Option<&str>, count: u64) -> Result<Self, GresError> {
        Ok(Self {
            name: parse_name(&Part::whole(name))?.to_owned(),
            kind: kind
                .map(|kind| parse_kind(&Part::whole(kind)).map(str::to_owned))
                .transpose()?,
            counting: Counting::Consumed,
            count,
            indices: None,
            sockets: None,
        })
    }

    /// Returns the resource with the indices of its devices.
    #[must_use]
    pub fn with_indices(mut self, indices: Indices) -> Self {
        self.indices = Some(indices);
        self
    }

    /// Returns the resource with the sockets that are close to its devices.
    #[must_use]
    pub fn with_sockets(mut self, sockets: Indices) -> Self {
        self.sockets = Some(sockets);
        self
    }

    /// Returns the resource, consumed or not.
    #[must_use]
    pub fn with_counting(mut self, counting: Counting) -> Self {
        self.counting = counting;
        self
    }

    /// Returns the name, for example `vipu`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type, which Slurm's guides also call model: `pod16`, or `2` for partitions of two IPUs
    /// (seed 004 §8.3).
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

    /// Returns the indices of the devices on their node (`IDX`), if given.
    #[must_use]
    pub const fn indices(&self) -> Option<&Indices> {
        self.indices.as_ref()
    }

    /// Returns the sockets that are close to the devices (`S`), if given.
    #[must_use]
    pub const fn sockets(&self) -> Option<&Indices> {
        self.sockets.as_ref()
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

impl FromStr for Gres {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        parse(&Part::whole(text))
    }
}

impl fmt::Display for Gres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(kind) = &self.kind {
            write!(f, ":{kind}")?;
        }
        if self.counting == Counting::NotConsumed {
            f.write_str(":no_consume")?;
        }
        write!(f, ":{}", self.count)?;
        if let Some(indices) = &self.indices {
            write!(f, "(IDX:{indices})")?;
        }
        if let Some(sockets) = &self.sockets {
            write!(f, "(S:{sockets})")?;
        }
        Ok(())
    }
}

/// Parses one resource.
pub(crate) fn parse(part: &Part<'_>) -> Result<Gres, GresError> {
    let part = without_prefix(part);
    let (fields, details) = match part.split_once('(') {
        Some((fields, details)) => (fields, parse_details(&details)?),
        None => (part, Details::default()),
    };
    let mut parts = fields.split(':');
    if let Some(empty) = parts.iter().find(|segment| segment.text().is_empty()) {
        return Err(empty.error("a part between colons is empty", FORMS));
    }
    // A split returns at least one item.
    let name = parts.first().map_or(Ok(""), parse_name)?;
    parts.remove(0);
    let mut gres = Gres {
        name: name.to_owned(),
        kind: None,
        counting: Counting::Consumed,
        count: 1,
        indices: details.indices,
        sockets: details.sockets,
    };
    // In the detailed form the count is in the parentheses only, so a number before them is a type.
    let mut has_count = details.count.is_some();
    gres.count = details.count.unwrap_or(1);
    if let (false, Some(last)) = (has_count, parts.last())
        && let Some(count) = parse_count(last)?
    {
        (has_count, gres.count) = (true, count);
        parts.pop();
    }
    if parts.last().is_some_and(|segment| segment.text() == NO_CONSUME) {
        gres.counting = Counting::NotConsumed;
        parts.pop();
    }
    match parts.as_slice() {
        [] => {}
        [kind] => gres.kind = Some(parse_kind(kind)?.to_owned()),
        [_, excess, ..] => {
            let (rule, fix) = if has_count {
                ("there is one type between name and count", "remove this part")
            } else {
                (
                    "a count is a number",
                    "write digits, optionally with the suffix K, M, G, T or P",
                )
            };
            return Err(excess.error(rule, fix));
        }
    }
    Ok(gres)
}

const NO_CONSUME: &str = "no_consume";
const FORMS: &str = "write name, name:count or name:type:count";

/// Removes the prefix: `gres:` up to Slurm 23.02, `gres/` from 23.11 on.
fn without_prefix<'a>(part: &Part<'a>) -> Part<'a> {
    ["gres:", "gres/"]
        .iter()
        .find_map(|prefix| part.strip_prefix(prefix))
        .unwrap_or(*part)
}

/// Parses a name. It starts with a letter, so that a count is not a name.
fn parse_name<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = parse_word(part)?;
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(part.error(
            "the name of a resource starts with a letter",
            "write name:type:count",
        ));
    }
    if text == "gres" {
        return Err(part.error(
            "gres is the prefix of resources",
            "write the resource's own name after it",
        ));
    }
    Ok(text)
}

fn parse_kind<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = parse_word(part)?;
    if text == NO_CONSUME {
        return Err(part.error("no_consume is not a type", "write name:type:no_consume:count"));
    }
    Ok(text)
}

fn parse_word<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = part.text();
    if text.is_empty() {
        return Err(part.error("a name is empty", FORMS));
    }
    if text.len() > MAX_NAME {
        return Err(part.error(
            "a name has at most 253 characters",
            "give the resource a shorter one",
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    match text.char_indices().find(|(_, c)| !plain(*c)) {
        None => Ok(text),
        Some((at, _)) => Err(part.from(at).error(
            "a name has letters, digits, '_', '-' and '.' only",
            "remove this character",
        )),
    }
}

/// Parses a count; `None` if the text is not a number and may be a type. Suffixes multiply by powers of 1024.
pub(crate) fn parse_count(part: &Part<'_>) -> Result<Option<u64>, GresError> {
    let text = part.text();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let exponent = match &text[digits.len()..] {
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
    let count = number.and_then(|number| number.checked_mul(1 << (10 * exponent)));
    match count {
        Some(count) => Ok(Some(count)),
        None => Err(part.error("a count is less than 2^64", "write a smaller one")),
    }
}

/// The details in parentheses after a resource.
#[derive(Default)]
struct Details {
    count: Option<u64>,
    indices: Option<Indices>,
    sockets: Option<Indices>,
}

/// Parses one or more of `CNT:3)`, `IDX:0-3,8)`, `S:0-1)`, without the first opening parenthesis.
fn parse_details(part: &Part<'_>) -> Result<Details, GresError> {
    const DETAIL_FORMS: &str = "write (CNT:number), (IDX:numbers) or (S:numbers)";
    let mut details = Details::default();
    let mut rest = Some(*part);
    while let Some(open) = rest {
        let Some((detail, after)) = open.split_once(')') else {
            return Err(open.error("a parenthesis is not closed", DETAIL_FORMS));
        };
        let Some((key, value)) = detail.split_once(':') else {
            return Err(detail.error("this is not a detail of a resource", DETAIL_FORMS));
        };
        let duplicate = || key.error("this detail is given twice", "remove one");
        match key.text() {
            "CNT" if details.count.is_none() => {
                let count = parse_count(&value)?;
                let rule = "a count is a number";
                details.count = Some(count.ok_or_else(|| value.error(rule, "write digits"))?);
            }
            "IDX" if details.indices.is_none() => details.indices = Some(indices::parse(&value)?),
            "S" if details.sockets.is_none() => details.sockets = Some(indices::parse(&value)?),
            "CNT" | "IDX" | "S" => return Err(duplicate()),
            _ => return Err(key.error("this is not a detail of a resource", DETAIL_FORMS)),
        }
        rest = match (after.text(), after.strip_prefix("(")) {
            ("", _) => None,
            (_, Some(next)) => Some(next),
            (_, None) => return Err(after.error("there is text after the parenthesis", "remove it")),
        };
    }
    Ok(details)
}
