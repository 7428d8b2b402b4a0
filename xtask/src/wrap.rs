//! Wraps the prose of generated Markdown. Tables, code and headings stay as they are.

/// The longest line of prose, in columns.
const COLUMNS: usize = 110;

/// Returns `text` with every line of prose wrapped.
pub(crate) fn wrap(text: &str) -> String {
    let mut wrapped = String::new();
    let mut is_code = false;
    for line in text.lines() {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || start.starts_with(['|', '#', '<']) {
            wrapped.push_str(line);
        } else {
            let indent = " ".repeat(indent_of(line));
            let options = textwrap::Options::new(COLUMNS)
                .subsequent_indent(&indent)
                .break_words(false)
                .word_separator(textwrap::WordSeparator::AsciiSpace)
                .word_splitter(textwrap::WordSplitter::NoHyphenation)
                .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit);
            wrapped.push_str(&textwrap::fill(line, options));
        }
        wrapped.push('\n');
    }
    wrapped
}

/// Returns the columns before the text of a paragraph or of a list item.
fn indent_of(line: &str) -> usize {
    let blanks = line.len() - line.trim_start().len();
    let is_item = line.trim_start().starts_with("- ");
    blanks + if is_item { 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn prose_is_wrapped_and_tables_and_code_are_not() {
        let long = "word ".repeat(40);
        let item = wrap(&format!("- {long}\n"));
        assert!(
            item.lines().count() == 2 && item.lines().nth(1).unwrap().starts_with("  word"),
            "{item}"
        );
        for kept in [format!("| {long}|\n"), format!("```text\n{long}\n```\n")] {
            assert_eq!(wrap(&kept), kept);
        }
    }
}
