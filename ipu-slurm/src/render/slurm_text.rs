//! The text of `slurm.conf` or of a file that it includes: finds settings, and changes them in place.

use core::ops::Range;

use ipu_core::Violation;

use crate::conf::ConfError;

/// A `Key=Value` in a file.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    pub(super) value: &'a str,
    key: &'a str,
    line: usize,
    /// The bytes of key and value in the line.
    range: Range<usize>,
    /// The bytes of the value, quotation marks included.
    value_range: Range<usize>,
}

/// A file with its settings and pending edits.
#[derive(Debug)]
pub(super) struct SlurmText<'a> {
    pub(super) name: &'a str,
    text: &'a str,
    settings: Vec<Setting<'a>>,
    includes: Vec<&'a str>,
    edits: Vec<(usize, Range<usize>, String)>,
    added: Vec<String>,
}

/// Heading of the lines that are added to a file.
const HEADING: &str = "# IPUs of jobs.";

impl<'a> SlurmText<'a> {
    pub(super) fn parse(name: &'a str, text: &'a str) -> Self {
        let mut settings = Vec::new();
        let mut includes = Vec::new();
        for (line, content) in text.lines().enumerate() {
            let content = &content[..comment_start(content)];
            let mut words = content.split_ascii_whitespace();
            match (words.next(), words.next()) {
                (Some(word), Some(file)) if word.eq_ignore_ascii_case("include") => includes.push(file),
                _ => scan_line(line, content, &mut settings),
            }
        }
        Self {
            name,
            text,
            settings,
            includes,
            edits: Vec::new(),
            added: Vec::new(),
        }
    }

    pub(super) const fn text(&self) -> &'a str {
        self.text
    }

    /// Returns whether the file includes another one, by its file name.
    pub(super) fn includes(&self, file: &str) -> bool {
        let name_of = |path: &&str| path.rsplit('/').next() == Some(file);
        self.includes.iter().any(name_of)
    }

    /// Returns all settings with a key. As in Slurm, keys ignore case.
    pub(super) fn all(&self, key: &str) -> Vec<Setting<'a>> {
        let is_key = |setting: &&Setting<'a>| setting.key.eq_ignore_ascii_case(key);
        self.settings.iter().filter(is_key).cloned().collect()
    }

    /// Returns the setting with a key that is in force: the last one.
    pub(super) fn get(&self, key: &str) -> Option<Setting<'a>> {
        self.all(key).pop()
    }

    /// Returns the setting with a key on the line of another one.
    pub(super) fn on_line_of(&self, other: &Setting<'a>, key: &str) -> Option<Setting<'a>> {
        self.all(key)
            .into_iter()
            .find(|setting| setting.line == other.line)
    }

    pub(super) fn replace(&mut self, setting: &Setting<'a>, value: &str) {
        let has_space = value.contains(|c: char| c.is_ascii_whitespace());
        let value = if has_space {
            format!("\"{value}\"")
        } else {
            value.to_owned()
        };
        self.edits
            .push((setting.line, setting.value_range.clone(), value));
    }

    pub(super) fn remove(&mut self, setting: &Setting<'a>) {
        self.edits
            .push((setting.line, setting.range.clone(), String::new()));
    }

    /// Adds text after a setting, on its line.
    pub(super) fn append_to(&mut self, setting: &Setting<'a>, text: String) {
        let end = setting.range.end;
        self.edits.push((setting.line, end..end, text));
    }

    /// Adds a line at the end.
    pub(super) fn add(&mut self, line: String) {
        self.added.push(line);
    }

    /// Creates an error for the value of a setting.
    pub(super) fn error(&self, setting: &Setting<'a>, rule: String, fix: String) -> ConfError {
        let line = self.text.lines().nth(setting.line).unwrap_or_default();
        ConfError {
            file: self.name.to_owned(),
            line: setting.line + 1,
            column: line[..setting.value_range.start].chars().count() + 1,
            violation: Box::new(Violation::new(setting.key, Some(setting.value), rule, fix)),
        }
    }

    /// Creates an error for an absent key, at the end of the file.
    pub(super) fn absent(&self, key: &str, rule: String, fix: String) -> ConfError {
        ConfError {
            file: self.name.to_owned(),
            line: self.text.lines().count().max(1),
            column: 1,
            violation: Box::new(Violation::new(key, None, rule, fix)),
        }
    }

    /// Returns the text with all edits; none if there are no edits.
    pub(super) fn edited(&self) -> Option<String> {
        if self.edits.is_empty() && self.added.is_empty() {
            return None;
        }
        let mut result = String::new();
        for (index, line) in self.text.lines().enumerate() {
            let mut edits: Vec<_> = self.edits.iter().filter(|(at, ..)| *at == index).collect();
            edits.sort_by_key(|(_, range, _)| core::cmp::Reverse(range.start));
            let mut edited = line.to_owned();
            for (_, range, text) in &edits {
                edited.replace_range(range.clone(), text);
            }
            if edits.is_empty() || !edited.trim().is_empty() {
                result.push_str(edited.trim_end());
                result.push('\n');
            }
        }
        if !self.added.is_empty() {
            result.push_str(&format!("\n{HEADING}\n{}\n", self.added.join("\n")));
        }
        Some(result)
    }
}

/// Returns the byte where the comment of a line begins, or its length.
fn comment_start(line: &str) -> usize {
    let is_comment = |at: &usize| !line[..*at].ends_with('\\');
    let found = line.match_indices('#').map(|(at, _)| at).find(is_comment);
    found.unwrap_or(line.len())
}

/// Finds the settings of a line: `Key=Value` or `Key="a value"`, also with white space around the sign.
fn scan_line<'a>(line: usize, content: &'a str, settings: &mut Vec<Setting<'a>>) {
    let mut at = 0;
    while let Some(start) = next(content, at, |c| !c.is_ascii_whitespace()) {
        let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        let key_end = next(content, start, |c| !is_key(c)).unwrap_or(content.len());
        let sign = next(content, key_end, |c| !c.is_ascii_whitespace());
        let value_start = sign
            .filter(|sign| key_end > start && content[*sign..].starts_with('='))
            .and_then(|sign| next(content, sign + 1, |c| !c.is_ascii_whitespace()));
        let Some(value_start) = value_start else {
            at = next(content, start, |c| c.is_ascii_whitespace()).unwrap_or(content.len());
            continue;
        };
        // As in Slurm, a quotation mark that is not closed is part of the value.
        let ends_value = |end: &usize| {
            content[*end..].is_empty() || content[*end..].starts_with(|c: char| c.is_ascii_whitespace())
        };
        let rest = content[value_start..].strip_prefix('"');
        let closing = rest.and_then(|rest| rest.find('"'));
        let end = closing
            .map(|closing| value_start + closing + 2)
            .filter(ends_value)
            .or_else(|| next(content, value_start, |c| c.is_ascii_whitespace()));
        let end = end.unwrap_or(content.len());
        let raw = content[value_start..end].trim_end_matches('\\');
        let end = value_start + raw.len();
        settings.push(Setting {
            value: raw.trim_matches('"'),
            key: &content[start..key_end],
            line,
            range: start..end,
            value_range: value_start..end,
        });
        at = next(content, end, |c| c.is_ascii_whitespace()).unwrap_or(content.len());
    }
}

/// Returns the first byte from `at` on whose character is selected.
fn next(text: &str, at: usize, select: impl Fn(char) -> bool) -> Option<usize> {
    text[at..].find(select).map(|found| at + found)
}
