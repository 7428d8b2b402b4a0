//! Sets of device or socket numbers: `0-3,8`.

use core::fmt;
use core::str::FromStr;

use crate::gres::cursor::Part;
use crate::gres::error::GresError;

/// A set of device or socket numbers, as `0-3,8`; the empty set as `N/A`, which is how Slurm prints it.
///
/// Ranges are kept as ranges: `0-4294967295` takes no more room than `0-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Indices {
    /// Rising, apart from one another by at least one number that is missing.
    ranges: Vec<(u32, u32)>,
}

impl Indices {
    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        let length = |(from, to): &(u32, u32)| u64::from(*to) - u64::from(*from) + 1;
        self.ranges.iter().map(length).sum()
    }

    /// Whether `index` is one of them.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.ranges
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&index))
    }

    /// All of them, rising.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|(from, to)| *from..=*to)
    }

    /// The set of rising ranges in any order, which may overlap.
    fn of_ranges(mut listed: Vec<(u32, u32)>) -> Self {
        listed.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for (from, to) in listed {
            match ranges.last_mut() {
                Some((_, end)) if from <= end.saturating_add(1) => *end = to.max(*end),
                _ => ranges.push((from, to)),
            }
        }
        Self { ranges }
    }
}

impl FromIterator<u32> for Indices {
    fn from_iter<I: IntoIterator<Item = u32>>(indices: I) -> Self {
        Self::of_ranges(indices.into_iter().map(|index| (index, index)).collect())
    }
}

impl FromStr for Indices {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        read(&Part::whole(text))
    }
}

impl fmt::Display for Indices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("N/A");
        }
        for (i, (from, to)) in self.ranges.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if from == to {
                write!(f, "{comma}{from}")?;
            } else {
                write!(f, "{comma}{from}-{to}")?;
            }
        }
        Ok(())
    }
}

pub(crate) fn read(part: &Part<'_>) -> Result<Indices, GresError> {
    if part.text() == "N/A" {
        return Ok(Indices::default());
    }
    let mut listed = Vec::new();
    for range in part.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (number(&from)?, number(&to)?);
        if first > last {
            return Err(range.error("a range rises", "write the smaller number first"));
        }
        listed.push((first, last));
    }
    Ok(Indices::of_ranges(listed))
}

fn number(part: &Part<'_>) -> Result<u32, GresError> {
    let text = part.text();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(number),
        Ok(_) | Err(_) => {
            let rule = "numbers are 0 to 4294967295, alone or as ranges";
            Err(part.error(rule, "write them like 0-3,8, or N/A for none"))
        }
    }
}
