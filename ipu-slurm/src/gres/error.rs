//! The error for texts that are not valid Slurm resources.

/// Maximum length of a text in an error, in characters.
const MAX_EXCERPT: usize = 80;

/// The error for a text that is not a valid Slurm resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}, character {position} ({part:?}): {rule}; {fix}")]
#[non_exhaustive]
pub struct GresError {
    /// The whole text, truncated to 80 characters.
    pub text: String,
    /// The position of the invalid part, in characters from 1.
    pub position: usize,
    /// The invalid part, truncated to 80 characters; empty if a part is missing.
    pub part: String,
    /// The violated rule.
    pub rule: &'static str,
    /// The fix.
    pub fix: &'static str,
}

impl GresError {
    pub(crate) fn new(text: &str, start: usize, part: &str, rule: &'static str, fix: &'static str) -> Self {
        Self {
            text: excerpt(text),
            position: text[..start].chars().count() + 1,
            part: excerpt(part),
            rule,
            fix,
        }
    }
}

fn excerpt(text: &str) -> String {
    let mut excerpt: String = text.chars().take(MAX_EXCERPT).collect();
    if excerpt.len() < text.len() {
        excerpt.push('…');
    }
    excerpt
}
