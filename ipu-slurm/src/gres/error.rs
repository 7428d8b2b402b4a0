//! Why a text is not what Slurm writes about generic resources.

/// The most characters of a text that an error shows.
const SHOWN_MAX: usize = 80;

/// A text that is not what Slurm writes about generic resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}, character {position} ({part:?}): {rule}; {fix}")]
#[non_exhaustive]
pub struct GresError {
    /// The whole text, cut off after 80 characters.
    pub text: String,
    /// Where the wrong part begins, in characters from 1.
    pub position: usize,
    /// The wrong part, cut off after 80 characters; empty where something is missing.
    pub part: String,
    /// The rule that it breaks.
    pub rule: &'static str,
    /// What to do instead.
    pub fix: &'static str,
}

impl GresError {
    pub(crate) fn new(text: &str, start: usize, part: &str, rule: &'static str, fix: &'static str) -> Self {
        Self {
            text: shown(text),
            position: text[..start].chars().count() + 1,
            part: shown(part),
            rule,
            fix,
        }
    }
}

fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
