//! Sets of device or socket indices: `0-3,8`.

use core::fmt;
use core::str::FromStr;

use crate::gres::cursor::Part;
use crate::gres::error::GresError;

/// A set of device or socket indices, as `0-3,8`; the empty set as `N/A`, like in Slurm's output.
///
/// Ranges are stored as ranges: `0-4294967295` needs no more memory than `0-3`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Indices {
    /// Ascending and separated by at least one missing number.
    ranges: Vec<(u32, u32)>,
}

impl Indices {
    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of indices.
    #[must_use]
    pub fn len(&self) -> u64 {
        let length = |(from, to): &(u32, u32)| u64::from(*to) - u64::from(*from) + 1;
        self.ranges.iter().map(length).sum()
    }

    /// Returns whether the set contains `index`.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.ranges
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&index))
    }

    /// Returns all indices in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.ranges.iter().flat_map(|(from, to)| *from..=*to)
    }

    /// Creates a set from ascending ranges in any order, which may overlap.
    fn from_ranges(mut listed: Vec<(u32, u32)>) -> Self {
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
        Self::from_ranges(indices.into_iter().map(|index| (index, index)).collect())
    }
}

impl FromStr for Indices {
    type Err = GresError;

    fn from_str(text: &str) -> Result<Self, GresError> {
        parse(&Part::whole(text))
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

pub(crate) fn parse(part: &Part<'_>) -> Result<Indices, GresError> {
    if part.text() == "N/A" {
        return Ok(Indices::default());
    }
    let mut listed = Vec::new();
    for range in part.split(',') {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (parse_index(&from)?, parse_index(&to)?);
        if first > last {
            return Err(range.error("a range is ascending", "write the smaller number first"));
        }
        listed.push((first, last));
    }
    Ok(Indices::from_ranges(listed))
}

fn parse_index(part: &Part<'_>) -> Result<u32, GresError> {
    let text = part.text();
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits => Ok(number),
        Ok(_) | Err(_) => {
            let rule = "indices are 0 to 4294967295, single or as ranges";
            Err(part.error(rule, "write them like 0-3,8, or N/A for none"))
        }
    }
}
