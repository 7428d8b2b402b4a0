//! Lines as Slurm puts them together.

use core::ops::Range;

/// A line without comments, continuations and escapes.
#[derive(Debug, Default)]
pub(super) struct LogicalLine {
    pub(super) text: String,
    /// The bytes of the file for each byte of the text. Those of an escaped character begin with its
    /// backslash.
    places: Vec<Range<usize>>,
    /// The bytes of the file, up to the beginning of the next line.
    pub(super) range: Range<usize>,
    /// The number of the first line in the file, from 1.
    pub(super) number: usize,
}

/// Returns the lines of a file. A backslash at the end continues a line, and `#` begins a comment, unless
/// another backslash is before it.
pub(super) fn logical_lines(text: &str) -> Vec<LogicalLine> {
    let mut lines = Vec::new();
    let mut current = LogicalLine::starting_at(0, 1);
    let mut start = 0;
    for (line, number) in text.split_inclusive('\n').zip(2..) {
        let content = &line[..comment_start(line)];
        let trimmed = content.trim_ascii_end();
        let kept = trimmed
            .strip_suffix('\\')
            .filter(|_| !trailing_backslashes(trimmed).is_multiple_of(2));
        current.add(kept.unwrap_or(content), start);
        start += line.len();
        if kept.is_none() {
            let next = LogicalLine::starting_at(start, number);
            lines.push(current.ended_at(start));
            current = next;
        }
    }
    lines.push(current.ended_at(start));
    lines
}

impl LogicalLine {
    fn starting_at(start: usize, number: usize) -> Self {
        Self {
            range: start..start,
            number,
            ..Self::default()
        }
    }

    fn ended_at(mut self, end: usize) -> Self {
        self.range.end = end;
        self
    }

    /// Maps an offset in the text to the file.
    pub(super) fn place(&self, offset: usize) -> usize {
        let after_last = || self.places.last().map_or(self.range.start, |last| last.end);
        self.places
            .get(offset)
            .map_or_else(after_last, |place| place.start)
    }

    /// Maps a byte range of the text to the file.
    pub(super) fn places(&self, range: Range<usize>) -> Range<usize> {
        let start = self.place(range.start);
        match range.end.checked_sub(1).filter(|last| *last >= range.start) {
            Some(last) => start..self.places.get(last).map_or(start, |place| place.end),
            None => start..start,
        }
    }

    /// Adds text that begins at byte `start` of the file, without the backslash of each escape.
    fn add(&mut self, text: &str, start: usize) {
        let mut is_escaped = false;
        for (offset, c) in text.char_indices() {
            if c == '\\' && !is_escaped {
                is_escaped = true;
                continue;
            }
            let first = start + offset - usize::from(is_escaped);
            is_escaped = false;
            self.text.push(c);
            self.places.push(first..start + offset + 1);
            self.places
                .extend((1..c.len_utf8()).map(|byte| start + offset + byte..start + offset + byte + 1));
        }
    }
}

/// Returns the byte where the comment of a line begins, or its length.
fn comment_start(line: &str) -> usize {
    let is_comment = |offset: &usize| trailing_backslashes(&line[..*offset]).is_multiple_of(2);
    let found = line.match_indices('#').map(|(offset, _)| offset).find(is_comment);
    found.unwrap_or(line.len())
}

fn trailing_backslashes(text: &str) -> usize {
    text.len() - text.trim_end_matches('\\').len()
}
