//! A part of a line with its position in the file, for error messages.

use ipu_core::job::Violation;

use super::error::ConfError;
use crate::text::shorten;

/// Maximum length of a line in bytes: a host map line of 500 machines fits, and the number of errors in
/// one line stays small.
const MAX_LINE: usize = 16_384;
/// Maximum length of a field name in an error, in characters.
pub(super) const MAX_FIELD: usize = 40;

/// A part of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a> {
    file: &'a str,
    number: usize,
    /// The characters of the line before `line`.
    before: usize,
    line: &'a str,
    start: usize,
    end: usize,
    /// The last column of the line in the file, from 1.
    last_column: usize,
}

/// Returns the lines of a file without the line feeds. A line over [`MAX_LINE`] is an error instead.
pub(super) fn lines<'a>(file: &'a str, text: &'a str, errors: &mut Vec<ConfError>) -> Vec<Span<'a>> {
    let spans = text.split('\n').enumerate().map(|(index, line)| Span {
        file,
        number: index + 1,
        before: 0,
        line,
        start: 0,
        end: line.len(),
        last_column: usize::MAX,
    });
    let (short, long): (Vec<_>, Vec<_>) = spans.partition(|span| span.line.len() <= MAX_LINE);
    errors.extend(long.iter().map(|span| {
        span.error(
            "line",
            format!("has at most {MAX_LINE} bytes"),
            "split the line or its list",
        )
    }));
    short
}

impl<'a> Span<'a> {
    /// Creates the span of a value, which may differ from the text of its line by quotation marks and
    /// continued lines. `before` is the number of characters before it.
    pub(super) const fn of_value(file: &'a str, number: usize, before: usize, value: &'a str) -> Self {
        Self {
            file,
            number,
            before,
            line: value,
            start: 0,
            end: value.len(),
            last_column: usize::MAX,
        }
    }

    /// Limits the columns of errors: a value may continue on the next line of the file.
    pub(super) const fn within(self, last_column: usize) -> Self {
        Self { last_column, ..self }
    }

    pub(super) fn text(&self) -> &'a str {
        &self.line[self.start..self.end]
    }

    pub(super) const fn line_number(&self) -> usize {
        self.number
    }

    /// Returns the span from byte `at` on, which is a character boundary.
    pub(super) const fn from(self, offset: usize) -> Self {
        Self {
            start: self.start + offset,
            ..self
        }
    }

    /// Returns the span before byte `at`, which is a character boundary.
    pub(super) const fn until(self, offset: usize) -> Self {
        Self {
            end: self.start + offset,
            ..self
        }
    }

    /// Trims ASCII white space. Other white space stays and is refused with its position.
    pub(super) fn trim(self) -> Self {
        let text = self.text();
        let end = text.trim_ascii_end().len();
        let start = end - text[..end].trim_ascii_start().len();
        self.until(end).from(start)
    }

    /// Removes a comment: `#` at the beginning or after white space, to the end.
    pub(super) fn without_comment(self) -> Self {
        let text = self.text();
        let starts_comment =
            |offset: &usize| *offset == 0 || text[..*offset].ends_with(|c: char| c.is_ascii_whitespace());
        let found = text
            .match_indices('#')
            .map(|(offset, _)| offset)
            .find(starts_comment);
        self.until(found.unwrap_or(text.len()))
    }

    pub(super) fn split_once(&self, separator: char) -> Option<(Self, Self)> {
        let found = self.text().find(separator)?;
        Some((self.until(found), self.from(found + separator.len_utf8())))
    }

    /// Splits at every character that `at` selects.
    pub(super) fn split(&self, is_separator: impl Fn(char) -> bool) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut start = 0;
        for (found, c) in self.text().char_indices().filter(|(_, c)| is_separator(*c)) {
            parts.push(self.until(found).from(start));
            start = found + c.len_utf8();
        }
        parts.push(self.from(start));
        parts
    }

    /// Splits at white space into words.
    pub(super) fn words(&self) -> Vec<Self> {
        let mut words = self.split(|c| c.is_ascii_whitespace());
        words.retain(|word| !word.text().is_empty());
        words
    }

    /// Creates an error for this span, which is the value of `field`.
    pub(super) fn error(&self, field: &str, rule: impl Into<String>, fix: impl Into<String>) -> ConfError {
        self.error_at(0, field, rule, fix)
    }

    /// Creates an error for this span at its byte `at`, which is a character boundary.
    pub(super) fn error_at(
        &self,
        offset: usize,
        field: &str,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfError {
        self.error_showing(self.text(), offset, field, rule, fix)
    }

    /// Creates an error that shows `value` instead of this span.
    pub(super) fn error_showing(
        &self,
        value: &str,
        offset: usize,
        field: &str,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfError {
        let value = match value {
            "" => "(empty)",
            _ if may_be_secret(field, value) => "…",
            _ => value,
        };
        let column = self.before + self.line[..self.start + offset].chars().count() + 1;
        ConfError {
            file: self.file.to_owned(),
            line: self.number,
            column: column.min(self.last_column),
            violation: Box::new(Violation::new(&shorten(field, MAX_FIELD), Some(value), rule, fix)),
        }
    }
}

/// Returns whether a message must not repeat a value: a token in place of a path, or a URL with a password.
fn may_be_secret(field: &str, value: &str) -> bool {
    let field = field.to_ascii_lowercase();
    let is_secret_field = ["token", "secret", "passw"]
        .iter()
        .any(|word| field.contains(word));
    is_secret_field && !value.starts_with('/')
        || value.contains('@') && (value.contains("://") || field == "proxy")
}
