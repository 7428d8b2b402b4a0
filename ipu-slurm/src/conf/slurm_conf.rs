//! `slurm.conf` and the files that it includes, as Slurm reads them.
//!
//! Slurm removes comments, joins lines that end with a backslash, removes other backslashes, and follows
//! `Include`. It then reads one `Key=Value` from each line. Lines of nodes and partitions have more of them.
//! This reader refuses no text: Slurm's own daemons report what they do not understand.

use core::ops::Range;

use ipu_core::job::Violation;

use super::error::ConfError;
use super::licenses::LicenseList;
use super::logical_line::{LogicalLine, logical_lines};
use super::span::Span;

/// Maximum number of included files: a file may include another one many times.
const MAX_INCLUDES: usize = 1_000;
/// The name of the lines with defaults for later lines with the same key.
const DEFAULT: &str = "DEFAULT";

/// Returns the files of an `Include`, each by name and text, or the reason why they cannot be read.
///
/// The path is absolute or relative to the directory of `slurm.conf`. A pattern stands for several files.
pub type IncludeSource<'a> = dyn Fn(&str) -> Result<Vec<(String, String)>, String> + 'a;

/// The settings of `slurm.conf` and of its included files, in the order in which Slurm reads them.
#[derive(Clone, Debug)]
pub struct SlurmConf {
    files: Vec<SlurmFile>,
    settings: Vec<SlurmSetting>,
    unread: Vec<ConfError>,
    patterns: Vec<ConfError>,
    leftovers: Vec<ConfError>,
}

/// A file by its name and text.
#[derive(Clone, Debug)]
pub(crate) struct SlurmFile {
    pub(crate) name: String,
    pub(crate) text: String,
}

/// A `Key=Value`.
#[derive(Clone, Debug)]
pub struct SlurmSetting {
    key: String,
    value: String,
    /// The index of the file.
    file: usize,
    /// The bytes of key and value in the file.
    range: Range<usize>,
    /// The bytes of the value in the file, with quotation marks.
    value_range: Range<usize>,
    /// The bytes of the whole line in the file, with continued lines and comments.
    line_range: Range<usize>,
    /// The number of the first line in the file, from 1.
    line: usize,
    /// The other settings of the line, for the first one.
    others: Vec<Self>,
}

/// A line of a node or a partition, with the defaults of earlier lines.
#[derive(Clone, Debug)]
pub struct SlurmLine<'a> {
    /// The first setting of the line, such as `NodeName`.
    pub name: &'a SlurmSetting,
    /// The settings of the lines with `DEFAULT` before.
    defaults: Vec<&'a SlurmSetting>,
}

impl SlurmConf {
    /// Reads a file and the files that it includes.
    ///
    /// ```
    /// use ipu_slurm::conf::SlurmConf;
    ///
    /// let text = "ClusterName=Lab\nInclude nodes.conf\nInclude absent.conf\n";
    /// let conf = SlurmConf::read("slurm.conf", text, &|path| match path {
    ///     "nodes.conf" => Ok(vec![(path.to_owned(), "KillWait=30 # seconds\n".to_owned())]),
    ///     _ => Err("No such file".to_owned()),
    /// });
    /// assert_eq!((conf.cluster_name().as_deref(), conf.value("killwait")), (Some("lab"), Some("30")));
    /// assert_eq!(
    ///     conf.unread()[0].to_string(),
    ///     "slurm.conf:3:9: Include = absent.conf: cannot be read: No such file; \
    ///      correct the path, or run the command where the file is",
    /// );
    /// ```
    #[must_use]
    pub fn read(name: &str, text: &str, source: &IncludeSource<'_>) -> Self {
        let mut conf = Self {
            files: Vec::new(),
            settings: Vec::new(),
            unread: Vec::new(),
            patterns: Vec::new(),
            leftovers: Vec::new(),
        };
        let file = conf.add_file(name.to_owned(), text.to_owned());
        conf.read_file(file, source, &mut IncludeStack::default());
        conf
    }

    /// Reads a file alone, such as `gres.conf`.
    #[must_use]
    pub fn parse(name: &str, text: &str) -> Self {
        let unread = |_: &str| Err("is not read".to_owned());
        Self::read(name, text, &unread)
    }

    /// Returns the setting of a key that is in force: the last one. Keys ignore case.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&SlurmSetting> {
        self.all(key).next_back()
    }

    /// Returns the value that is in force.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(SlurmSetting::value)
    }

    /// Returns the settings that begin a line.
    pub(crate) fn settings(&self) -> impl DoubleEndedIterator<Item = &SlurmSetting> {
        self.settings.iter()
    }

    /// Returns all settings of a key that begin a line. Keys ignore case.
    pub fn all<'a>(&'a self, key: &str) -> impl DoubleEndedIterator<Item = &'a SlurmSetting> {
        self.settings().filter(move |setting| setting.has_key(key))
    }

    /// Returns the lines of nodes (`NodeName`) or partitions (`PartitionName`), without those of `DEFAULT`,
    /// whose settings are the defaults of the lines below them.
    ///
    /// ```
    /// use ipu_slurm::conf::{SlurmConf, SlurmSetting};
    ///
    /// let text = "NodeName=DEFAULT CPUs=4\nNodeName=n1\nNodeName=n2 CPUs=8\n";
    /// let conf = SlurmConf::parse("slurm.conf", text);
    /// let lines = conf.lines("NodeName");
    /// let cpus: Vec<_> = lines.iter().map(|line| line.get("CPUs").map(SlurmSetting::value)).collect();
    /// assert_eq!(cpus, [Some("4"), Some("8")]);
    /// ```
    #[must_use]
    pub fn lines<'a>(&'a self, key: &'a str) -> Vec<SlurmLine<'a>> {
        let mut defaults = Vec::new();
        let mut lines = Vec::new();
        for name in self.all(key) {
            if name.value.eq_ignore_ascii_case(DEFAULT) {
                defaults.extend(&name.others);
            } else {
                let defaults = defaults.clone();
                lines.push(SlurmLine { name, defaults });
            }
        }
        lines
    }

    /// Returns the name of the Slurm cluster in lower case, as Slurm uses it.
    #[must_use]
    pub fn cluster_name(&self) -> Option<String> {
        self.value("ClusterName")
            .filter(|name| !name.is_empty())
            .map(str::to_lowercase)
    }

    /// Returns the `Include` lines whose files were not read. Their settings are unknown.
    #[must_use]
    pub fn unread(&self) -> &[ConfError] {
        &self.unread
    }

    /// Returns the lines that Slurm refuses: `Include` with a pattern or an unreadable file, and lines with
    /// text after a value.
    pub(crate) fn refused_lines(&self) -> impl Iterator<Item = &ConfError> {
        let files = self.patterns.iter().chain(&self.unread);
        files.chain(&self.leftovers)
    }

    pub(crate) fn files(&self) -> &[SlurmFile] {
        &self.files
    }

    /// Creates an error about the value of a setting.
    pub(crate) fn error(
        &self,
        setting: &SlurmSetting,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> ConfError {
        self.span(setting).error(&setting.key, rule, fix)
    }

    /// Creates an error about an absent key, at the end of the first file.
    pub(crate) fn absent(&self, key: &str, rule: impl Into<String>, fix: impl Into<String>) -> ConfError {
        let file = &self.files[0];
        ConfError {
            file: file.name.clone(),
            line: file.text.lines().count().max(1),
            column: 1,
            violation: Box::new(Violation::new(key, None, rule, fix)),
        }
    }

    /// Returns the value of a setting with its place.
    pub(super) fn span<'a>(&'a self, setting: &'a SlurmSetting) -> Span<'a> {
        let first = (setting.line_range.start, setting.line);
        self.span_at(setting.file, first, setting.value_range.start, &setting.value)
    }

    /// Parses the value of a setting as a list of licenses.
    pub(crate) fn licenses(&self, setting: &SlurmSetting) -> LicenseList {
        LicenseList::of_span(self.span(setting))
    }

    /// Returns the place of a setting as `file:line`.
    pub(crate) fn place(&self, setting: &SlurmSetting) -> String {
        format!("{}:{}", self.files[setting.file].name, setting.line)
    }

    /// Returns the span of a text at byte `at`. `first` is the first byte of its line, with the line number.
    fn span_at<'a>(
        &'a self,
        file: usize,
        (start, number): (usize, usize),
        offset: usize,
        text: &'a str,
    ) -> Span<'a> {
        let file = &self.files[file];
        let (before, after) = file.text[start..].split_at(offset - start);
        let number = number + before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let rest = after.split('\n').next().unwrap_or_default().chars().count();
        Span::of_value(&file.name, number, column, text).within(column + rest + 1)
    }

    /// Adds a file, once, and returns its index.
    fn add_file(&mut self, name: String, text: String) -> usize {
        let known = self.files.iter().position(|file| file.name == name);
        known.unwrap_or_else(|| {
            self.files.push(SlurmFile { name, text });
            self.files.len() - 1
        })
    }

    fn read_file(&mut self, file: usize, source: &IncludeSource<'_>, includes: &mut IncludeStack) {
        includes.open_files.push(file);
        for line in logical_lines(&self.files[file].text) {
            match include_path(&line.text) {
                Some(path) => self.include(file, &line, path, source, includes),
                None => {
                    let (setting, leftover) = setting_of(file, &line);
                    if let (Some(setting), Some(leftover)) = (&setting, leftover) {
                        let error = self.leftover(setting, &line, leftover);
                        self.leftovers.push(error);
                    }
                    self.settings.extend(setting);
                }
            }
        }
        includes.open_files.pop();
    }

    fn leftover(&self, setting: &SlurmSetting, line: &LogicalLine, text: Range<usize>) -> ConfError {
        let first = (line.range.start, line.number);
        let span = self.span_at(setting.file, first, line.place(text.start), &line.text[text]);
        span.error(
            &setting.key,
            "Slurm refuses text after a value",
            "remove it, or the white space before it",
        )
    }

    fn include(
        &mut self,
        file: usize,
        line: &LogicalLine,
        path: Range<usize>,
        source: &IncludeSource<'_>,
        includes: &mut IncludeStack,
    ) {
        let offset = line.place(path.start);
        let path = &line.text[path];
        let found = self.included_files(file, path, source, includes);
        let first = (line.range.start, line.number);
        let error = |rule: &str, fix: &str| {
            self.span_at(file, first, offset, path)
                .error("Include", rule, fix)
        };
        let files = match found {
            Ok(files) => files,
            Err(reason) => {
                let rule = format!("cannot be read: {reason}");
                let unread = error(&rule, "correct the path, or run the command where the file is");
                return self.unread.push(unread);
            }
        };
        if path.contains('*') {
            let rule = "Slurm expands no pattern, and refuses the line";
            self.patterns.push(error(rule, "write an Include for each file"));
        }
        for (name, text) in files {
            let included = self.add_file(name, text);
            self.read_file(included, source, includes);
        }
    }

    /// Returns the files of an `Include`. Its path is relative to the directory of `slurm.conf`, and before
    /// Slurm 23.02 to that of the including file.
    fn included_files(
        &self,
        file: usize,
        path: &str,
        source: &IncludeSource<'_>,
        includes: &mut IncludeStack,
    ) -> Result<Vec<(String, String)>, String> {
        includes.include_count += 1;
        if includes.include_count > MAX_INCLUDES {
            return Err(format!("there are over {MAX_INCLUDES} included files"));
        }
        let path = match (path.contains("%c"), self.cluster_name()) {
            (true, None) => return Err("%c stands for ClusterName, which no line above has".to_owned()),
            (true, Some(name)) => path.replace("%c", &name),
            (false, _) => path.to_owned(),
        };
        let sibling = match self.files[file].name.rsplit_once('/') {
            Some((directory, _)) if !path.starts_with('/') => Some(format!("{directory}/{path}")),
            _ => None,
        };
        let files = source(&path).or_else(|reason| match &sibling {
            Some(path) => source(path).map_err(|_| reason),
            None => Err(reason),
        })?;
        let is_open = |name: &String| {
            includes
                .open_files
                .iter()
                .any(|file| self.files[*file].name == *name)
        };
        match files.iter().any(|(name, _)| is_open(name)) {
            true => Err("a file includes itself".to_owned()),
            false => Ok(files),
        }
    }
}

/// The files that are open, and the number of those that were included.
#[derive(Default)]
struct IncludeStack {
    /// Indices of the files from `slurm.conf` to the present one.
    open_files: Vec<usize>,
    include_count: usize,
}

impl SlurmSetting {
    /// Returns the value without quotation marks; empty if there is none.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Returns the value of another setting of the line that this one begins: the last one of its key.
    #[must_use]
    pub fn other(&self, key: &str) -> Option<&Self> {
        self.others.iter().rfind(|setting| setting.has_key(key))
    }

    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.key.eq_ignore_ascii_case(key)
    }

    pub(crate) const fn file(&self) -> usize {
        self.file
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(crate) fn value_range(&self) -> Range<usize> {
        self.value_range.clone()
    }

    pub(crate) fn line_range(&self) -> Range<usize> {
        self.line_range.clone()
    }
}

impl<'a> SlurmLine<'a> {
    /// Returns a setting of the line, or its default.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a SlurmSetting> {
        let default = || self.defaults.iter().rfind(|setting| setting.has_key(key));
        self.name.other(key).or_else(|| default().copied())
    }
}

/// Returns the place of the path in an `Include` line.
fn include_path(line: &str) -> Option<Range<usize>> {
    let (word, rest) = line.trim_ascii_start().split_once(is_space)?;
    if !word.eq_ignore_ascii_case("include") {
        return None;
    }
    let path = rest.split(is_space).find(|word| !word.is_empty())?;
    let rest = rest.trim_start_matches(is_space);
    let start = line.len() - rest.len();
    Some(start..start + path.len())
}

/// Returns the first setting of a line with the others, and the first text after a value that is no setting.
fn setting_of(file: usize, line: &LogicalLine) -> (Option<SlurmSetting>, Option<Range<usize>>) {
    let mut offset = 0;
    let mut first: Option<SlurmSetting> = None;
    let mut leftover = None;
    while let Some(start) = find(&line.text, offset, |c| !is_space(c)) {
        let Some((key, value, end)) = scan(&line.text, start) else {
            offset = find(&line.text, start, is_space).unwrap_or(line.text.len());
            // Slurm knows forms with a sign that this reader does not, such as `Key+=Value`.
            if first.is_some() && leftover.is_none() && !line.text[start..offset].contains('=') {
                leftover = Some(start..offset);
            }
            continue;
        };
        let setting = SlurmSetting {
            key: line.text[key.clone()].to_owned(),
            value: unquoted(&line.text[value.clone()]).to_owned(),
            file,
            range: line.places(key.start..end),
            value_range: line.places(value),
            line_range: line.range.clone(),
            line: line.number,
            others: Vec::new(),
        };
        match &mut first {
            Some(first) => first.others.push(setting),
            None => first = Some(setting),
        }
        offset = end;
    }
    (first, leftover)
}

/// Scans `Key=Value`, `Key = Value` or `Key="a value"`. Returns the key, the value with its quotation marks,
/// and the end. A value is empty at the end of a line only.
fn scan(line: &str, start: usize) -> Option<(Range<usize>, Range<usize>, usize)> {
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
    let key_end = find(line, start, |c| !is_key(c))?;
    let sign = find(line, key_end, |c| !is_space(c))?;
    if key_end == start || !line[sign..].starts_with('=') {
        return None;
    }
    let value = find(line, sign + 1, |c| !is_space(c)).unwrap_or(sign + 1);
    // A quotation mark that is not closed before white space is part of the value.
    let closing = line[value..].strip_prefix('"').and_then(|rest| rest.find('"'));
    let quoted_end = closing
        .map(|closing| value + closing + 2)
        .filter(|end| line[*end..].is_empty() || line[*end..].starts_with(is_space));
    let end = quoted_end
        .or_else(|| find(line, value, is_space))
        .unwrap_or(line.len());
    Some((start..key_end, value..end, end))
}

fn unquoted(value: &str) -> &str {
    let inner = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or(value)
}

/// Returns the first byte from `at` on whose character is selected.
fn find(text: &str, offset: usize, select: impl Fn(char) -> bool) -> Option<usize> {
    text[offset..].find(select).map(|found| offset + found)
}

/// Returns whether C takes a character for white space.
fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}'
}
