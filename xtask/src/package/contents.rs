//! The files of the bundle.

use std::error::Error;
use std::fs;
use std::path::Path;

use ipu_test_cluster::{CLIENTS, oci_archive, scratch_images, sha256};

use super::{File, Files, NAME, VERSION, gzip, plugin, sbom, tar};

/// Folder of the chart, and of the folder in its archive.
const CHART: (&str, &str) = ("deploy/helm/ipu-operator", "ipu-operator");

/// Manifest of the kubectl plugin for krew.
const MANIFEST: &str = "deploy/krew/ipu.yaml";

/// Program by which kubectl completes `kubectl ipu`.
const COMPLETER: &str = "deploy/krew/kubectl_complete-ipu";

/// Archive of the images.
const IMAGES: &str = "ipu-operator-images.tar.gz";

/// Folders that the bundle has under the same path, so that the commands of the guides work in it.
pub(super) const FOLDERS: [&str; 6] = [
    "deploy/crd",
    "deploy/helm",
    "deploy/kubernetes",
    "deploy/simulator",
    "docs",
    "examples",
];

/// Returns the files of the bundle with the static programs of the folder `programs`.
pub(super) fn files(root: &Path, programs: &Path) -> Result<Files, Box<dyn Error>> {
    let mut files = Files::new();
    for folder in FOLDERS {
        let content = folder_files(&root.join(folder))?;
        files.extend(
            content
                .into_iter()
                .map(|(path, file)| (format!("{folder}/{path}"), file)),
        );
    }
    for kind in ["ipujobs", "ipupartitions"] {
        let definition = fs::read(root.join(format!("deploy/crd/{kind}.graphcore.ai.yaml")))?;
        add(&mut files, &format!("CRDs/graphcore.ai_{kind}.yaml"), definition);
    }
    let license = fs::read(root.join("LICENSE"))?;
    for program in CLIENTS {
        let content = fs::read(programs.join(program))?;
        files.insert(format!("bin/{program}"), File { mode: 0o755, content });
    }
    let completer = fs::read(root.join(COMPLETER))?;
    let plugin = plugin::archive(&files["bin/kubectl-ipu"].content, &completer, &license)?;
    let completer = File {
        mode: 0o755,
        content: completer,
    };
    files.insert("bin/kubectl_complete-ipu".into(), completer);
    let template = fs::read_to_string(root.join(MANIFEST))?;
    add(
        &mut files,
        MANIFEST,
        plugin::manifest(&template, &plugin)?.into_bytes(),
    );
    add(&mut files, plugin::ARCHIVE, plugin);
    add(&mut files, "LICENSE", license);
    let readme = fs::read_to_string(root.join("deploy/bundle/README.md"))?;
    add(
        &mut files,
        "README.md",
        readme.replace("VERSION", VERSION).into_bytes(),
    );

    let chart = gzip(&tar(CHART.1, &folder_files(&root.join(CHART.0))?)?)?;
    let chart_name = format!("{NAME}.tgz");
    let images = scratch_images(programs);
    let names: String = images.iter().map(|image| format!("{}\n", image.name())).collect();
    let images = gzip(&oci_archive(&images)?)?;
    add(
        &mut files,
        "ipu-operator.cksm",
        checksum(IMAGES, &images).into_bytes(),
    );
    let chart_sum = checksum(&chart_name, &chart).into_bytes();
    add(&mut files, "ipu-operator-helm-chart.cksm", chart_sum);
    add(&mut files, &chart_name, chart);
    add(&mut files, IMAGES, images);
    add(&mut files, "images.txt", names.into_bytes());
    add(
        &mut files,
        "sbom.cdx.json",
        sbom::document(root, programs)?.into_bytes(),
    );

    let sums: String = files
        .iter()
        .map(|(path, file)| checksum(path, &file.content))
        .collect();
    add(&mut files, "SHA256SUMS", sums.into_bytes());
    Ok(files)
}

fn add(files: &mut Files, path: &str, content: Vec<u8>) {
    files.insert(path.to_owned(), File { mode: 0o644, content });
}

/// Returns the line of a file, as `sha256sum --check` reads it.
fn checksum(path: &str, content: &[u8]) -> String {
    format!("{}  {path}\n", sha256(content))
}

/// Returns the files of a folder, without hidden ones.
pub(super) fn folder_files(folder: &Path) -> Result<Files, Box<dyn Error>> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))? {
        let entry = entry?;
        let name = entry
            .file_name()
            .into_string()
            .map_err(|_| "a file name is not UTF-8")?;
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            let inner = folder_files(&entry.path())?;
            files.extend(
                inner
                    .into_iter()
                    .map(|(path, file)| (format!("{name}/{path}"), file)),
            );
        } else {
            add(&mut files, &name, fs::read(entry.path())?);
        }
    }
    Ok(files)
}
