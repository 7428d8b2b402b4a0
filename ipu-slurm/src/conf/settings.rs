//! The syntax of `vipu.conf` and `<model>.conf`: one `Key=Value` a line.
//!
//! As in slurm.conf, keys ignore case, `#` begins a comment, and white space around key and value has no
//! meaning. Unlike there, a line has one key, and quotation marks and continued lines are refused:
//! Graphcore's Slurm guide has none of them, and an error in them would change a value silently.

use super::error::ConfError;
use super::key::Key;
use super::similar::closest;
use super::span::{Span, lines};

/// The settings of a file, each key once.
pub(super) struct Settings<'a> {
    pub(super) file: &'a str,
    found: Vec<(Key, Span<'a>)>,
}

impl<'a> Settings<'a> {
    /// Parses a file as far as it is valid, and adds its errors to `errors`.
    pub(super) fn parse(file: &'a str, text: &'a str, errors: &mut Vec<ConfError>) -> Self {
        let mut settings = Self {
            file,
            found: Vec::new(),
        };
        // A key whose value is refused is not absent.
        let mut refused = Vec::new();
        for line in lines(file, text, errors) {
            let line = line.without_comment().trim();
            if line.text().is_empty() {
                continue;
            }
            match parse_line(line) {
                Ok((key, value)) => {
                    let first = settings.get(key).or_else(|| get(&refused, key));
                    if let Some(first) = first {
                        errors.push(line.error_showing(
                            value.text(),
                            0,
                            key.name(),
                            format!("is set on line {} already", first.line_number()),
                            "remove one of the two lines",
                        ));
                    } else if let Err(error) = check_value(key, value) {
                        errors.push(error);
                        refused.push((key, value));
                    } else {
                        settings.found.push((key, value));
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        settings
            .found
            .extend(refused.iter().map(|(key, value)| (*key, value.until(0))));
        settings
    }

    /// Returns the value of a key; empty if the key has a value that is already refused.
    pub(super) fn get(&self, key: Key) -> Option<Span<'a>> {
        get(&self.found, key)
    }

    /// Parses the value of a key; none if the key is absent or its value is refused.
    pub(super) fn read<T>(
        &self,
        key: Key,
        parse: impl FnOnce(&str, Span<'a>) -> Result<T, ConfError>,
        errors: &mut Vec<ConfError>,
    ) -> Option<T> {
        let value = self.get(key).filter(|value| !value.text().is_empty())?;
        parse(key.name(), value).map_err(|error| errors.push(error)).ok()
    }
}

fn get<'a>(found: &[(Key, Span<'a>)], key: Key) -> Option<Span<'a>> {
    found
        .iter()
        .find(|(name, _)| *name == key)
        .map(|(_, value)| *value)
}

fn parse_line(line: Span<'_>) -> Result<(Key, Span<'_>), ConfError> {
    let Some((name, value)) = line.split_once('=') else {
        // The rest of the line may be a secret.
        let word = line.words().first().copied().unwrap_or(line);
        return Err(word.error("line", "has no '='", "write Key=Value"));
    };
    let (name, value) = (name.trim(), value.trim());
    let known = Key::all().find(|key| key.name().eq_ignore_ascii_case(name.text()));
    match known {
        Some(key) => Ok((key, value)),
        None if name.text().is_empty() => Err(name.error("line", "has no key", "write Key=Value")),
        None => Err(name.error_showing(
            value.text(),
            0,
            name.text(),
            "is not a known key",
            fix_key(name.text()),
        )),
    }
}

fn fix_key(name: &str) -> String {
    match closest(name, Key::all().map(Key::name)) {
        Some(known) => format!("did you mean {known}?"),
        None => {
            let known: Vec<_> = Key::all().map(Key::name).collect();
            format!("remove it; the keys are {}", known.join(", "))
        }
    }
}

/// Checks what all values have in common.
fn check_value(key: Key, value: Span<'_>) -> Result<(), ConfError> {
    let text = value.text();
    if text.is_empty() {
        return Err(value.error(
            key.name(),
            "has no value",
            "add a value, or remove the line for the default",
        ));
    }
    let is_refused =
        |c: char| matches!(c, '"' | '\'' | '\\' | '#') || c.is_control() && c != '\t' || is_blank(key, c);
    let Some((offset, c)) = text.char_indices().find(|(_, c)| is_refused(*c)) else {
        return Ok(());
    };
    let (rule, fix) = match c {
        '"' | '\'' => ("a value has no quotation marks", "remove them"),
        '\\' => (
            "a value has no backslash, and a line is not continued",
            "write the value on one line without it",
        ),
        '#' => ("a value has no '#'", "write a space before a comment"),
        _ if c.is_whitespace() && text[offset..].contains('=') => {
            ("a line has one key", "write the next Key=Value on its own line")
        }
        _ if c.is_whitespace() => (
            "a value has no white space",
            "remove the white space or what follows it",
        ),
        _ => ("a value has no control characters", "remove the character"),
    };
    Err(value.error_at(offset, key.name(), rule, fix))
}

/// Returns whether a character is white space that the value of a key must not have.
fn is_blank(key: Key, c: char) -> bool {
    c.is_whitespace() && !(key.has_words() && c.is_ascii())
}
