//! House rules that neither the compiler nor clippy checks.

use std::fs;
use std::path::{Path, PathBuf};

/// The crates that export C symbols, which is `unsafe`, each in one module: Slurm's plugin, and WebAssembly
/// modules. Cargo cannot inherit lints and change one, so their manifests repeat the workspace's.
const UNSAFE: [(&str, &str); 3] = [
    ("bindings/wasm", "src/ffi.rs"),
    ("examples/policy-wasm", "src/lib.rs"),
    ("services/slurm-spank", "src/ffi.rs"),
];

#[test]
fn every_source_file_begins_with_its_purpose() {
    for path in sources() {
        let text = read(&path);
        assert!(
            text.starts_with("//! "),
            "{} does not begin with `//! `",
            path.display()
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file does not contain them.
    let markers = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for path in sources() {
        let text = read(&path);
        for marker in markers {
            assert!(!text.contains(marker), "{} says {marker}", path.display());
        }
        let ignored = text.contains(concat!("#[", "ignore"));
        assert!(!ignored, "{} has an ignored test", path.display());
    }
}

#[test]
fn a_library_names_what_it_exports() {
    for manifest in manifests() {
        let root = manifest.with_file_name("src").join("lib.rs");
        if !root.exists() {
            continue;
        }
        for line in read(&root).lines() {
            let glob = line.starts_with("pub use") && line.ends_with("::*;");
            assert!(!glob, "{}: {line}: re-export by name", root.display());
        }
    }
}

#[test]
fn every_crate_takes_lints_and_versions_from_the_workspace() {
    for manifest in manifests() {
        let text = read(&manifest);
        if UNSAFE
            .iter()
            .any(|(name, _)| manifest == root().join(name).join("Cargo.toml"))
        {
            assert_eq!(
                lints(&text, "[lints"),
                lints(&read(&root().join("Cargo.toml")), "[workspace.lints")
                    .replace("unsafe_code = \"forbid\"", "unsafe_code = \"deny\""),
                "{}: every lint but `unsafe_code` equals the workspace's",
                manifest.display()
            );
        } else {
            assert!(
                text.contains("[lints]\nworkspace = true"),
                "{} lacks `[lints] workspace = true`",
                manifest.display()
            );
        }
        let mut section = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
                continue;
            }
            if !section.ends_with("dependencies]") || !line.contains('=') {
                continue;
            }
            // A development dependency on a member goes by path alone: published crates cannot depend in
            // circles.
            let by_path =
                section == "[dev-dependencies]" && line.contains("path =") && !line.contains("version");
            assert!(
                by_path || line.contains("workspace = true"),
                "{}: `{line}` names its own version: put it in the root manifest",
                manifest.display()
            );
        }
    }
}

#[test]
fn unsafe_code_is_in_one_module_of_a_crate() {
    let keyword = concat!("unsafe", "_code");
    // The workspace's lint finds it in all other crates, and cannot be lifted there.
    for (name, module) in UNSAFE {
        let folder = root().join(name);
        for path in sources().into_iter().filter(|path| path.starts_with(&folder)) {
            let lifts = read(&path).contains(keyword);
            assert_eq!(lifts, path == folder.join(module), "{}", path.display());
        }
    }
}

#[test]
fn every_direct_dependency_says_why_it_is_here() {
    let why = read(&root().join("docs/dev/dependencies.md"));
    let manifest = read(&root().join("Cargo.toml"));
    let table = manifest
        .split("[workspace.dependencies]\n")
        .nth(1)
        .and_then(|rest| rest.split("\n[").next())
        .unwrap();
    for line in table
        .lines()
        .filter(|line| line.contains('=') && !line.contains("path ="))
    {
        let name = line.split([' ', '=']).next().unwrap();
        assert!(
            why.contains(&format!("`{name}`")),
            "docs/dev/dependencies.md does not mention `{name}`"
        );
    }
}

#[test]
fn every_diagram_is_rendered_from_its_source() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("docs/diagrams")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() == Some("mmd".as_ref()) {
            let metadata = format!("<metadata><![CDATA[{}]]></metadata>", read(&path));
            let rendered = read(&path.with_extension("svg"));
            assert!(
                rendered.contains(&metadata),
                "{} has changed: render it",
                path.display()
            );
            count += 1;
        }
    }
    assert!(count > 0);
}

/// Returns the lines of the tables `<prefix>.rust]` and `<prefix>.clippy]`.
fn lints(manifest: &str, prefix: &str) -> String {
    let mut section = false;
    let mut lines = String::new();
    for line in manifest.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('[') {
            section = line.starts_with(prefix);
            continue;
        }
        if section {
            lines.push_str(line);
            lines.push('\n');
        }
    }
    assert!(
        lines.contains("unsafe_code") && lines.contains("unwrap_used"),
        "{lines}"
    );
    lines
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// The manifests of all members: the folders of the root, and of these folders.
fn manifests() -> Vec<PathBuf> {
    let folders = ["", "bindings", "examples", "services", "tests"].map(|name| root().join(name));
    let found: Vec<PathBuf> = folders
        .iter()
        .filter(|folder| folder.exists())
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path().join("Cargo.toml"))
        .filter(|manifest| manifest.exists())
        .collect();
    assert!(found.len() >= 7, "{found:?}");
    found
}

/// Every Rust file of the members, except generated ones.
pub(crate) fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = manifests()
        .iter()
        .flat_map(|manifest| {
            ["src", "tests", "examples", "benches"].map(|name| manifest.with_file_name(name))
        })
        .filter(|folder| folder.exists())
        .collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path.file_name() != Some("generated".as_ref()) {
                folders.push(path);
            } else if path.extension() == Some("rs".as_ref()) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty());
    found
}
