//! The floor of the language: names and openings that no source has, line lengths, and the limits of the
//! prose.

use std::fs;
use std::path::{Path, PathBuf};

use crate::tidy::{read, root, sources};

/// The longest line of a comment or of Markdown prose, in columns.
const MAX_COLUMNS: usize = 110;

/// First words of a doc comment that name no subject.
const OPENINGS: [&str; 7] = [
    "What ",
    "Whoever ",
    "Whose ",
    "The same ",
    "Nobody ",
    "Somebody ",
    "Everybody ",
];

/// Type names with too many meanings in this project: a qualifier is missing.
const BARE_TYPES: [&str; 10] = [
    "State", "Step", "Answer", "Verdict", "Place", "Look", "Line", "Room", "Seen", "Known",
];

/// Names of functions, fields and modules for which Kubernetes, Slurm or Rust have another word.
const BARE_NAMES: [&str; 4] = ["told", "tell", "hear", "heard"];

/// Returns what a Rust source has against the rules, with line numbers.
fn in_source(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut was_doc, mut is_code) = (false, false);
    for (number, line) in text.lines().enumerate() {
        let mut report = |rule: String| found.push(format!("line {}: {rule}: {}", number + 1, line.trim()));
        let code = line.trim_start();
        let doc = ["/// ", "//! "].iter().find_map(|mark| code.strip_prefix(mark));
        if let (Some(doc), false) = (doc, was_doc)
            && let Some(opening) = OPENINGS.iter().find(|opening| doc.starts_with(**opening))
        {
            report(format!(
                "a doc comment begins with a noun or a verb, not with `{}`",
                opening.trim()
            ));
        }
        is_code = doc.is_some_and(|doc| doc.starts_with("```")) ^ (is_code && code.starts_with("//"));
        was_doc = code.starts_with("///") || code.starts_with("//!");
        // Links, the rows of tables and code cannot be wrapped.
        let is_free = is_code || line.contains("://") || doc.is_some_and(|doc| doc.starts_with('|'));
        if code.starts_with("//") && line.chars().count() > MAX_COLUMNS && !is_free {
            report(format!("a comment has at most {MAX_COLUMNS} columns"));
        }
        if let Some(rule) = in_definition(code) {
            report(rule);
        }
    }
    found
}

/// Returns the rule that the definition on this line breaks.
fn in_definition(code: &str) -> Option<String> {
    if code.starts_with('"') {
        return None;
    }
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let visible = words
        .iter()
        .skip_while(|word| ["pub", "crate", "super", "in", "async"].contains(*word));
    let mut words = visible.copied();
    let (kind, name) = (words.next()?, words.next()?);
    match kind {
        "const" | "static" if name.starts_with("MOST") || name.starts_with("LEAST") => {
            Some("limits are named `MAX_` and `MIN_`".into())
        }
        "struct" | "enum" | "trait" | "type" if BARE_TYPES.contains(&name) && code.contains(name) => {
            Some(format!("`{name}` needs a qualifier"))
        }
        "fn" | "mod" if BARE_NAMES.contains(&name) => Some(format!("`{name}` is no term of the field")),
        _ => {
            let field = code
                .split_once(": ")
                .map(|(name, _)| name.trim_start_matches("pub "))?;
            let banned = code.ends_with(',') && BARE_NAMES.contains(&field);
            banned.then(|| format!("`{field}` is no term of the field"))
        }
    }
}

/// Returns the lines of Markdown prose that are too long, with their numbers. Tables, code and links are
/// free.
fn in_markdown(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let start = line.trim_start();
        if start.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        let is_free = fenced || start.starts_with(['|', '<']) || line.contains("](") || line.contains("://");
        if line.chars().count() > MAX_COLUMNS && !is_free {
            found.push(format!(
                "line {}: a line has at most {MAX_COLUMNS} columns",
                number + 1
            ));
        }
    }
    found
}

#[test]
fn sources_keep_the_floor_of_the_language() {
    let mut found = Vec::new();
    for path in sources() {
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        found.extend(
            in_source(&read(&path))
                .into_iter()
                .map(|broken| format!("{file}, {broken}")),
        );
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn documents_keep_the_limit_of_columns() {
    let mut found = Vec::new();
    for path in documents() {
        let file = path.strip_prefix(root()).unwrap().display().to_string();
        found.extend(
            in_markdown(&read(&path))
                .into_iter()
                .map(|broken| format!("{file}, {broken}")),
        );
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn documents_keep_the_limits_of_prose() {
    let texts: Vec<String> = documents().iter().map(|path| read(path)).collect();
    let measured = Prose::of(&texts);
    assert!(measured.broken().is_empty(), "{}", measured.broken().join("; "));
}

#[test]
fn each_rule_of_the_language_finds_a_planted_violation() {
    let planted = [
        "/// What is given back.\nfn release() {}",
        "/// Whoever waits.\nfn wait() {}",
        "//! Whose turn it is.",
        "/// The same as before.\nstruct Same;",
        "const MOST_BYTES: usize = 1;",
        "pub(crate) const LEAST: usize = 1;",
        "pub enum Verdict {",
        "struct Room;",
        "    pub(crate) fn tell(&self) {",
        "mod hear;",
        "    pub told: bool,",
        &format!("// {}", "long ".repeat(30)),
    ];
    for text in planted {
        assert_eq!(in_source(text).len(), 1, "{text}");
    }
    let good = "/// Returns the state.\nfn state() {}\nstruct QueueState;\n/// Releases\n/// What follows is in the second line.";
    assert_eq!(in_source(good), Vec::<String>::new());
    assert_eq!(in_markdown(&"word ".repeat(30)).len(), 1);
    assert_eq!(in_markdown(&format!("| {} |", "cell ".repeat(30))).len(), 0);
}

#[test]
fn each_limit_of_prose_finds_a_planted_violation() {
    let short = "The proxy records a request. ".repeat(10);
    assert_eq!(
        Prose::of(std::slice::from_ref(&short)).broken(),
        Vec::<String>::new()
    );
    let sentence = format!("The proxy {}records it. ", "really ".repeat(32));
    let long = Prose::of(&[sentence.repeat(3)]).broken();
    assert!(
        long.iter().any(|limit| limit.contains("90th percentile")),
        "{long:?}"
    );
    assert!(
        long.iter().any(|limit| limit.contains("over 30 words")),
        "{long:?}"
    );
    let paragraph = Prose::of(&[short.repeat(2)]).broken();
    assert!(
        paragraph.iter().any(|limit| limit.contains("characters")),
        "{paragraph:?}"
    );
    let vague = Prose::of(&["Nobody knows what happens. ".repeat(3)]).broken();
    assert!(vague.iter().any(|limit| limit.contains("pronouns")), "{vague:?}");
}

/// Figures of the prose of all documents together. Tables, code, headings and HTML do not count.
struct Prose {
    words: usize,
    /// Words of each sentence, sorted.
    sentences: Vec<usize>,
    long_paragraphs: Vec<String>,
    pronouns: usize,
}

impl Prose {
    const MAX_P90: usize = 28;
    const MAX_LONG_SENTENCES: f64 = 0.05;
    const MAX_PARAGRAPH: usize = 500;
    const MAX_PRONOUNS: f64 = 0.0025;
    const PRONOUNS: [&str; 9] = [
        "nobody",
        "somebody",
        "anybody",
        "everybody",
        "whoever",
        "whatever",
        "what",
        "whose",
        "whom",
    ];

    fn of(texts: &[String]) -> Self {
        let mut prose = Self {
            words: 0,
            sentences: Vec::new(),
            long_paragraphs: Vec::new(),
            pronouns: 0,
        };
        for paragraph in texts.iter().flat_map(|text| paragraphs(text)) {
            prose.add(&paragraph);
        }
        prose.sentences.sort_unstable();
        prose
    }

    fn add(&mut self, paragraph: &str) {
        if paragraph.chars().count() > Self::MAX_PARAGRAPH {
            self.long_paragraphs.push(paragraph.chars().take(60).collect());
        }
        let mut words = 0;
        for word in paragraph.split_whitespace() {
            self.words += 1;
            words += 1;
            let plain = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            self.pronouns += usize::from(Self::PRONOUNS.contains(&&*plain));
            if word
                .trim_end_matches(['"', ')', '*', '`'])
                .ends_with(['.', '!', '?'])
            {
                self.sentences.push(words);
                words = 0;
            }
        }
        if words > 0 {
            self.sentences.push(words);
        }
    }

    /// Returns the limits that are missed, with the figures.
    fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let p90 = self
            .sentences
            .get(self.sentences.len() * 9 / 10)
            .copied()
            .unwrap_or(0);
        if p90 > Self::MAX_P90 {
            broken.push(format!(
                "90th percentile {p90} words a sentence, at most {}",
                Self::MAX_P90
            ));
        }
        let long = self.sentences.iter().filter(|words| **words > 30).count();
        let long = share(long, self.sentences.len());
        if long > Self::MAX_LONG_SENTENCES {
            broken.push(format!(
                "{:.1} % of the sentences over 30 words, at most 5 %",
                100.0 * long
            ));
        }
        if let Some(first) = self.long_paragraphs.first() {
            let count = self.long_paragraphs.len();
            broken.push(format!(
                "{count} paragraphs over {} characters: {first}…",
                Self::MAX_PARAGRAPH
            ));
        }
        let pronouns = share(self.pronouns, self.words);
        if pronouns > Self::MAX_PRONOUNS {
            broken.push(format!(
                "{:.1} indefinite pronouns per 1,000 words, at most 2.5",
                1000.0 * pronouns
            ));
        }
        broken
    }
}

fn share(part: usize, whole: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap());
    number(part) / number(whole.max(1))
}

/// Returns the paragraphs and list items of a document, each on one line, with link texts instead of links.
fn paragraphs(text: &str) -> Vec<String> {
    let (mut found, mut current, mut fenced) = (Vec::new(), String::new(), false);
    for line in text.lines().chain([""]) {
        let line = line.trim();
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        let is_item = line.starts_with("- ") || line.starts_with("* ") || is_numbered(line);
        let ends = line.is_empty() || is_fence || is_item || line.starts_with(['#', '|', '<']);
        if ends && !current.is_empty() {
            found.push(std::mem::take(&mut current));
        }
        if is_fence {
            fenced = !fenced;
        } else if !fenced && (is_item || !ends) {
            let words = line.trim_start_matches(['>', '-', '*']).trim();
            current.push_str(if current.is_empty() { "" } else { " " });
            current.push_str(&without_links(words));
        }
    }
    found
}

fn is_numbered(line: &str) -> bool {
    let digits = line.trim_start_matches(|c: char| c.is_ascii_digit());
    digits.len() < line.len() && digits.starts_with(". ")
}

fn without_links(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(&before.replacen('[', "", 1));
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain
}

/// The documents whose prose is measured: the README, the pages for contributors, and the book.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") && !is_summary(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn is_summary(path: &Path) -> bool {
    path.ends_with("SUMMARY.md")
}
