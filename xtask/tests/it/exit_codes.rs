//! The exit codes of `ipuctl` and `kubectl ipu`: one meaning per number, and each in the reference page.

use std::collections::BTreeMap;

use crate::tidy::{read, root};

/// Returns the numbers by the names of the enum in `services/PROGRAM/src/exit_code.rs`.
fn numbers(program: &str) -> BTreeMap<String, u8> {
    let source = read(&root().join(format!("services/{program}/src/exit_code.rs")));
    let arms = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Self::")?.split_once(" => "));
    arms.filter_map(|(name, number)| Some((name.to_owned(), number.strip_suffix(',')?.parse().ok()?)))
        .collect()
}

#[test]
fn both_programs_have_the_same_exit_codes_and_document_them() {
    let (local, plugin) = (numbers("ipuctl"), numbers("kubectl-ipu"));
    assert!(plugin.len() >= 9, "{plugin:?}");
    for (name, number) in &plugin {
        assert_eq!(local.get(name), Some(number), "{name}");
    }
    for (program, numbers) in [("ipuctl", &local), ("kubectl-ipu", &plugin)] {
        let page = read(&root().join(format!("docs/reference/{program}.md")));
        let (_, rest) = page.split_once("Exit codes:\n").unwrap();
        let list: Vec<_> = rest.lines().map_while(|line| line.strip_prefix("  ")).collect();
        for (name, number) in numbers {
            let number = number.to_string();
            assert!(
                list.iter()
                    .any(|line| line.split_whitespace().next() == Some(&number)),
                "{program}: {name}, {number}: {list:?}"
            );
        }
    }
}
