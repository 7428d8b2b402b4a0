//! Suggestions for misspelt names.

/// Maximum length of a name with a suggestion, in bytes. Longer names are no typos.
const MAX_LEN: usize = 40;

/// Returns the candidate that `name` probably stands for: it differs in case, or by one edit for every four
/// characters.
pub(super) fn closest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > MAX_LEN {
        return None;
    }
    let lower = name.to_ascii_lowercase();
    let distances = candidates
        .into_iter()
        .filter(|candidate| candidate.len() <= 2 * MAX_LEN)
        .map(|candidate| (distance(&lower, &candidate.to_ascii_lowercase()), candidate));
    let (edits, candidate) = distances.min_by_key(|(edits, _)| *edits)?;
    (edits <= 1.max(name.chars().count() / 4)).then_some(candidate)
}

/// Returns the number of insertions, deletions, replacements and swaps of neighbours between two texts.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    let mut last_char = None;
    for (row, l) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, &r) in right.iter().enumerate() {
            let replaced = last[column] + usize::from(l != r);
            let mut best = replaced.min(last[column + 1] + 1).min(current[column] + 1);
            if column > 0 && Some(r) == last_char && right[column - 1] == l {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = core::mem::replace(&mut last, current);
        last_char = Some(l);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_its_name_and_another_word_does_not() {
        let names = ["ApiHost", "ApiPort", "IpuofDir", "pod64"];
        for (typo, name) in [
            ("ApiHots", Some("ApiHost")),
            ("apihost", Some("ApiHost")),
            ("pod6", Some("pod64")),
            ("IpuoffDir", Some("IpuofDir")),
            ("SelectType", None),
            ("", None),
        ] {
            assert_eq!(closest(typo, names), name, "{typo}");
        }
        assert_eq!(closest(&"a".repeat(1000), names), None);
        assert_eq!(closest("pod6", []), None);
    }

    #[test]
    fn a_swap_of_neighbours_is_one_edit() {
        for (left, right, edits) in [
            ("ab", "ba", 1),
            ("abc", "abc", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
        }
    }
}
