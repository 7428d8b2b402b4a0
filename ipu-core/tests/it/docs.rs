//! Tests that code in guide pages matches its compiled source.

use std::path::Path;

/// Returns the first Rust block of a text.
fn rust_block(text: &str) -> String {
    let start = text.split_once("```rust\n").unwrap().1;
    start.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_placement_page_shows_the_policy_of_the_doc_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = std::fs::read_to_string(root.join("src/placement.rs")).unwrap();
    let page = std::fs::read_to_string(root.join("../docs/placement.md")).unwrap();
    let comment = source.split_once("As an example, `Spread`").unwrap().1;
    let lines = comment
        .lines()
        .skip_while(|line| *line != "/// ```")
        .skip(1)
        .take_while(|line| *line != "/// ```");
    let code: Vec<&str> = lines
        .map(|line| line.trim_start_matches("///").strip_prefix(' ').unwrap_or(""))
        .collect();
    assert_eq!(rust_block(&page).trim_end().lines().collect::<Vec<_>>(), code);
}
