//! Generates `docs/rules.md` from the headers of the life-cycle rules: rule, file, fields, source, table.
//!
//! A header is the `//!` lines at the top of `ipu-core/src/job/rules/<rule>.rs`: `Title: one sentence.`, a
//! blank line, `Fields: …`, `Source: …`, a blank line, and a table with optional text.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::Generated;

const RULES_FOLDER: &str = "ipu-core/src/job/rules";

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask gen` from the headers of ipu-core/src/job/rules: edit those. -->

# Rules

Small rules decide the life cycle of a job. Each rule is one file and a pure function of a few inputs. Only
`plan()` in `ipu-core/src/job/plan.rs` combines them; the [life cycle of a job](lifecycle.md) explains how. The
test cases are text files: one folder per rule in `ipu-core/testdata/rules/<rule>/`, and whole jobs in
`ipu-core/testdata/plan/`. New cases need no Rust.

";

/// Parsed header of a rule.
struct Rule {
    name: String,
    title: String,
    sentence: String,
    fields: String,
    source: String,
    text: String,
}

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn Error>> {
    let index = std::fs::read_to_string(root.join(RULES_FOLDER).with_extension("rs"))?;
    let mut rules = Vec::new();
    for line in index.lines() {
        let Some(name) = line
            .strip_prefix("pub(crate) mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        else {
            continue;
        };
        let path = root.join(RULES_FOLDER).join(name).with_extension("rs");
        let source = std::fs::read_to_string(&path)?;
        let rule = parse(name, &source).ok_or_else(|| {
            format!(
                "{}: its header is not `Title: sentence.`, `Fields: …`, `Source: …`, and a table",
                path.display()
            )
        })?;
        rules.push(rule);
    }
    Ok(vec![Generated {
        path: PathBuf::from("docs/rules.md"),
        text: crate::wrap::wrap(&render(&rules)?),
    }])
}

fn parse(name: &str, source: &str) -> Option<Rule> {
    let header: Vec<&str> = source
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .collect();
    let header = header.join("\n");
    let (first, rest) = header.split_once("\n\nFields: ")?;
    let (title, sentence) = first.split_once(": ")?;
    let (fields, rest) = rest.split_once("\nSource: ")?;
    let (source, text) = rest.split_once("\n\n")?;
    text.starts_with('|').then(|| Rule {
        name: name.into(),
        title: title.into(),
        sentence: sentence.replace('\n', " "),
        fields: fields.replace('\n', " "),
        source: source.replace('\n', " "),
        text: text.into(),
    })
}

fn render(rules: &[Rule]) -> Result<String, std::fmt::Error> {
    let mut text = String::from(INTRODUCTION);
    text.push_str("| rule | decides | file | fields |\n|---|---|---|---|\n");
    for rule in rules {
        let Rule {
            name,
            title,
            sentence,
            fields,
            ..
        } = rule;
        let (anchor, sentence) = (
            title.to_lowercase().replace(' ', "-"),
            sentence.trim_end_matches('.'),
        );
        writeln!(
            text,
            "| [{title}](#{anchor}) | {sentence} | `rules/{name}.rs` | {fields} |"
        )?;
    }
    for rule in rules {
        let Rule {
            name,
            title,
            sentence,
            fields,
            source,
            text: table,
        } = rule;
        let sentence = capitalised(sentence);
        write!(
            text,
            "\n## {title}\n\n{sentence}\n\nFile: `{RULES_FOLDER}/{name}.rs`. Fields: {fields}. Source: {source}.\n\n{table}\n"
        )?;
    }
    Ok(text)
}

fn capitalised(sentence: &str) -> String {
    let mut chars = sentence.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn every_rule_has_a_header_cases_and_a_place_in_the_index() {
        let listed = std::fs::read_to_string(root().join("docs/rules.md")).unwrap();
        let mut found = 0;
        for entry in std::fs::read_dir(root().join(RULES_FOLDER)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            let source = std::fs::read_to_string(&path).unwrap();
            if !source.contains("pub(crate) fn decide") && !source.contains("pub(crate) const fn decide") {
                continue;
            }
            found += 1;
            assert!(listed.contains(&format!("`rules/{name}.rs`")), "{name}");
            assert!(
                root().join("ipu-core/testdata/rules").join(&name).is_dir(),
                "{name} has no cases"
            );
        }
        assert!(found >= 12);
    }
}
