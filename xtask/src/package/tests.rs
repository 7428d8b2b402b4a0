//! The bundle of placeholder programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::*;

/// Writes a placeholder for each program.
fn placeholders() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for program in PRODUCT.into_iter().chain(CLIENTS) {
        fs::write(folder.path().join(program), format!("program {program}\n")).unwrap();
    }
    folder
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn two_bundles_of_the_same_programs_have_equal_bytes() {
    let bundles: Vec<Vec<u8>> = [placeholders(), placeholders()]
        .iter()
        .map(|programs| {
            let files = contents::files(&root(), programs.path()).unwrap();
            gzip(&tar(NAME, &files).unwrap()).unwrap()
        })
        .collect();
    assert!(bundles[0] == bundles[1]);
}

#[test]
fn the_bundle_has_the_documented_contents() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let chart = format!("{NAME}.tgz");
    for path in [
        "CRDs/graphcore.ai_ipujobs.yaml",
        "CRDs/graphcore.ai_ipupartitions.yaml",
        "docs/helm.md",
        &chart,
        "ipu-operator-images.tar.gz",
        "ipu-operator.cksm",
        "ipu-operator-helm-chart.cksm",
        "SHA256SUMS",
        "sbom.cdx.json",
        "LICENSE",
        "deploy/kubernetes/kustomization.yaml",
        "deploy/helm/ipu-operator/Chart.yaml",
        "deploy/krew/ipu.yaml",
        "kubectl-ipu-linux-amd64.tar.gz",
        "bin/ipuctl",
        "bin/kubectl-ipu",
        "bin/kubectl_complete-ipu",
        "examples/kubernetes/training.yaml",
    ] {
        assert!(files.contains_key(path), "{path}");
    }
    let readme = String::from_utf8_lossy(&files["README.md"].content).into_owned();
    assert!(readme.contains(&chart), "{readme}");
    assert!(!readme.contains("VERSION"), "{readme}");
    // Each path in the table of the README exists.
    let first = readme.lines().filter(|line| line.starts_with("| `"));
    for path in first.flat_map(|line| line.split('|').nth(1).unwrap().split(", ")) {
        let path = path.trim().trim_matches('`');
        let is_there = files
            .keys()
            .any(|file| file == path || path.ends_with('/') && file.starts_with(path));
        assert!(is_there, "{path}");
    }
    let names = String::from_utf8_lossy(&files["images.txt"].content).into_owned();
    assert_eq!(names.lines().count(), PRODUCT.len(), "{names}");
}

#[test]
fn the_folders_of_the_bundle_have_exactly_the_tracked_files() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let mut command = Command::new("git");
    command.args(["ls-files", "-z", "--"]).args(contents::FOLDERS);
    let output = command.current_dir(root()).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let tracked: BTreeMap<String, Vec<u8>> = output
        .split_terminator('\0')
        // Hidden files configure tools of the repository.
        .filter(|path| !path.contains("/."))
        .map(|path| (path.to_owned(), fs::read(root().join(path)).unwrap()))
        .collect();
    assert!(tracked.len() > 100, "{:?}", tracked.keys());
    let is_copied = |path: &str| {
        contents::FOLDERS
            .iter()
            .any(|folder| path.starts_with(&format!("{folder}/")))
    };
    let copied: Vec<&String> = files.keys().filter(|path| is_copied(path)).collect();
    assert_eq!(copied, tracked.keys().collect::<Vec<_>>());
    for (path, content) in &tracked {
        assert!(files[path].content == *content, "{path}");
    }
    let definition = &tracked["deploy/crd/ipujobs.graphcore.ai.yaml"];
    assert!(files["CRDs/graphcore.ai_ipujobs.yaml"].content == *definition);
}

#[test]
fn the_chart_of_the_bundle_is_that_of_its_folder() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("chart.tgz");
    fs::write(&archive, &files[&format!("{NAME}.tgz")].content).unwrap();
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).current_dir(folder.path());
    assert!(unpack.status().unwrap().success());
    let unpacked = contents::folder_files(&folder.path().join("ipu-operator")).unwrap();
    let prefix = "deploy/helm/ipu-operator/";
    let chart: Vec<_> = files
        .iter()
        .filter(|(path, _)| path.starts_with(prefix))
        .collect();
    assert_eq!(unpacked.len(), chart.len());
    for (path, file) in chart {
        assert!(unpacked[&path[prefix.len()..]].content == file.content, "{path}");
    }
}

#[test]
fn the_unpacked_bundle_has_its_checksums() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("bundle.tar.gz");
    fs::write(&archive, gzip(&tar(NAME, &files).unwrap()).unwrap()).unwrap();
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&archive).current_dir(folder.path());
    assert!(unpack.status().unwrap().success());
    for sums in ["SHA256SUMS", "ipu-operator.cksm", "ipu-operator-helm-chart.cksm"] {
        let mut check = Command::new("sha256sum");
        check
            .args(["--check", "--quiet", sums])
            .current_dir(folder.path().join(NAME));
        assert!(check.status().unwrap().success(), "{sums}");
    }
}

#[test]
fn krew_finds_the_program_in_the_archive_with_the_checksum_of_the_manifest() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let archive = &files["kubectl-ipu-linux-amd64.tar.gz"].content;
    let manifest = String::from_utf8_lossy(&files["deploy/krew/ipu.yaml"].content).into_owned();
    assert!(
        manifest.contains(&format!("\n    sha256: {}\n", sha256(archive))),
        "{manifest}"
    );
    assert!(!manifest.contains('#'), "{manifest}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plugin.tar.gz");
    fs::write(&path, archive).unwrap();
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(&path).current_dir(folder.path());
    assert!(unpack.status().unwrap().success());
    // The names under `files` and `bin` of the manifest.
    for name in ["kubectl-ipu", "kubectl_complete-ipu", "LICENSE"] {
        assert!(
            manifest.contains(&format!("{{from: {name}, to: .}}")),
            "{manifest}"
        );
        assert!(folder.path().join(name).exists(), "{name}");
    }
    let program = folder.path().join("kubectl-ipu");
    assert_eq!(fs::read(&program).unwrap(), files["bin/kubectl-ipu"].content);
    assert_eq!(
        fs::metadata(&program).unwrap().permissions().mode() & 0o777,
        0o755
    );
    assert_eq!(files["bin/kubectl-ipu"].mode, 0o755);
}

#[test]
fn the_bill_of_materials_has_the_crates_of_the_programs_only() {
    let programs = placeholders();
    let files = contents::files(&root(), programs.path()).unwrap();
    let document: Value = serde_json::from_slice(&files["sbom.cdx.json"].content).unwrap();
    let components = document["components"].as_array().unwrap();
    let find = |name: &str| components.iter().find(|component| component["name"] == name);
    let operator = find("ipu-operator").unwrap();
    assert_eq!(operator["type"], "application");
    assert_eq!(
        operator["hashes"][0]["content"],
        sha256(b"program ipu-operator\n")
    );
    let kube = find("kube").unwrap();
    assert_eq!(kube["hashes"][0]["content"].as_str().unwrap().len(), 64, "{kube}");
    assert!(kube["licenses"][0]["expression"].is_string(), "{kube}");
    // Dependencies of tests and of the generator.
    for name in ["proptest", "protox", "xtask", "criterion"] {
        assert!(find(name).is_none(), "{name}");
    }
}

#[test]
fn the_dockerfile_has_the_settings_of_the_images() {
    let text = fs::read_to_string(root().join("deploy/images/Dockerfile")).unwrap();
    let stages: Vec<&str> = text.split("FROM scratch AS ").skip(1).collect();
    assert_eq!(stages.len(), PRODUCT.len());
    for program in PRODUCT {
        let expected = format!(
            "{program}\nCOPY {program} /usr/bin/\nUSER 65532:65532\nENTRYPOINT [\"/usr/bin/{program}\"]"
        );
        assert!(
            stages.iter().any(|stage| stage.trim_end() == expected),
            "{program}"
        );
    }
}
