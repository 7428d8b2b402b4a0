//! A substring with its position in the whole text, for error messages.

use crate::gres::error::GresError;

/// A substring with its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    whole: &'a str,
    start: usize,
    end: usize,
}

impl<'a> Part<'a> {
    pub(crate) const fn whole(whole: &'a str) -> Self {
        Self {
            whole,
            start: 0,
            end: whole.len(),
        }
    }

    pub(crate) fn text(&self) -> &'a str {
        &self.whole[self.start..self.end]
    }

    /// Returns the substring from byte `at` on, which must be a character boundary.
    pub(crate) const fn from(self, at: usize) -> Self {
        Self {
            start: self.start + at,
            ..self
        }
    }

    const fn until(self, at: usize) -> Self {
        Self {
            end: self.start + at,
            ..self
        }
    }

    /// Trims whitespace.
    pub(crate) fn trim(self) -> Self {
        let text = self.text();
        let end = text.trim_end().len();
        let start = end - text[..end].trim_start().len();
        self.until(end).from(start)
    }

    pub(crate) fn strip_prefix(&self, prefix: &str) -> Option<Self> {
        self.text().starts_with(prefix).then(|| self.from(prefix.len()))
    }

    pub(crate) fn split_once(&self, at: char) -> Option<(Self, Self)> {
        let found = self.text().find(at)?;
        Some((self.until(found), self.from(found + at.len_utf8())))
    }

    pub(crate) fn split(&self, at: char) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut rest = *self;
        while let Some((part, after)) = rest.split_once(at) {
            parts.push(part);
            rest = after;
        }
        parts.push(rest);
        parts
    }

    /// Splits at commas outside parentheses.
    pub(crate) fn split_list(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        let (mut start, mut depth) = (0, 0_usize);
        for (at, c) in self.text().char_indices() {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                ',' if depth == 0 => {
                    parts.push(self.until(at).from(start));
                    start = at + 1;
                }
                _ => {}
            }
        }
        parts.push(self.from(start));
        parts
    }

    /// Creates an error for this substring.
    pub(crate) fn error(&self, rule: &'static str, fix: &'static str) -> GresError {
        GresError::new(self.whole, self.start, self.text(), rule, fix)
    }
}
