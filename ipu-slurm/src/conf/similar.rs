//! Suggestions for misspelt names.

/// Maximum length of a name with a suggestion, in bytes. Longer names are not typos.
const MAX_LEN: usize = 40;

/// Returns the candidate that `name` probably stands for: it differs in case, or by one edit for every four
/// characters.
pub(crate) fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_LEN {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let edits = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_ascii_lowercase());
    let distances = candidates
        .into_iter()
        .map(|candidate| (edits(candidate), candidate));
    let (edits, candidate) = distances.min_by_key(|(edits, _)| *edits)?;
    (edits <= 1.max(name.chars().count() / 4)).then_some(candidate)
}
