//! Everything that reaches the terminal: workers' lines with their prefix, progress, results. Lines of different
//! sources never mix, and a transient status line never stays among them.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anstyle::{AnsiColor, Style};

/// The longest line that is passed on in one piece; more is passed on as further lines, so that a worker that never
/// ends its line cannot fill the memory.
const MAX_LINE_LEN: usize = 16 * 1024;
/// How much of a process's output is kept for the report of its failure (`ProcessPhase::Exited` says 2 KiB).
const TAIL_MAX: usize = 2 * 1024;
/// The colours of prefixes, in turn. Red is for what went wrong.
const COLOURS: [AnsiColor; 5] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Yellow,
    AnsiColor::Blue,
];

/// One of the two ways out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output: results.
    Out,
    /// Standard error: progress, warnings, errors.
    Err,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also when piped.
    Always,
    /// Never.
    Never,
}

/// The way to the terminal; clones lead to the same one.
#[derive(Clone, Debug)]
pub(crate) struct Output(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    screen: Mutex<TerminalOutput>,
    colour: [bool; 2],
    /// Where the standard output of workers goes: not to ours if that is to carry one document alone.
    workers: Stream,
    terminal: bool,
    quiet: bool,
}

#[derive(Debug, Default)]
struct TerminalOutput {
    /// The transient line that is shown at present.
    status: Option<String>,
    /// The last plain line that stood for a transient one.
    said: Option<String>,
    labels: Vec<String>,
}

impl Output {
    /// The terminal of this process. With `quiet`, progress is left out; warnings and errors are not.
    pub(crate) fn new(colour: Colour, workers: Stream, quiet: bool) -> Self {
        let wanted = |auto: anstream::ColorChoice| match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => !matches!(auto, anstream::ColorChoice::Never),
        };
        let colour = [
            wanted(anstream::AutoStream::choice(&io::stdout())),
            wanted(anstream::AutoStream::choice(&io::stderr())),
        ];
        let terminal = io::stderr().is_terminal();
        Self(Arc::new(Shared {
            screen: Mutex::default(),
            colour,
            workers,
            terminal,
            quiet,
        }))
    }

    /// A result, on standard output; it brings its own line ends.
    pub(crate) fn result(&self, text: &str) {
        let screen = self.screen();
        put(&screen, Stream::Out, text.as_bytes());
    }

    /// A line of progress.
    pub(crate) fn say(&self, text: &str) {
        if !self.0.quiet {
            self.line(text);
        }
    }

    /// A line that says what is odd.
    pub(crate) fn warn(&self, text: &str) {
        let label = self.styled(Stream::Err, AnsiColor::Yellow.on_default().bold(), "warning:");
        self.line(&format!("{label} {text}"));
    }

    /// A line that says what went wrong.
    pub(crate) fn error(&self, text: &str) {
        let label = self.styled(Stream::Err, AnsiColor::Red.on_default().bold(), "error:");
        self.line(&format!("{label} {text}"));
    }

    /// Shows `text` until something else is shown (on a terminal), or once (elsewhere); `None` takes it away.
    pub(crate) fn status(&self, text: Option<&str>) {
        if self.0.quiet {
            return;
        }
        let mut screen = self.screen();
        if self.0.terminal {
            clear(&screen);
            screen.status = text.map(one_line);
            show(&screen);
        } else if let Some(text) = text
            && screen.said.as_deref() != Some(text)
        {
            put(&screen, Stream::Err, format!("{text}\n").as_bytes());
            screen.said = Some(text.to_owned());
        }
    }

    /// Whether progress is shown on a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.0.terminal
    }

    /// Whether `stream` shows colours.
    pub(crate) fn has_colour(&self, stream: Stream) -> bool {
        self.0.colour[usize::from(stream == Stream::Err)]
    }

    /// `text` in `style`, if `stream` shows colours.
    pub(crate) fn styled(&self, stream: Stream, style: Style, text: &str) -> String {
        if self.has_colour(stream) {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    /// Passes the lines of `pipe` on under `label` until it ends, from a thread of its own: a reader of ours that
    /// stands still holds up the workers, never the looking after them.
    pub(crate) fn pump(
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
            each_line(pipe, |line| {
                tail.push(line);
                let text = [prefix.as_bytes(), line, b"\n"].concat();
                put(&output.screen(), to, &text);
            });
        })
    }

    fn colour_of(&self, label: &str) -> Style {
        let mut screen = self.screen();
        let known = screen.labels.iter().position(|known| known == label);
        let place = known.unwrap_or_else(|| {
            screen.labels.push(label.to_owned());
            screen.labels.len() - 1
        });
        COLOURS[place % COLOURS.len()].on_default()
    }

    fn line(&self, text: &str) {
        put(&self.screen(), Stream::Err, format!("{text}\n").as_bytes());
    }

    fn screen(&self) -> MutexGuard<'_, TerminalOutput> {
        self.0.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes whole lines, with the status line out of the way. An error is a reader that went away; the job goes on.
fn put(screen: &TerminalOutput, to: Stream, text: &[u8]) {
    clear(screen);
    let _ = match to {
        Stream::Out => io::stdout().write_all(text).and_then(|()| io::stdout().flush()),
        Stream::Err => io::stderr().write_all(text),
    };
    show(screen);
}

fn clear(screen: &TerminalOutput) {
    if screen.status.is_some() {
        let _ = io::stderr().write_all(b"\r\x1b[2K");
    }
}

fn show(screen: &TerminalOutput) {
    if let Some(status) = &screen.status {
        let _ = io::stderr().write_all(status.as_bytes());
    }
}

/// `text` cut to the width of the terminal: a line that wraps could not be taken away again.
fn one_line(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stderr());
    let width = size.map_or(80, |size| usize::from(size.ws_col)).max(20);
    if text.chars().count() < width {
        return text.to_owned();
    }
    text.chars().take(width - 2).chain(['…']).collect()
}

/// Calls `with` for each line of `pipe`, without its end. A carriage return ends a line too (progress bars never
/// send anything else); bytes that are no UTF-8 are passed on as they are.
fn each_line(mut pipe: impl Read, mut with: impl FnMut(&[u8])) {
    let mut buffer = [0_u8; 8192];
    let mut line = Vec::new();
    let mut returned = false;
    loop {
        let count = match pipe.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in &buffer[..count] {
            match byte {
                b'\n' if returned && line.is_empty() => {}
                b'\n' => {
                    with(&line);
                    line.clear();
                }
                b'\r' if line.is_empty() => {}
                b'\r' => {
                    with(&line);
                    line.clear();
                }
                other => {
                    line.push(*other);
                    if line.len() == MAX_LINE_LEN {
                        with(&line);
                        line.clear();
                    }
                }
            }
            returned = *byte == b'\r';
        }
    }
    if !line.is_empty() {
        with(&line);
    }
}

/// The end of a process's output.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputTail(Arc<Mutex<VecDeque<u8>>>);

impl OutputTail {
    fn push(&self, line: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(line.iter().copied().chain([b'\n']));
        let excess = kept.len().saturating_sub(TAIL_MAX);
        kept.drain(..excess);
    }

    /// What is kept, as text of at most 2 KiB.
    pub(crate) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (front, back) = kept.as_slices();
        let mut text = String::from_utf8_lossy(&[front, back].concat()).into_owned();
        // A replacement character is longer than the byte that it stands for.
        while text.len() > TAIL_MAX {
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
        each_line(text, |line| found.push(line.to_vec()));
        found
    }

    #[test]
    fn lines_end_at_line_feeds_and_carriage_returns() {
        assert_eq!(lines(b"a\nb\r\n\nc\rd"), [&b"a"[..], b"b", b"", b"c", b"d"]);
        assert_eq!(lines(b"\xff\xfe\n"), [&b"\xff\xfe"[..]]);
        assert_eq!(lines(b""), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let long = vec![b'x'; 3 * MAX_LINE_LEN + 5];
        let pieces = lines(&long);
        assert_eq!(
            pieces.iter().map(Vec::len).collect::<Vec<_>>(),
            [MAX_LINE_LEN, MAX_LINE_LEN, MAX_LINE_LEN, 5]
        );
    }

    #[test]
    fn only_the_end_of_the_output_is_kept() {
        let tail = OutputTail::default();
        for number in 0..1000 {
            tail.push(format!("line {number}").as_bytes());
        }
        let text = tail.text();
        assert!(
            text.len() <= TAIL_MAX && text.ends_with("line 998\nline 999\n"),
            "{text}"
        );
        tail.push(&[0xff; 4000]);
        assert!(tail.text().len() <= TAIL_MAX);
    }
}
