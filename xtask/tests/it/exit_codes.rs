//! The exit codes of `ipuctl` and `kubectl ipu`: each in the reference page.

use std::collections::BTreeMap;

use crate::tidy::{read, root};

/// Returns the numbers of the exit codes, by their names.
fn numbers() -> BTreeMap<String, u8> {
    let source = read(&root().join("ipu-proxy-client/src/cli/exit_code.rs"));
    let arms = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "));
    arms.filter_map(|(name, number)| Some((name.to_owned(), number.strip_suffix(',')?.parse().ok()?)))
        .collect()
}

#[test]
fn both_programs_document_their_exit_codes() {
    let numbers = numbers();
    assert!(numbers.len() >= 9, "{numbers:?}");
    for program in ["ipuctl", "kubectl-ipu"] {
        let page = read(&root().join(format!("docs/reference/{program}.md")));
        let (_, rest) = page.split_once("Exit codes:\n").unwrap();
        let list: Vec<_> = rest.lines().map_while(|line| line.strip_prefix("  ")).collect();
        for (name, number) in &numbers {
            // No command of `kubectl ipu` requests a partition or runs a job.
            if program == "kubectl-ipu" && ["Idle", "Impossible"].contains(&&**name) {
                continue;
            }
            let number = number.to_string();
            assert!(
                list.iter()
                    .any(|line| line.split_whitespace().next() == Some(&number)),
                "{program}: {name}, {number}: {list:?}"
            );
        }
    }
}
