//! Generic resources as Slurm writes them: `vipu:2:3`, `gres/vipu:2:3`, `vipu:2(CNT:3)`, `gpu:a100:4(IDX:0-2,7)`.
//!
//! Sources: seed 004 §8.3 (`type:model:count`, and that a number behind the type alone is a count) and §8.5.3
//! (`no_consume`); slurm.conf(5) under `Gres=`, gres.conf(5) and sbatch(1) under `--gres` (suffixes of counts); and what
//! Slurm 22.05 and 24.11 print, string by string in this crate's tests. Up to 23.02 Slurm writes the prefix `gres:`, from
//! 23.11 on `gres/`; both are read here, and none is printed.

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

/// The most characters of a name or a type. Slurm has no documented limit; this is that of other names here.
pub(crate) const NAME_MAX: usize = 253;

/// So much of one generic resource, asked for or given.
///
/// Parses from `[gres:|gres/]name[:type][:no_consume][:count][(details)]`, and prints as the same without a prefix and
/// always with a count, so that what is printed reads as what it was: `vipu:2` asks for two, `vipu:2:1` for one of type 2.
///
/// ```
/// let asked: ipu_slurm::Gres = "gres:vipu:pod16:4".parse()?;
/// assert_eq!(asked.to_string(), "vipu:pod16:4");
/// assert_eq!(asked.ipus().map(|ipus| ipus.get()), Ok(4));
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

/// Whether jobs use a resource up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counting {
    /// A job takes its count away from the others.
    #[default]
    Consumed,
    /// `no_consume`: the count limits each job, and nothing is counted (seed 004 §8.5.3).
    NotConsumed,
}

impl Gres {
    /// `count` of the resource `name`, of type `kind` if one is given.
    ///
    /// # Errors
    ///
    /// [`GresError`] if the name or the type cannot stand in Slurm's text form.
    pub fn new(name: &str, kind: Option<&str>, count: u64) -> Result<Self, GresError> {
        Ok(Self {
            name: read_name(&Part::whole(name))?.to_owned(),
            kind: kind
                .map(|kind| read_kind(&Part::whole(kind)).map(str::to_owned))
                .transpose()?,
            counting: Counting::Consumed,
            count,
            indices: None,
            sockets: None,
        })
    }

    /// The same with the numbers of its devices.
    #[must_use]
    pub fn with_indices(mut self, indices: Indices) -> Self {
        self.indices = Some(indices);
        self
    }

    /// The same with the sockets that its devices are near to.
    #[must_use]
    pub fn with_sockets(mut self, sockets: Indices) -> Self {
        self.sockets = Some(sockets);
        self
    }

    /// The same, counted or not.
    #[must_use]
    pub fn with_counting(mut self, counting: Counting) -> Self {
        self.counting = counting;
        self
    }

    /// The name: `vipu`, for example.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type, which Slurm's guides call model too: `pod16`, or `2` for partitions of two IPUs (seed 004 §8.3).
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// How many; 1 if the text does not say. Zero occurs: what a job holds of a resource that is not consumed.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Whether jobs use it up.
    #[must_use]
    pub const fn counting(&self) -> Counting {
        self.counting
    }

    /// The numbers of the devices on their node (`IDX`), if they are told.
    #[must_use]
    pub const fn indices(&self) -> Option<&Indices> {
        self.indices.as_ref()
    }

    /// The sockets that the devices are near to (`S`), if they are told.
    #[must_use]
    pub const fn sockets(&self) -> Option<&Indices> {
        self.sockets.as_ref()
    }

    /// The count as the size of a partition.
    ///
    /// # Errors
    ///
    /// The count is no power of two that a partition can have.
    pub fn ipus(&self) -> Result<IpuCount, IpuCountError> {
        IpuCount::try_from(u32::try_from(self.count).unwrap_or(u32::MAX))
    }
}

impl FromStr for Gres {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        read(&Part::whole(text))
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

/// One resource of a text.
pub(crate) fn read(part: &Part<'_>) -> Result<Gres, GresError> {
    let part = without_prefix(part);
    let (words, details) = match part.split_once('(') {
        Some((words, details)) => (words, read_details(&details)?),
        None => (part, Details::default()),
    };
    let mut words = words.split(':');
    if let Some(empty) = words.iter().find(|word| word.text().is_empty()) {
        return Err(empty.error("a part between colons is empty", FORMS));
    }
    // A split has one item at least.
    let name = words.first().map_or(Ok(""), read_name)?;
    words.remove(0);
    let mut gres = Gres {
        name: name.to_owned(),
        kind: None,
        counting: Counting::Consumed,
        count: 1,
        indices: details.indices,
        sockets: details.sockets,
    };
    // In the detailed form the count stands in parentheses only, so that a number before them is a type.
    let mut counted = details.count.is_some();
    gres.count = details.count.unwrap_or(1);
    if let (false, Some(last)) = (counted, words.last())
        && let Some(count) = read_count(last)?
    {
        (counted, gres.count) = (true, count);
        words.pop();
    }
    if words.last().is_some_and(|word| word.text() == NO_CONSUME) {
        gres.counting = Counting::NotConsumed;
        words.pop();
    }
    match words.as_slice() {
        [] => {}
        [kind] => gres.kind = Some(read_kind(kind)?.to_owned()),
        [_, wrong, ..] => {
            let (rule, fix) = if counted {
                ("there is one type between name and count", "leave this part out")
            } else {
                (
                    "a count is a number",
                    "write digits, with K, M, G, T or P behind them if you like",
                )
            };
            return Err(wrong.error(rule, fix));
        }
    }
    Ok(gres)
}

const NO_CONSUME: &str = "no_consume";
const FORMS: &str = "write name, name:count or name:type:count";

/// `gres:` up to Slurm 23.02, `gres/` from 23.11 on.
fn without_prefix<'a>(part: &Part<'a>) -> Part<'a> {
    ["gres:", "gres/"]
        .iter()
        .find_map(|prefix| part.strip_prefix(prefix))
        .unwrap_or(*part)
}

/// A name begins with a letter: otherwise a count could pass for one.
fn read_name<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = read_word(part)?;
    if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(part.error(
            "the name of a resource begins with a letter",
            "write name:type:count",
        ));
    }
    if text == "gres" {
        return Err(part.error(
            "gres is the prefix of resources",
            "write the resource's own name behind it",
        ));
    }
    Ok(text)
}

fn read_kind<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = read_word(part)?;
    if text == NO_CONSUME {
        return Err(part.error("no_consume is not a type", "write name:type:no_consume:count"));
    }
    Ok(text)
}

fn read_word<'a>(part: &Part<'a>) -> Result<&'a str, GresError> {
    let text = part.text();
    if text.is_empty() {
        return Err(part.error("a name is empty", FORMS));
    }
    if text.len() > NAME_MAX {
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
            "leave this character out",
        )),
    }
}

/// A count, or none if the text is no number at all and so may be a type. Suffixes multiply by powers of 1024.
pub(crate) fn read_count(part: &Part<'_>) -> Result<Option<u64>, GresError> {
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
        None => Err(part.error("a count is below 2^64", "write a smaller one")),
    }
}

/// What stands in parentheses behind a resource.
#[derive(Default)]
struct Details {
    count: Option<u64>,
    indices: Option<Indices>,
    sockets: Option<Indices>,
}

/// One or more of `CNT:3)`, `IDX:0-3,8)`, `S:0-1)`, the opening parenthesis of the first one gone.
fn read_details(part: &Part<'_>) -> Result<Details, GresError> {
    const KNOWN: &str = "write (CNT:number), (IDX:numbers) or (S:numbers)";
    let mut details = Details::default();
    let mut rest = Some(*part);
    while let Some(open) = rest {
        let Some((inside, behind)) = open.split_once(')') else {
            return Err(open.error("a parenthesis is not closed", KNOWN));
        };
        let Some((key, value)) = inside.split_once(':') else {
            return Err(inside.error("this is not known about a resource", KNOWN));
        };
        let twice = || key.error("this is told twice", "leave one out");
        match key.text() {
            "CNT" if details.count.is_none() => {
                let count = read_count(&value)?;
                let rule = "a count is a number";
                details.count = Some(count.ok_or_else(|| value.error(rule, "write digits"))?);
            }
            "IDX" if details.indices.is_none() => details.indices = Some(indices::read(&value)?),
            "S" if details.sockets.is_none() => details.sockets = Some(indices::read(&value)?),
            "CNT" | "IDX" | "S" => return Err(twice()),
            _ => return Err(key.error("this is not known about a resource", KNOWN)),
        }
        rest = match (behind.text(), behind.strip_prefix("(")) {
            ("", _) => None,
            (_, Some(next)) => Some(next),
            (_, None) => return Err(behind.error("something stands behind the parenthesis", "leave it out")),
        };
    }
    Ok(details)
}
