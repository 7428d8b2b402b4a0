//! The view `top`: map, queue, controllers, cordons, quotas and partitions, live on a terminal or as one
//! picture of plain text.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Stdout, stdout};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipu_core::{AgentId, PartitionId, Timestamp};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::exit_code::{Code, Failure};
use super::table::printable;
use super::time;
use crate::api::{
    ControllerHealth, ControllerMapDocument, CordonDocument, HoldState, MachineMapDocument, MapDocument,
    OwnerDocument, PartitionDocument, QuotaDocument, RunDocument,
};
use crate::client::{ClientError, EventKind, ProxyClient};

/// Pause between two updates: changes of a busy system are drawn together.
const UPDATE_PAUSE: Duration = Duration::from_millis(250);

/// Pause before the next attempt after the proxy did not answer.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Width of a picture into a file or a pipe.
const PICTURE_WIDTH: usize = 100;

/// Letters of the states of an IPU with their colours. A held IPU has `!` instead if it is unhealthy, else a
/// lower case letter if it is cordoned.
const STATES: [(char, &str, Color); 10] = [
    ('F', "free", Color::Reset),
    ('A', "active", Color::Green),
    ('N', "creating", Color::Blue),
    ('R', "resetting", Color::Blue),
    ('L', "releasing", Color::Blue),
    ('E', "failed", Color::Red),
    ('Q', "quarantined", Color::Magenta),
    ('X', "foreign", Color::Yellow),
    ('C', "cordoned", Color::DarkGray),
    ('U', "unhealthy", Color::Red),
];

/// Abilities of the terminal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TerminalOptions {
    /// True if colours are used. Each state has its letter, too.
    pub colour: bool,
    /// True if the terminal shows UTF-8. Otherwise, other characters than ASCII become `?`.
    pub utf8: bool,
}

impl TerminalOptions {
    /// Creates the options.
    #[must_use]
    pub const fn new(colour: bool, utf8: bool) -> Self {
        Self { colour, utf8 }
    }

    /// Returns the options of these environment variables: `NO_COLOR`, `TERM`, `LC_ALL`, `LC_CTYPE`, `LANG`.
    ///
    /// ```
    /// use ipu_proxy_client::cli::top::TerminalOptions;
    ///
    /// let variables = |name: &str| match name {
    ///     "TERM" => Some("xterm-256color".to_owned()),
    ///     "LANG" => Some("en_GB.UTF-8".to_owned()),
    ///     // LC_ALL overrides LANG.
    ///     "LC_ALL" => Some("C".to_owned()),
    ///     _ => None,
    /// };
    /// let options = TerminalOptions::from_variables(variables);
    /// assert_eq!((options.colour, options.utf8), (true, false));
    /// ```
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|text| !text.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let locale = locale.unwrap_or_default().to_ascii_lowercase();
        Self {
            colour: set("NO_COLOR").is_none() && set("TERM").is_some_and(|kind| kind != "dumb"),
            utf8: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }
}

/// Returns one picture as plain text.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let settings = vipu_proxy::Settings::simulated("pod16");
/// # let server = vipu_proxy::Proxy::start(settings.check()?).await?;
/// # let proxy = ipu_proxy_client::ProxyClient::new(&server.addr().to_string(), Default::default())?;
/// use ipu_proxy_client::cli::top;
///
/// let picture = top::picture(&proxy, false).await?;
/// assert!(picture.starts_with("16 IPUs: 16 free; 0 queued\n"), "{picture}");
/// assert!(picture.contains("cl1/0 a1 FFFF  a2 FFFF  a3 FFFF  a4 FFFF\n"), "{picture}");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The errors of the proxy.
pub async fn picture(proxy: &ProxyClient, utf8: bool) -> Result<String, Failure> {
    let observed = Observed::read(proxy).await?;
    let view = View {
        observed: &observed,
        options: TerminalOptions::new(false, utf8),
        width: PICTURE_WIDTH,
    };
    let mut lines = vec![Line::from(view.summary())];
    view.wrap(&mut lines, &view.legend());
    lines.extend(view.body());
    let lines = lines.iter().map(Line::to_string);
    Ok(lines.map(|line| format!("{}\n", line.trim_end())).collect())
}

/// Shows the view on the terminal of standard output until the user ends it, or the process is terminated.
///
/// # Errors
///
/// [`Code::Host`] if the terminal cannot be used, and the errors of the proxy at the start.
pub async fn watch(proxy: &ProxyClient, options: TerminalOptions) -> Result<(), Failure> {
    let mut observed = Observed::read(proxy).await?;
    let mut screen = Screen::open().map_err(unusable)?;
    let mut terminated = signal(SignalKind::terminate()).map_err(unusable)?;
    let mut keys = keys();
    let mut events = proxy.events(None);
    let (mut heard, mut old_since) = (now(), None);
    let mut is_stale = false;
    let mut due = Some(Instant::now());
    loop {
        tokio::select! {
            _ = terminated.recv() => return Ok(()),
            input = keys.recv() => match input {
                Some(input) if !is_end(&input) => screen.scroll(&input),
                _ => return Ok(()),
            },
            event = events.next(), if old_since.is_none() => {
                match event {
                    Ok(event) => {
                        heard = now();
                        is_stale |= observed.apply(event.kind);
                    }
                    Err(_) => old_since = Some(heard),
                }
                due.get_or_insert_with(|| Instant::now() + UPDATE_PAUSE);
                continue;
            }
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                due = None;
                if is_stale || old_since.is_some() {
                    is_stale = false;
                    match observed.reread(proxy).await {
                        Ok(()) => (heard, old_since) = (now(), None),
                        Err(_) => old_since = Some(old_since.unwrap_or(heard)),
                    }
                }
                if old_since.is_some() {
                    due = Some(Instant::now() + RETRY_PAUSE);
                }
            }
        }
        screen.draw(&observed, options, old_since).map_err(unusable)?;
    }
}

fn unusable(error: io::Error) -> Failure {
    Failure::because(Code::Host, "use the terminal", error)
}

fn now() -> Timestamp {
    Timestamp::from_millis(0).plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Reads keys in a thread, which ends with the process.
fn keys() -> mpsc::Receiver<Input> {
    let (send, keys) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(input) = event::read() {
            if send.blocking_send(input).is_err() {
                return;
            }
        }
    });
    keys
}

fn is_end(input: &Input) -> bool {
    let Input::Key(key) = input else { return false };
    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    key.kind == KeyEventKind::Press && (is_interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

/// Documents of the proxy.
#[derive(Default)]
struct Observed {
    map: MapDocument,
    waiting: Vec<PartitionDocument>,
    cordons: Vec<CordonDocument>,
    partitions: BTreeMap<PartitionId, PartitionDocument>,
}

impl Observed {
    async fn read(proxy: &ProxyClient) -> Result<Self, ClientError> {
        let mut observed = Self::default();
        observed.reread(proxy).await?;
        Ok(observed)
    }

    async fn reread(&mut self, proxy: &ProxyClient) -> Result<(), ClientError> {
        let mut map = proxy.map().await?;
        for controller in &mut map.controllers {
            self.keep_silent(controller);
        }
        self.waiting = proxy.waiting().await?;
        self.cordons = proxy.cordons().await?.cordons;
        let partitions = proxy.partitions().await?.into_iter();
        self.partitions = partitions.map(|one| (one.id.clone(), one)).collect();
        self.map = map;
        Ok(())
    }

    /// Keeps the last known machines of a controller that is silent now.
    fn keep_silent(&self, controller: &mut ControllerMapDocument) {
        let mut before = self.map.controllers.iter();
        if controller.health == ControllerHealth::Silent
            && let Some(before) = before.find(|before| before.name == controller.name)
            && !before.link_domains.is_empty()
        {
            controller.link_domains.clone_from(&before.link_domains);
            controller.unplaced.clear();
        }
    }

    /// Applies an event; returns whether documents must be read again.
    fn apply(&mut self, event: EventKind) -> bool {
        match event {
            EventKind::Snapshot(list) => {
                self.partitions = list
                    .partitions
                    .into_iter()
                    .map(|one| (one.id.clone(), one))
                    .collect();
            }
            EventKind::Change(change) => {
                match change.partition {
                    Some(partition) => self.partitions.insert(change.id, partition),
                    None => self.partitions.remove(&change.id),
                };
            }
            EventKind::Subject(_) => return true,
        }
        false
    }

    fn runs(&self) -> impl Iterator<Item = (&AgentId, &RunDocument)> {
        let domains = self.map.controllers.iter().flat_map(|one| &one.link_domains);
        let machines = domains.flat_map(|domain| &domain.machines);
        machines.flat_map(|machine| machine.runs.iter().map(|run| (&machine.name, run)))
    }
}

/// Returns the index of the state of a run in [`STATES`].
fn state_of(run: &RunDocument) -> usize {
    let name = match run.phase {
        _ if run.foreign => "foreign",
        Some(phase) => phase.label(),
        None if run.unhealthy => "unhealthy",
        None if !run.cordons.is_empty() => "cordoned",
        None => "free",
    };
    STATES
        .iter()
        .position(|(_, state, _)| *state == name)
        .unwrap_or_default()
}

fn owner_of(owner: Option<&OwnerDocument>) -> String {
    owner.map_or_else(|| "an unknown owner".to_owned(), ToString::to_string)
}

/// The documents as lines.
struct View<'o> {
    observed: &'o Observed,
    options: TerminalOptions,
    width: usize,
}

impl View<'_> {
    /// Returns text of users and programs as this terminal shows it.
    fn text(&self, text: &str) -> String {
        let text = printable(text);
        if self.options.utf8 {
            return text;
        }
        text.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect()
    }

    fn summary(&self) -> String {
        let mut counts = [0; STATES.len()];
        for (_, run) in self.observed.runs() {
            counts[state_of(run)] += run.ipus;
        }
        let total: u32 = counts.iter().sum();
        let states = STATES.iter().zip(counts).filter(|(_, count)| *count > 0);
        let states: Vec<String> = states
            .map(|((_, name, _), count)| format!("{count} {name}"))
            .collect();
        let queued = self.observed.waiting.len();
        format!("{total} IPUs: {}; {queued} queued", states.join(", "))
    }

    fn legend(&self) -> String {
        let states = STATES.iter().map(|(letter, name, _)| format!("{letter} {name}"));
        let states: Vec<String> = states.collect();
        format!("{}; if held, small: cordoned, !: unhealthy", states.join(", "))
    }

    fn body(&self) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        self.map(&mut lines);
        self.section(
            &mut lines,
            "QUEUE",
            "No request waits.",
            self.observed.waiting.iter().map(|one| self.request(one)),
        );
        let cordons = self.observed.cordons.iter().map(cordon);
        self.section(&mut lines, "CORDONS", "No hardware is cordoned.", cordons);
        let quotas = self.observed.map.quotas.iter().map(quota);
        self.section(&mut lines, "QUOTAS", "No quotas are set.", quotas);
        self.section(
            &mut lines,
            "PARTITIONS",
            "No partition is held.",
            self.partitions().into_iter(),
        );
        lines
    }

    fn map(&self, lines: &mut Vec<Line<'static>>) {
        for controller in &self.observed.map.controllers {
            let title = format!(
                "CONTROLLER {} {} {}",
                controller.name,
                controller.health.label(),
                controller.version.as_deref().unwrap_or_default()
            );
            self.title(lines, &title);
            if let Some(since) = controller.silent_since {
                let error = controller.error.as_deref().unwrap_or_default();
                self.wrap(lines, &format!("silent since {}: {error}", time::format(since)));
            }
            for domain in &controller.link_domains {
                self.domain(
                    lines,
                    &format!("{}/{} ", domain.cluster, domain.number),
                    &domain.machines,
                );
            }
            if !controller.unplaced.is_empty() {
                let ids: Vec<&str> = controller.unplaced.iter().map(PartitionId::as_str).collect();
                self.wrap(lines, &format!("without a known place: {}", ids.join(", ")));
            }
        }
    }

    /// Adds the machines of a link domain in aligned columns.
    fn domain(&self, lines: &mut Vec<Line<'static>>, title: &str, machines: &[MachineMapDocument]) {
        let name_width = machines
            .iter()
            .map(|machine| machine.name.as_str().len())
            .max()
            .unwrap_or(0);
        // A machine has four IPUs.
        let cell_width = name_width + 1 + 4 + 2;
        let columns = (self.width.saturating_sub(title.len()) / cell_width).max(1);
        for (row, machines) in machines.chunks(columns).enumerate() {
            let title_width = title.len();
            let title = if row == 0 { title } else { "" };
            let mut spans = vec![Span::raw(format!("{title:title_width$}"))];
            for machine in machines {
                spans.push(Span::raw(format!("{:name_width$} ", machine.name.as_str())));
                for run in &machine.runs {
                    let (letter, _, colour) = STATES[state_of(run)];
                    let letter = match run.holder {
                        Some(_) if run.unhealthy => '!',
                        Some(_) if !run.cordons.is_empty() => letter.to_ascii_lowercase(),
                        _ => letter,
                    };
                    let letters = letter.to_string().repeat(run.ipus as usize);
                    spans.push(Span::styled(letters, self.style(Style::new().fg(colour))));
                }
                spans.push(Span::raw("  "));
            }
            lines.push(Line::from(spans));
        }
    }

    fn request(&self, request: &PartitionDocument) -> String {
        let waiting = request.waiting.as_ref();
        let position = waiting.map_or(0, |waiting| waiting.position);
        let owner = owner_of(request.owner.as_ref());
        let mut text = format!("{position}. {} of {owner}, {} IPUs", request.id, request.size);
        if let Some(reason) = &request.reason {
            text.push_str(&format!(", {}: {}", reason.code, reason.message));
        }
        let blockers = waiting
            .map(|waiting| waiting.blockers.as_slice())
            .unwrap_or_default();
        if !blockers.is_empty() {
            let names = blockers
                .iter()
                .map(|one| format!("{} ({})", one.id, owner_of(one.owner.as_ref())));
            text.push_str(&format!("; behind {}", names.collect::<Vec<_>>().join(", ")));
        }
        if let Some(start) = waiting.and_then(|waiting| waiting.earliest_fit) {
            text.push_str(&format!("; expected start {}", time::format(start)));
        }
        text
    }

    fn partitions(&self) -> Vec<String> {
        let mut machines: BTreeMap<&PartitionId, BTreeSet<&str>> = BTreeMap::new();
        for (machine, run) in self.observed.runs() {
            if let Some(holder) = &run.holder {
                machines.entry(holder).or_default().insert(machine.as_str());
            }
        }
        let place = |id: &PartitionId| {
            let names = machines.get(id).into_iter().flatten().copied();
            names.collect::<Vec<_>>().join(" ")
        };
        let held = self
            .observed
            .partitions
            .values()
            .filter(|one| one.state != HoldState::Waiting);
        let held = held.map(|one| {
            let since = one.held_since.map(time::format).unwrap_or_default();
            let owner = owner_of(one.owner.as_ref());
            format!(
                "{} {} of {owner} since {since} on {}",
                one.id,
                one.state,
                place(&one.id)
            )
        });
        let foreign = machines
            .keys()
            .filter(|id| !self.observed.partitions.contains_key(**id));
        held.chain(foreign.map(|id| format!("{id} of another program on {}", place(id))))
            .collect()
    }

    fn section(
        &self,
        lines: &mut Vec<Line<'static>>,
        title: &str,
        none: &str,
        rows: impl Iterator<Item = String>,
    ) {
        self.title(lines, title);
        let before = lines.len();
        rows.for_each(|row| self.wrap(lines, &row));
        if lines.len() == before {
            lines.push(Line::from(none.to_owned()));
        }
    }

    fn title(&self, lines: &mut Vec<Line<'static>>, title: &str) {
        let style = self.style(Style::new().add_modifier(Modifier::BOLD));
        lines.push(Line::styled(self.text(title), style));
    }

    fn style(&self, style: Style) -> Style {
        if self.options.colour { style } else { Style::new() }
    }

    /// Adds a text in lines of this width, broken at blanks where possible, all but the first indented.
    fn wrap(&self, lines: &mut Vec<Line<'static>>, text: &str) {
        let mut line = String::new();
        for word in self.text(text).split(' ') {
            let mut rest = word;
            loop {
                let used = line.chars().count();
                let has_word = !line.trim().is_empty();
                let room = self.width.saturating_sub(used + usize::from(has_word)).max(1);
                if rest.chars().count() <= room {
                    line.push_str(if has_word { " " } else { "" });
                    line.push_str(rest);
                    break;
                }
                if !has_word {
                    let cut = rest.char_indices().nth(room).map_or(rest.len(), |(at, _)| at);
                    line.push_str(&rest[..cut]);
                    rest = &rest[cut..];
                }
                lines.push(Line::from(std::mem::replace(&mut line, "  ".to_owned())));
            }
        }
        lines.push(Line::from(line));
    }
}

fn cordon(cordon: &CordonDocument) -> String {
    let machine = cordon.machine.as_ref().map(|machine| format!("/{machine}"));
    let ipu = cordon.ipu.map(|ipu| format!("/{ipu}"));
    format!(
        "{}: {}{}{} by {} since {}: {}",
        cordon.id,
        cordon.controller,
        machine.unwrap_or_default(),
        ipu.unwrap_or_default(),
        cordon.owner,
        time::format(cordon.since),
        cordon.reason
    )
}

fn quota(quota: &QuotaDocument) -> String {
    let subject = match (&quota.namespace, &quota.account) {
        (Some(name), _) => format!("namespace {name}"),
        (None, account) => format!("account {}", account.as_deref().unwrap_or_default()),
    };
    let limit = |most: Option<u32>| most.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    format!(
        "{subject}: {} IPUs of {}, {} partitions of {}",
        quota.ipus,
        limit(quota.max_ipus),
        quota.partitions,
        limit(quota.max_partitions)
    )
}

/// Terminal in raw mode, on its alternate screen. It is restored on drop.
struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    first_line: usize,
    /// Number of lines that the body has and shows.
    lines: usize,
    height: usize,
    /// Lines of the titles, for the key Tab.
    titles: Vec<usize>,
}

impl Screen {
    fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        let screen = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .map(|terminal| Self {
                terminal,
                first_line: 0,
                lines: 0,
                height: 0,
                titles: Vec::new(),
            });
        if screen.is_err() {
            restore();
        }
        screen
    }

    fn draw(
        &mut self,
        observed: &Observed,
        options: TerminalOptions,
        old_since: Option<Timestamp>,
    ) -> io::Result<()> {
        let size = self.terminal.size()?;
        let view = View {
            observed,
            options,
            width: usize::from(size.width).max(20),
        };
        let body = view.body();
        self.lines = body.len();
        self.height = usize::from(size.height).saturating_sub(4);
        self.first_line = self.first_line.min(self.lines.saturating_sub(self.height));
        let is_title = |line: &Line<'_>| line.to_string().chars().take(5).all(|c| c.is_ascii_uppercase());
        let titles = body.iter().enumerate().filter(|(_, line)| is_title(line));
        self.titles = titles.map(|(at, _)| at).collect();
        let head = match old_since {
            Some(since) => format!("OLD since {}, no answer. {}", time::format(since), view.summary()),
            None => format!("{} (live)", view.summary()),
        };
        let shown: Vec<Line<'_>> = body.into_iter().skip(self.first_line).take(self.height).collect();
        let last = self.first_line + shown.len();
        let keys = format!(
            "lines {} to {last} of {}; arrows, PgUp, PgDn, Tab: move; q: quit",
            self.first_line + 1,
            self.lines
        );
        let mut legend = Vec::new();
        view.wrap(&mut legend, &view.legend());
        self.terminal.draw(|frame| {
            let parts = [
                Constraint::Length(1),
                Constraint::Fill(1),
                Constraint::Length(2),
                Constraint::Length(1),
            ];
            let [top, middle, bottom, last] = Layout::vertical(parts).areas(frame.area());
            frame.render_widget(Paragraph::new(Line::from(head)), top);
            frame.render_widget(Paragraph::new(shown), middle);
            frame.render_widget(Paragraph::new(legend), bottom);
            frame.render_widget(Paragraph::new(keys), last);
        })?;
        Ok(())
    }

    fn scroll(&mut self, input: &Input) {
        let Input::Key(key) = input else { return };
        if key.kind == KeyEventKind::Release {
            return;
        }
        let at = self.first_line;
        let next_title = || self.titles.iter().copied().find(|title| *title > at).unwrap_or(0);
        self.first_line = match key.code {
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(self.height),
            KeyCode::PageDown => at + self.height,
            KeyCode::Home => 0,
            KeyCode::End => self.lines,
            KeyCode::Tab => next_title(),
            _ => at,
        };
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal as far as possible.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn held_ipus_that_are_cordoned_or_unhealthy_have_marks_and_the_legend_has_two_lines() {
        let runs = json!([
            {"ipus": 1, "holder": "p", "phase": "active"},
            {"ipus": 1, "holder": "p", "phase": "active", "cordons": ["disk"]},
            {"ipus": 1, "holder": "p", "phase": "active", "cordons": ["disk"], "unhealthy": true},
            {"ipus": 1, "unhealthy": true},
        ]);
        let domain = json!({"cluster": "cl", "number": 0, "machines": [{"name": "a1", "runs": runs}]});
        let controller = json!({"name": "pod1", "health": "available", "linkDomains": [domain]});
        let map = serde_json::from_value(json!({"controllers": [controller], "quotas": []})).unwrap();
        let observed = Observed {
            map,
            ..Observed::default()
        };
        let view = View {
            observed: &observed,
            options: TerminalOptions::new(false, false),
            width: 80,
        };
        assert_eq!(view.body()[1].to_string().trim_end(), "cl/0 a1 Aa!U");
        let mut legend = Vec::new();
        view.wrap(&mut legend, &view.legend());
        assert_eq!(legend.len(), 2, "{legend:?}");
    }
}
