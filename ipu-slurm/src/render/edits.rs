//! Changes of `slurm.conf` and the files that it includes.

use core::ops::Range;

use crate::conf::{SlurmConf, SlurmSetting};

/// Heading of the lines that are added to a file.
const HEADING: &str = "# IPUs of jobs.";

/// Changes of settings in the files that have them, and lines for the end of the first file.
#[derive(Debug, Default)]
pub(super) struct Edits {
    /// The file, the bytes, and their replacement.
    edits: Vec<(usize, Range<usize>, String)>,
    added: Vec<String>,
}

impl Edits {
    pub(super) fn replace(&mut self, setting: &SlurmSetting, value: &str) {
        self.edits
            .push((setting.file(), setting.value_range(), quoted(value)));
    }

    /// Removes the line of a setting.
    pub(super) fn remove(&mut self, setting: &SlurmSetting) {
        self.edits
            .push((setting.file(), setting.line_range(), String::new()));
    }

    /// Adds text after a setting, on its line.
    pub(super) fn append_to(&mut self, setting: &SlurmSetting, text: String) {
        let end = setting.range().end;
        self.edits.push((setting.file(), end..end, text));
    }

    /// Adds a line at the end of the first file. The key must be absent in all files: a later line overrides
    /// an earlier one.
    pub(super) fn add(&mut self, key: &str, value: &str) {
        self.added.push(format!("{key}={}", quoted(value)));
    }

    /// Returns the files that change, by name and complete text.
    pub(super) fn apply(mut self, conf: &SlurmConf) -> Vec<(String, String)> {
        // A file that is included twice has each edit twice.
        self.edits.sort_by_key(|(file, range, _)| (*file, range.start));
        self.edits.dedup();
        let mut changed = Vec::new();
        for (index, file) in conf.files().iter().enumerate() {
            let mut text = file.text.clone();
            for (_, range, new) in self.edits.iter().rev().filter(|(file, ..)| *file == index) {
                text.replace_range(range.clone(), new);
            }
            if index == 0 {
                let line_end = if text.contains("\r\n") { "\r\n" } else { "\n" };
                text.push_str(&self.added_text(&text, line_end));
            }
            if text != file.text {
                changed.push((file.name.clone(), text));
            }
        }
        changed
    }

    fn added_text(&self, before: &str, line_end: &str) -> String {
        if self.added.is_empty() {
            return String::new();
        }
        let first = if before.is_empty() || before.ends_with('\n') {
            ""
        } else {
            line_end
        };
        let mut lines = vec!["", HEADING];
        lines.extend(self.added.iter().map(String::as_str));
        let lines = lines.into_iter().map(|line| format!("{line}{line_end}"));
        first.to_owned() + &lines.collect::<String>()
    }
}

/// Returns a value as a file has it: comments and continued lines begin with an escaped character, white
/// space needs quotation marks, and one inside of a value would end it there.
fn quoted(value: &str) -> String {
    let escaped = value.replace('"', "").replace('\\', "\\\\").replace('#', "\\#");
    if value.contains(char::is_whitespace) {
        format!("\"{escaped}\"")
    } else {
        escaped
    }
}
