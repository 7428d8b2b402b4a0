//! Writes to the terminal: lines of workers with their prefix, progress and results. Lines of different
//! sources are not interleaved, and a transient status line leaves no trace.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _, Read, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

use anstyle::{AnsiColor, Style};
use parking_lot::Mutex;

/// Maximum length of a forwarded line in bytes. A longer line is split, so that a worker that never ends its
/// line cannot exhaust the memory.
const MAX_LINE_LEN: usize = 16 * 1024;
/// Maximum length of the output that is kept for the report of a failure, in bytes (`ProcessPhase::Exited`: 2
/// KiB).
const MAX_TAIL_LEN: usize = 2 * 1024;
/// Colours of prefixes, used in turn. Red is reserved for errors.
const COLOURS: [AnsiColor; 5] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
];

/// An output stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output: results.
    Out,
    /// Standard error: progress, warnings, errors.
    Err,
}

/// Condition for colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// On terminals, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also into files and pipes.
    Always,
    /// Never.
    Never,
}

/// Handle of the terminal; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Output(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<TerminalState>,
    /// Use of colours on standard output and on standard error.
    colour: [bool; 2],
    /// Destination of the standard output of workers: standard error if standard output has a document.
    workers: Stream,
    is_terminal: bool,
    quiet: bool,
}

#[derive(Debug, Default)]
struct TerminalState {
    /// The transient line on the state.
    status: Option<String>,
    /// The last status that was printed as a plain line, without a terminal.
    printed_status: Option<String>,
    labels: Vec<String>,
}

impl Output {
    /// Returns the handle of the terminal of this process. With `quiet`, only warnings, errors and results
    /// are printed.
    pub(crate) fn new(colour: Colour, workers: Stream, quiet: bool) -> Self {
        let enabled = |auto: anstream::ColorChoice| match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => !matches!(auto, anstream::ColorChoice::Never),
        };
        let colour = [
            enabled(anstream::AutoStream::choice(&io::stdout())),
            enabled(anstream::AutoStream::choice(&io::stderr())),
        ];
        let is_terminal = io::stderr().is_terminal();
        Self(Arc::new(Shared {
            state: Mutex::default(),
            colour,
            workers,
            is_terminal,
            quiet,
        }))
    }

    /// Prints a result, which contains its line ends, to standard output. A closed reader is not an error.
    pub(crate) fn result(&self, text: &str) {
        self.write_result(text).ok();
    }

    /// Prints a result as [`result`](Self::result) does.
    ///
    /// # Errors
    ///
    /// The error of standard output, such as a closed reader.
    pub(crate) fn write_result(&self, text: &str) -> io::Result<()> {
        write(&self.0.state.lock(), Stream::Out, text.as_bytes())
    }

    /// Prints a line of progress.
    pub(crate) fn say(&self, text: &str) {
        if !self.0.quiet {
            self.print_line(text);
        }
    }

    /// Prints a warning.
    pub(crate) fn warn(&self, text: &str) {
        let label = self.styled(Stream::Err, AnsiColor::Yellow.on_default().bold(), "warning:");
        self.print_line(&format!("{label} {text}"));
    }

    /// Prints an error.
    pub(crate) fn error(&self, text: &str) {
        let label = self.styled(Stream::Err, AnsiColor::Red.on_default().bold(), "error:");
        self.print_line(&format!("{label} {text}"));
    }

    /// Shows a transient status on a terminal, or prints it once elsewhere. `None` removes it.
    pub(crate) fn status(&self, text: Option<&str>) {
        if self.0.quiet {
            return;
        }
        let mut state = self.0.state.lock();
        if self.0.is_terminal {
            clear(&state);
            state.status = text.map(truncate);
            show(&state);
        } else if let Some(text) = text
            && state.printed_status.as_deref() != Some(text)
        {
            // A closed reader does not end the job.
            write(&state, Stream::Err, format!("{text}\n").as_bytes()).ok();
            state.printed_status = Some(text.to_owned());
        }
    }

    /// Shows a transient status on a terminal; prints nothing elsewhere.
    pub(crate) fn transient(&self, text: &str) {
        if self.0.is_terminal {
            self.status(Some(text));
        }
    }

    /// Returns whether progress is shown on a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.0.is_terminal
    }

    /// Returns whether `stream` has colours.
    pub(crate) fn has_colour(&self, stream: Stream) -> bool {
        self.0.colour[usize::from(stream == Stream::Err)]
    }

    /// Returns `text` in `style`, if `stream` has colours.
    pub(crate) fn styled(&self, stream: Stream, style: Style, text: &str) -> String {
        if self.has_colour(stream) {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// Forwards the lines of `pipe` with the prefix `label` until it ends. It uses a separate thread, so that
    /// a blocked reader of our output stalls the workers but not their supervision.
    pub(crate) fn forward(
        &self,
        pipe: impl Read + Send + 'static,
        from: Stream,
        label: &str,
        tail: &OutputTail,
    ) -> JoinHandle<()> {
        let to = if from == Stream::Out {
            self.0.workers
        } else {
            Stream::Err
        };
        let prefix = format!(
            "{} ",
            self.styled(to, self.colour_of(label), &format!("{label} |"))
        );
        let (output, tail) = (self.clone(), tail.clone());
        std::thread::spawn(move || {
            for_each_line(pipe, |line| {
                tail.push(line);
                let text = [prefix.as_bytes(), line, b"\n"].concat();
                // A closed reader does not end the job.
                write(&output.0.state.lock(), to, &text).ok();
            });
        })
    }

    fn colour_of(&self, label: &str) -> Style {
        let mut state = self.0.state.lock();
        let index = state.labels.iter().position(|other| other == label);
        let index = index.unwrap_or_else(|| {
            state.labels.push(label.to_owned());
            state.labels.len() - 1
        });
        COLOURS[index % COLOURS.len()].on_default()
    }

    fn print_line(&self, text: &str) {
        // A closed reader does not end the job.
        write(&self.0.state.lock(), Stream::Err, format!("{text}\n").as_bytes()).ok();
    }
}

/// Writes whole lines and redraws the status line.
fn write(state: &TerminalState, to: Stream, text: &[u8]) -> io::Result<()> {
    clear(state);
    let written = match to {
        Stream::Out => io::stdout().write_all(text).and_then(|()| io::stdout().flush()),
        Stream::Err => io::stderr().write_all(text),
    };
    show(state);
    written
}

fn clear(state: &TerminalState) {
    if state.status.is_some() {
        let _ = io::stderr().write_all(b"\r\x1b[2K");
    }
}

fn show(state: &TerminalState) {
    if let Some(status) = &state.status {
        let _ = io::stderr().write_all(status.as_bytes());
    }
}

/// Truncates `text` to the width of the terminal, because a wrapped line could not be removed.
fn truncate(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let width = size.map_or(80, |size| usize::from(size.ws_col)).max(20);
    if text.chars().count() < width {
        return text.to_owned();
    }
    text.chars().take(width - 2).chain(['…']).collect()
}

/// Calls `on_line` for each line of `pipe`, without its line end. A carriage return ends a line too, as in
/// progress bars. Bytes that are not UTF-8 are not changed.
fn for_each_line(mut pipe: impl Read, mut on_line: impl FnMut(&[u8])) {
    let mut buffer = [0_u8; 8192];
    let mut line = Vec::new();
    let mut after_return = false;
    loop {
        let count = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in &buffer[..count] {
            match byte {
                b'\n' if after_return && line.is_empty() => {}
                b'\n' => {
                    on_line(&line);
                    line.clear();
                }
                b'\r' if line.is_empty() => {}
                b'\r' => {
                    on_line(&line);
                    line.clear();
                }
                other => {
                    line.push(*other);
                    if line.len() == MAX_LINE_LEN {
                        on_line(&line);
                        line.clear();
                    }
                }
            }
            after_return = *byte == b'\r';
        }
    }
    if !line.is_empty() {
        on_line(&line);
    }
}

/// Last output of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<u8>>>);

impl OutputTail {
    fn push(&self, line: &[u8]) {
        let mut kept = self.0.lock();
        kept.extend(line.iter().copied().chain([b'\n']));
        let excess = kept.len().saturating_sub(MAX_TAIL_LEN);
        kept.drain(..excess);
    }

    /// Returns the text, at most 2 KiB.
    pub(crate) fn text(&self) -> String {
        let kept = self.0.lock();
        let (front, back) = kept.as_slices();
        let mut text = String::from_utf8_lossy(&[front, back].concat()).into_owned();
        // A replacement character is longer than the byte that it replaces.
        while text.len() > MAX_TAIL_LEN {
            text.remove(0);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        for_each_line(text, |line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn a_line_ends_at_a_line_feed_or_a_carriage_return() {
        assert_eq!(lines(b"a\nb\r\n\nc\rd"), [&b"a"[..], b"b", b"", b"c", b"d"]);
        assert_eq!(lines(b"\xff\xfe\n"), [&b"\xff\xfe"[..]]);
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_end_is_split() {
        let long = vec![b'x'; 3 * MAX_LINE_LEN + 5];
        let pieces = lines(&long);
        assert_eq!(
            pieces.iter().map(Vec::len).collect::<Vec<_>>(),
            [MAX_LINE_LEN, MAX_LINE_LEN, MAX_LINE_LEN, 5]
        );
    }

    #[test]
    fn the_tail_keeps_the_last_two_kibibytes() {
        let tail = OutputTail::default();
        for number in 0..1000 {
            tail.push(format!("line {number}").as_bytes());
        }
        let text = tail.text();
        assert!(
            text.len() <= MAX_TAIL_LEN && text.ends_with("line 998\nline 999\n"),
            "{text}"
        );
        tail.push(&[0xff; 4000]);
        assert!(tail.text().len() <= MAX_TAIL_LEN);
    }
}
