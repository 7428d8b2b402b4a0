//! The software bill of materials: the crates of the programs as CycloneDX, from `cargo metadata`. It has no
//! time and no serial number, so that the bundle is reproducible.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use ipu_test_cluster::{CLIENTS, PRODUCT, sha256};
use serde_json::{Value, json};

use super::VERSION;

/// Returns the document.
pub(super) fn document(root: &Path, programs: &Path) -> Result<String, Box<dyn Error>> {
    let metadata = metadata(root)?;
    let packages: BTreeMap<&str, &Value> = array(&metadata["packages"])
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let dependencies = dependencies(&metadata);
    let roots = packages
        .iter()
        .filter(|(_, package)| package["name"].as_str().and_then(program).is_some())
        .map(|(id, _)| *id);
    let reachable = reachable(roots, &dependencies);
    let sums = checksums(&fs::read_to_string(root.join("Cargo.lock"))?);

    let mut components = BTreeMap::new();
    let mut graph = BTreeMap::new();
    for id in &reachable {
        let package = packages.get(id).ok_or("cargo metadata lists no such package")?;
        let url = package_url(package);
        let needed = dependencies.get(id).into_iter().flatten();
        let needed: BTreeSet<String> = needed
            .filter_map(|id| packages.get(id).map(|package| package_url(package)))
            .collect();
        graph.insert(url.clone(), json!({"ref": url, "dependsOn": needed}));
        components.insert(url, component(package, &sums, programs)?);
    }
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "ipu-operator bundle", "version": VERSION}},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": graph.into_values().collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn metadata(root: &Path) -> Result<Value, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            &platform,
        ])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the packages that each package uses at run time.
fn dependencies(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let nodes = array(&metadata["resolve"]["nodes"]);
    let is_normal = |dep: &&Value| array(&dep["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
    nodes
        .iter()
        .filter_map(|node| {
            let used = array(&node["deps"]).iter().filter(is_normal);
            Some((
                node["id"].as_str()?,
                used.filter_map(|dep| dep["pkg"].as_str()).collect(),
            ))
        })
        .collect()
}

fn reachable<'a>(
    roots: impl Iterator<Item = &'a str>,
    dependencies: &BTreeMap<&'a str, Vec<&'a str>>,
) -> BTreeSet<&'a str> {
    let mut reachable = BTreeSet::new();
    let mut pending: Vec<&str> = roots.collect();
    while let Some(id) = pending.pop() {
        if reachable.insert(id) {
            pending.extend(dependencies.get(id).into_iter().flatten());
        }
    }
    reachable
}

/// Returns the program of a package, if the bundle has it.
fn program(package: &str) -> Option<&'static str> {
    PRODUCT
        .into_iter()
        .chain(CLIENTS)
        .find(|program| *program == package)
}

fn component(
    package: &Value,
    sums: &BTreeMap<String, String>,
    programs: &Path,
) -> Result<Value, Box<dyn Error>> {
    let name = package["name"].as_str().unwrap_or_default();
    let program = program(name);
    let url = package_url(package);
    let mut component = json!({
        "type": if program.is_some() { "application" } else { "library" },
        "bom-ref": url,
        "name": name,
        "version": package["version"],
        "purl": url,
    });
    let sum = match program {
        Some(program) => Some(sha256(&fs::read(programs.join(program))?)),
        None => sums.get(&url).cloned(),
    };
    if let Some(sum) = sum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    if let Some(license) = package["license"].as_str() {
        // Older crates write a slash.
        let expression = license.replace('/', " OR ").replace("  ", " ");
        component["licenses"] = json!([{"expression": expression}]);
    }
    Ok(component)
}

fn package_url(package: &Value) -> String {
    let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
    format!("pkg:cargo/{}@{}", field("name"), field("version"))
}

/// Returns the checksums of `Cargo.lock` by package URL.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |block: &str, key: &str| {
        let line = block
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    lock.split("[[package]]")
        .filter_map(|block| {
            let url = format!("pkg:cargo/{}@{}", value(block, "name")?, value(block, "version")?);
            Some((url, value(block, "checksum")?))
        })
        .collect()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
