//! Code blocks of hand-written documents that are copies of files: the block after `<!-- copy of PATH -->`.
//!
//! The documents stay readable outside of the book, and `cargo xtask gen --check` fails when a copy differs
//! from its file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Files, Generated};

const MARK: &str = "<!-- copy of ";

/// Returns every document with a copy, with the present text of the copied files.
pub(crate) fn generate(root: &Path) -> Files {
    let mut files = Vec::new();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path)?;
                if text.contains(MARK) {
                    let path = PathBuf::from(path.strip_prefix(root)?);
                    let text = refresh(&text, |name| Ok(fs::read_to_string(root.join(name))?))?;
                    files.push(Generated { path, text });
                }
            }
        }
    }
    Ok(files)
}

type Result<T> = core::result::Result<T, Box<dyn std::error::Error>>;

/// Returns `text` with the content of the named file in each marked code block, indented like the block.
fn refresh(text: &str, read: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut fresh = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        fresh.push_str(line);
        fresh.push('\n');
        let Some((indent, name)) = line.split_once(MARK) else {
            continue;
        };
        let malformed = || format!("a code block follows each `{MARK}PATH -->`: {line}");
        let name = name.strip_suffix(" -->").ok_or_else(malformed)?;
        let fence = format!("{indent}```");
        for line in lines.by_ref().take_while(|line| !line.starts_with(&fence)) {
            fresh.push_str(line);
            fresh.push('\n');
        }
        // The language is not known here any more: it follows from the name.
        fresh.push_str(&format!("{fence}{}\n", language_of(name)));
        for line in read(name)?.trim_end().lines() {
            let indent = if line.is_empty() { "" } else { indent };
            fresh.push_str(&format!("{indent}{line}\n"));
        }
        lines.by_ref().find(|line| *line == fence).ok_or_else(malformed)?;
        fresh.push_str(&format!("{fence}\n"));
    }
    Ok(fresh)
}

/// Returns the language of a code block with the content of a file.
fn language_of(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((_, "rs")) => "rust",
        Some((_, extension)) => extension,
        None => "dockerfile",
    }
}

#[cfg(test)]
mod tests {
    use super::refresh;

    #[test]
    fn a_marked_block_gets_the_content_of_its_file_and_nothing_else_changes() {
        let text = "a\n<!-- copy of f.yaml -->\n\n```yaml\nold: 1\n```\n\n```sh\nls\n```\n";
        let fresh = refresh(text, |name| Ok(format!("new: {name}\n"))).unwrap();
        assert_eq!(
            fresh,
            "a\n<!-- copy of f.yaml -->\n\n```yaml\nnew: f.yaml\n```\n\n```sh\nls\n```\n"
        );
        let item = "1. <!-- copy of f -->\n";
        assert!(refresh(item, |_| Ok(String::new())).is_err());
        let indented = "   <!-- copy of Dockerfile -->\n\n   ```dockerfile\n   ```\n";
        let fresh = refresh(indented, |_| Ok("FROM a\n\nRUN b\n".into())).unwrap();
        assert_eq!(
            fresh,
            "   <!-- copy of Dockerfile -->\n\n   ```dockerfile\n   FROM a\n\n   RUN b\n   ```\n"
        );
    }
}
