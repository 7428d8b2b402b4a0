//! Rust code for the V-IPU wire messages, their proto3 JSON and their gRPC services, generated without
//! `protoc`.

use std::path::{Path, PathBuf};

use prost::Message as _;

use crate::Generated;

const OUTPUT_FOLDER: &str = "ipu-vipu-client/src/wire/generated";

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn std::error::Error>> {
    let folder = root.join("ipu-vipu-client/proto");
    let descriptors = protox::compile(["vipu_user.proto"], [&folder])?;
    let scratch = std::env::temp_dir().join(format!("ipu-xtask-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;

    tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .compile_well_known_types(true)
        .extern_path(".google.protobuf", "::pbjson_types")
        .btree_map(".")
        .out_dir(&scratch)
        .compile_fds(descriptors.clone())?;
    pbjson_build::Builder::new()
        .register_descriptors(&descriptors.encode_to_vec())?
        .btree_map(["."])
        .ignore_unknown_fields()
        .out_dir(&scratch)
        .build(&[".virmgrpc"])?;

    let mut files = Vec::new();
    for name in ["virmgrpc.rs", "virmgrpc.serde.rs"] {
        let text = std::fs::read_to_string(scratch.join(name))?;
        files.push(Generated {
            path: PathBuf::from(OUTPUT_FOLDER).join(name),
            text,
        });
    }
    std::fs::remove_dir_all(&scratch)?;
    Ok(files)
}
