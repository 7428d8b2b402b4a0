//! Purity of the core: no dependency and no source line gives access to a clock, I/O, the environment,
//! threads or a randomly ordered map. `#![no_std]` lets the compiler enforce it; these tests protect that
//! attribute.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The allowed dependencies of the core, including derive macros, which run only in the compiler.
const ALLOWED: [&str; 10] = [
    "ipu-core",
    "proc-macro2",
    "quote",
    "serde",
    "serde_core",
    "serde_derive",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
];

/// Words that the core must not contain, even where the compiler accepts them.
const FORBIDDEN: [&str; 7] = [
    "HashMap",
    "HashSet",
    "Instant::",
    "SystemTime",
    "cfg_attr(",
    "include_str!",
    "option_env!",
];

/// The derives of JSON schemas, a feature that is not a default.
const SCHEMA: &str = "#[cfg_attr(feature = \"schema\", ";

/// Lines for the documentation only: the one that reads a file at compile time, and the feature by which
/// docs.rs shows which items need which feature.
const DOCUMENTATION: [&str; 2] = [
    "#[doc = include_str!(\"../README.md\")]",
    "#![cfg_attr(docsrs, feature(doc_cfg))]",
];

#[test]
fn the_core_depends_only_on_serde_and_thiserror() {
    let tree = cargo(&[
        "tree",
        "--offline",
        "--locked",
        "-p",
        "ipu-core",
        "-e",
        "normal",
        "--prefix",
        "none",
    ]);
    let found: BTreeSet<&str> = tree
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(found, BTreeSet::from(ALLOWED), "{tree}");
}

#[test]
fn the_manifest_disables_default_features() {
    let text = cargo(&[
        "metadata",
        "--offline",
        "--locked",
        "--no-deps",
        "--format-version",
        "1",
    ]);
    let metadata: serde_json::Value = serde_json::from_str(&text).unwrap();
    let core = metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|package| package["name"] == "ipu-core")
        .unwrap();
    let normal: Vec<&serde_json::Value> = core["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|dependency| dependency["kind"].is_null() && dependency["optional"] == false)
        .collect();
    let names: Vec<&str> = normal
        .iter()
        .filter_map(|dependency| dependency["name"].as_str())
        .collect();
    assert_eq!(names, ["serde", "thiserror"]);
    for dependency in normal {
        assert_eq!(dependency["uses_default_features"], false, "{dependency}");
        let features = dependency["features"].to_string();
        assert!(!features.contains("std"), "{dependency}");
    }
}

#[test]
fn no_std_is_unconditional_and_std_is_limited_to_tests() {
    let root = std::fs::read_to_string(source().join("lib.rs")).unwrap();
    assert!(root.lines().any(|line| line == "#![no_std]"));
    assert!(root.contains("#[cfg(test)]\nextern crate std;"));
    let declarations: usize = files(&source())
        .iter()
        .map(|path| {
            std::fs::read_to_string(path)
                .unwrap()
                .matches("extern crate std")
                .count()
        })
        .sum();
    assert_eq!(
        declarations, 1,
        "`extern crate std` belongs in lib.rs, under cfg(test)"
    );
}

#[test]
fn no_source_line_contains_a_forbidden_word() {
    for path in files(&source()) {
        let text = std::fs::read_to_string(&path).unwrap();
        let production = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in production.lines().enumerate() {
            if DOCUMENTATION.contains(&line) || line.trim_start().starts_with(SCHEMA) {
                continue;
            }
            let code = line.split("//").next().unwrap_or_default();
            let found = FORBIDDEN.iter().find(|word| code.contains(**word));
            assert_eq!(found, None, "{}:{}", path.display(), number + 1);
            assert!(
                !code.contains("std::"),
                "{}:{}: {line}",
                path.display(),
                number + 1
            );
        }
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    assert!(!found.is_empty(), "{}", folder.display());
    found
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
