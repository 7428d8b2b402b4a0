//! License lists: `--licenses`, `Licenses=` of slurm.conf, `SLURM_JOB_LICENSES` of the hooks.
//!
//! As in Slurm, `,` and `;` separate licenses, `:` and `=` are before a count, the counts of one name add up,
//! and a count of 0 is valid. Slurm from 25.05 on accepts alternatives (`pod64:8|pod16:8`): these are errors,
//! because the hooks cannot know which one Slurm chose.

use core::fmt;

use super::error::ConfError;
use super::span::{MAX_FIELD, Span};
use crate::text::shorten;

/// The separators of licenses.
const SEPARATORS: [char; 2] = [',', ';'];
/// The signs before a count.
const COUNT_SIGNS: [char; 2] = [':', '='];
const FIELD: &str = "license";

/// A license with its count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct License {
    name: String,
    count: u32,
}

/// Licenses by different names, all of which a job needs, and the errors of items that are not licenses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LicenseList {
    items: Vec<License>,
    errors: Vec<ConfError>,
}

impl License {
    /// Returns the name, such as `pod64`. Licenses of other products may have `@server` at the end.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the count. It is 1 if the text has none, as in Slurm.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }
}

impl LicenseList {
    /// Parses `name:count,name2:count`. `source` stands for a file name in messages, such as `--licenses`.
    /// An empty text and Slurm's `(null)` are the empty list.
    ///
    /// ```
    /// use ipu_slurm::conf::LicenseList;
    ///
    /// let list = LicenseList::parse("--licenses", "pod64:4,matlab;pod64=2");
    /// assert_eq!((list.count("pod64"), list.count("matlab")), (Some(6), Some(1)));
    ///
    /// let list = LicenseList::parse("--licenses", "matlab,pod64:8|pod16:8");
    /// assert_eq!(list.items().len(), 1);
    /// assert_eq!(
    ///     list.errors()[0].to_string(),
    ///     "--licenses:1:15: license = pod64:8|pod16:8: alternatives are not supported; \
    ///      request one of them, such as pod64:8",
    /// );
    /// ```
    #[must_use]
    pub fn parse(source: &str, text: &str) -> Self {
        Self::of_span(Span::of_value(source, 1, 0, text))
    }

    pub(super) fn of_span(span: Span<'_>) -> Self {
        let mut list = Self::default();
        if span.text() == "(null)" {
            return list;
        }
        for item in span.split(|c| SEPARATORS.contains(&c)) {
            let item = item.trim();
            if item.text().is_empty() {
                continue;
            }
            match parse_item(item) {
                Ok(license) => list.add(license),
                Err(error) => list.errors.push(error),
            }
        }
        list
    }

    /// Returns the licenses in their order.
    #[must_use]
    pub fn items(&self) -> &[License] {
        &self.items
    }

    /// Returns the errors, one for each item that is not a license.
    #[must_use]
    pub fn errors(&self) -> &[ConfError] {
        &self.errors
    }

    /// Returns whether there is no item at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.errors.is_empty()
    }

    /// Returns the count of a license; none if the list does not have it.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u32> {
        self.items
            .iter()
            .find(|license| license.name == name)
            .map(License::count)
    }

    /// Returns whether an item that is no license has this name.
    pub(crate) fn has_mistake_in(&self, name: &str) -> bool {
        let mut values = self
            .errors
            .iter()
            .filter_map(|error| error.violation.value.as_deref());
        values.any(|item| name_of(item) == name)
    }

    fn add(&mut self, new: License) {
        match self.items.iter_mut().find(|known| known.name == new.name) {
            Some(known) => known.count = known.count.saturating_add(new.count),
            None => self.items.push(new),
        }
    }
}

impl fmt::Display for License {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.count)
    }
}

/// Returns a license list with another count of one license. The text of all other items stays.
pub(crate) fn with_count(list: &str, name: &str, count: u32) -> String {
    let mut is_set = false;
    let mut result = String::new();
    for part in list.split_inclusive(SEPARATORS) {
        let item = part.trim_end_matches(SEPARATORS);
        if name_of(item) != name {
            result.push_str(part);
        } else if !is_set {
            is_set = true;
            result.push_str(&format!("{name}:{count}{}", &part[item.len()..]));
        }
    }
    if !is_set {
        let separator = if result.is_empty() || result.ends_with(SEPARATORS) {
            ""
        } else {
            ","
        };
        result.push_str(&format!("{separator}{name}:{count}"));
    }
    result
}

fn name_of(item: &str) -> &str {
    item.split(COUNT_SIGNS).next().unwrap_or_default().trim()
}

fn parse_item(item: Span<'_>) -> Result<License, ConfError> {
    const FIX: &str = "write name:count,name2:count";
    let text = item.text();
    if let Some(offset) = text.find('|') {
        let rule = "alternatives are not supported";
        return Err(item.error_at(offset, FIELD, rule, fix_alternatives(item)));
    }
    if let Some(offset) = text.find(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(item.error_at(
            offset,
            FIELD,
            "has white space or a control character",
            "remove it",
        ));
    }
    if let Some(at) = text.find(['"', '\'']) {
        return Err(item.error_at(at, FIELD, "has a quotation mark", "remove it"));
    }
    let name = name_of(text);
    if name.is_empty() {
        return Err(item.error(FIELD, "has no name", FIX));
    }
    let digits = text.get(name.len() + 1..).unwrap_or_default();
    // Without digits after the sign, the count is 0.
    let count = match text.len() - name.len() {
        0 => Some(1),
        1 => Some(0),
        _ if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    };
    match count.filter(|count| i32::try_from(*count).is_ok()) {
        Some(count) => Ok(License {
            name: name.to_owned(),
            count,
        }),
        None => {
            let rule = format!("a count is a whole number from 0 to {}", i32::MAX);
            let fix = format!("write {}:1, for example", shorten(name, MAX_FIELD));
            Err(item.error(FIELD, rule, fix))
        }
    }
}

/// Returns the fix for alternatives: the first valid one alone.
fn fix_alternatives(item: Span<'_>) -> String {
    let valid = item
        .split(|c| c == '|')
        .into_iter()
        .find_map(|part| parse_item(part).ok());
    match valid {
        Some(license) => format!(
            "request one of them, such as {}",
            shorten(&license.to_string(), MAX_FIELD)
        ),
        None => "write name:count,name2:count".to_owned(),
    }
}
