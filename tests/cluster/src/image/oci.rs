//! Archives of images in the layout of the Open Container Initiative, which containerd, Docker and `skopeo`
//! read. Equal images give equal bytes: no entry has a time.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Image;
use crate::digest::sha256;
use crate::error::ClusterError;
use crate::tar::TarArchive;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Content by digest.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Adds content, and returns its descriptor.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = sha256(&content);
        let descriptor = json!({
            "mediaType": media_type,
            "digest": format!("sha256:{digest}"),
            "size": content.len(),
        });
        self.0.insert(digest, content);
        descriptor
    }
}

/// Returns an archive with these images. Each is found by its name, such as `ipu-operator:0.1.0`.
///
/// # Errors
///
/// [`ClusterError::Step`] if a file of an image cannot be read.
pub fn oci_archive(images: &[Image]) -> Result<Vec<u8>, ClusterError> {
    let mut blobs = Blobs::default();
    let mut manifests = Vec::new();
    for image in images {
        let layer = image.layer()?;
        let config = image.config(&sha256(&layer)).to_string().into_bytes();
        let layer = blobs.add(LAYER, layer);
        let config = blobs.add(CONFIG, config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [layer],
        });
        let mut descriptor = blobs.add(MANIFEST, manifest.to_string().into_bytes());
        descriptor["annotations"] = json!({
            "io.containerd.image.name": full_name(image.name()),
            "org.opencontainers.image.ref.name": image.name(),
        });
        manifests.push(descriptor);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    archive(&blobs, &index.to_string())
        .map_err(|error| ClusterError::step("write an archive of images", error))
}

fn archive(blobs: &Blobs, index: &str) -> std::io::Result<Vec<u8>> {
    let mut archive = TarArchive::default();
    archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    archive.file("index.json", 0o644, index.as_bytes())?;
    archive.folder("blobs", 0o755)?;
    archive.folder("blobs/sha256", 0o755)?;
    for (digest, content) in &blobs.0 {
        archive.file(&format!("blobs/sha256/{digest}"), 0o644, content)?;
    }
    archive.finish()
}

/// Returns the name with the registry that containerd assumes.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((registry, _)) if registry.contains(['.', ':']) => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}
