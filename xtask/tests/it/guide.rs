//! The guide of embedders is enough: a crate that is put together from its pages alone, outside of the
//! workspace, compiles and passes its own tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::tidy::{read, root};

#[test]
fn a_crate_written_from_the_guide_alone_compiles_and_proves_its_parts() {
    let parent = std::env::temp_dir().join(format!("guide-{}", std::process::id()));
    let _ = fs::remove_dir_all(&parent);
    // A checkout next to the crate, as the guide describes it.
    let scratch = parent.join("my-scheduler");
    fs::create_dir_all(&scratch).unwrap();
    std::os::unix::fs::symlink(root(), parent.join("ipu-sdk")).unwrap();
    let files = files_of_the_guide();
    for (name, text) in &files {
        let path = scratch.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let mut manifest = files
        .iter()
        .find(|(name, _)| name == "Cargo.toml")
        .unwrap()
        .1
        .clone();
    manifest.push_str("\n[workspace]\n");
    // The profile of the workspace, so that what it has built is used again.
    let (_, profile) = read(&root().join("Cargo.toml"))
        .split_once("[profile.dev]")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    manifest.push_str(&format!("\n[profile.dev]{profile}"));
    fs::write(scratch.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root().join("Cargo.lock"), scratch.join("Cargo.lock")).unwrap();

    let mut cargo = Command::new(env!("CARGO"));
    // Build scripts of dependencies, which the workspace shares, run again when these variables change.
    let of_this_test = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    });
    of_this_test.for_each(|name| {
        cargo.env_remove(name);
    });
    let output = cargo
        .args(["test", "--offline", "--quiet"])
        .env("CARGO_TARGET_DIR", target())
        .current_dir(&scratch)
        .output()
        .unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("5 passed"), "{printed}");
    fs::remove_dir_all(parent).unwrap();
}

/// In the documentation of the crate, other definitions of links replace those of the pages.
#[test]
fn the_links_of_the_guide_lead_to_the_same_pages_from_the_documentation_of_the_crate() {
    let module = read(&root().join("ipu-allocator/src/guide.rs"));
    let modules = module.lines().find(|line| line.starts_with("pages!(")).unwrap();
    for page in pages() {
        let (name, text) = (page.file_stem().unwrap().to_str().unwrap(), read(&page));
        assert!(modules.contains(name), "{name} is not in guide.rs");
        assert!(!text.contains(".md)"), "{name}: use definitions of links");
        for definition in text.lines().filter(|line| line.starts_with('[')) {
            let Some((label, address)) = definition.split_once("]: ") else {
                continue;
            };
            let address = match address.strip_prefix("../") {
                Some(page) => format!("https://github.com/ipu-sdk/ipu-sdk/blob/main/docs/{page}"),
                None => format!("crate::guide::{}", address.replacen(".md", "", 1)),
            };
            let expected = format!("/// {label}]: {address}\n");
            assert!(module.contains(&expected), "{name}: guide.rs lacks {expected}");
        }
    }
}

/// The pages of the guide.
pub(crate) fn pages() -> Vec<PathBuf> {
    let pages = fs::read_dir(root().join("docs/embed")).unwrap();
    pages.map(|page| page.unwrap().path()).collect()
}

/// The blocks of the pages that say which file they are.
fn files_of_the_guide() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for page in pages() {
        let text = read(&page);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some((_, name)) = line
                .strip_prefix("```")
                .and_then(|fence| fence.split_once("file:"))
            else {
                continue;
            };
            let code: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            files.push((name.to_owned(), code.join("\n") + "\n"));
        }
    }
    files
}

/// Where this build of the workspace goes.
fn target() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(3).unwrap().to_owned()
}
