//! License lists: `--licenses`, `Licenses=` of slurm.conf, `SLURM_JOB_LICENSES` of the hooks.
//!
//! Slurm from 25.05 on accepts alternatives (`pod64:8|pod16:8`). They are refused here on all versions,
//! because the hooks cannot know which one Slurm chose.

use core::fmt;

use super::error::ConfError;
use super::span::{Span, lines, shorten};
use super::values::is_name;

/// A license with its count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct License {
    name: String,
    count: u32,
}

/// Licenses by different names, all of which a job needs.
///
/// Displays as a list that parses to the same one; the empty list as the empty text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LicenseList {
    items: Vec<License>,
}

const FIELD: &str = "license";

impl License {
    /// Returns the name, such as `pod64`. Licenses of other products may have `@server` at the end.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the count, at least 1. It is 1 if the text has none, as in Slurm.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }
}

impl LicenseList {
    /// Parses `name:count,name2:count`. `source` stands for a file name in messages, such as `--licenses`.
    /// An empty text and Slurm's `(null)` are the empty list.
    ///
    /// # Errors
    ///
    /// All errors, in the order of the text; never empty.
    pub fn parse(source: &str, text: &str) -> Result<Self, Vec<ConfError>> {
        if matches!(text, "" | "(null)") {
            return Ok(Self::default());
        }
        let mut errors = Vec::new();
        let mut items: Vec<License> = Vec::new();
        let all_lines = lines(source, text, &mut errors);
        if let Some(second) = all_lines.get(1) {
            errors.push(second.error(FIELD, "a list has one line", "remove the line feed"));
        }
        let list = all_lines.first().filter(|line| line.line_number() == 1);
        for item in list.map(|line| line.split(|c| c == ',')).unwrap_or_default() {
            match parse_item(item) {
                Ok(license) if items.iter().any(|known| known.name == license.name) => {
                    errors.push(item.error(FIELD, "the license is given twice", "add up the counts"));
                }
                Ok(license) => items.push(license),
                Err(error) => errors.push(error),
            }
        }
        errors.sort_by_key(|error| (error.line, error.column));
        if errors.is_empty() {
            Ok(Self { items })
        } else {
            Err(errors)
        }
    }

    /// Returns the licenses in their order.
    #[must_use]
    pub fn items(&self) -> &[License] {
        &self.items
    }

    /// Returns the count of a license; none if the list does not have it.
    #[must_use]
    pub fn count(&self, name: &str) -> Option<u32> {
        self.items
            .iter()
            .find(|license| license.name == name)
            .map(License::count)
    }
}

impl fmt::Display for License {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.count)
    }
}

impl fmt::Display for LicenseList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, license) in self.items.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{license}")?;
        }
        Ok(())
    }
}

fn parse_item(item: Span<'_>) -> Result<License, ConfError> {
    let text = item.text();
    if text.is_empty() {
        return Err(item.error(
            FIELD,
            "a part between commas is empty",
            "write name:count,name2:count",
        ));
    }
    if let Some(at) = text.find('|') {
        return Err(item.error_at(
            at,
            FIELD,
            "alternatives are not supported",
            fix_alternatives(item),
        ));
    }
    if let Some(at) = text.find(char::is_whitespace) {
        return Err(item.error_at(at, FIELD, "has white space", "remove it"));
    }
    if let Some(at) = text.find([';', '=']) {
        let fix = "write name:count,name2:count";
        return Err(item.error_at(at, FIELD, "the separators are ':' and ','", fix));
    }
    let (name, count) = match item.split_once(':') {
        Some((name, count)) => (name, Some(count)),
        None => (item, None),
    };
    let (own, server) = name.text().split_once('@').unwrap_or((name.text(), "server"));
    if !is_name(own) || !is_name(server) {
        let rule = "a name has letters, digits, '-', '_' and '.' only, a letter or digit first";
        return Err(name.error(FIELD, rule, "write name:count"));
    }
    let count = count.map_or(Ok(1), |count| parse_count(name.text(), count))?;
    Ok(License {
        name: name.text().to_owned(),
        count,
    })
}

fn parse_count(name: &str, count: Span<'_>) -> Result<u32, ConfError> {
    let digits = count.text();
    let is_number = digits.bytes().all(|b| b.is_ascii_digit());
    let number = digits.parse().ok().filter(|number| is_number && *number > 0);
    number.ok_or_else(|| {
        let rule = format!("a count is a whole number from 1 to {}", u32::MAX);
        count.error(FIELD, rule, format!("write {}:1, for example", shorten(name)))
    })
}

/// Returns the fix for alternatives: the first valid one alone.
fn fix_alternatives(item: Span<'_>) -> String {
    let valid = item
        .split(|c| c == '|')
        .into_iter()
        .find_map(|part| parse_item(part).ok());
    match valid {
        Some(license) => format!("request one of them, such as {}", shorten(&license.to_string())),
        None => "write name:count,name2:count".to_owned(),
    }
}
