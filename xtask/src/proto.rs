//! Rust code for the V-IPU wire messages, their proto3 JSON and their gRPC services, generated without
//! `protoc`.

use std::path::{Path, PathBuf};

use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto};

use crate::Generated;

/// Folder of the output, and its file.
const OUTPUT: (&str, &str) = ("ipu-vipu-client/src/wire/generated", "virmgrpc.rs");

pub(crate) fn generate(root: &Path) -> Result<Vec<Generated>, Box<dyn std::error::Error>> {
    let folder = root.join("ipu-vipu-client/proto");
    let descriptors = protox::compile(["vipu_user.proto"], [&folder])?;
    let scratch = std::env::temp_dir().join(format!("ipu-xtask-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)?;

    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute(".", "#[cfg(feature = \"grpc\")]")
        .server_mod_attribute(".", "#[cfg(feature = \"server\")]")
        .message_attribute(
            ".",
            "#[derive(serde::Serialize, serde::Deserialize)]\n#[serde(default)]",
        )
        .btree_map(".")
        .out_dir(&scratch);
    for file in descriptors
        .file
        .iter()
        .filter(|file| file.package() == "virmgrpc")
    {
        for message in &file.message_type {
            for (path, attribute) in json_attributes(".virmgrpc", message) {
                builder = builder.field_attribute(path, attribute);
            }
        }
    }
    builder.compile_fds(descriptors)?;

    let (folder, name) = OUTPUT;
    let text = std::fs::read_to_string(scratch.join(name))?;
    std::fs::remove_dir_all(&scratch)?;
    Ok(vec![Generated {
        path: PathBuf::from(folder).join(name),
        text,
    }])
}

/// Returns the path of each field of a message and of the messages in it, with the attribute of its JSON.
fn json_attributes(parent: &str, message: &DescriptorProto) -> Vec<(String, String)> {
    let path = format!("{parent}.{}", message.name());
    let fields = message.field.iter();
    let mut found: Vec<_> = fields
        .map(|field| (format!("{path}.{}", field.name()), json_attribute(field)))
        .collect();
    for nested in &message.nested_type {
        // The entries of a map have no type in Rust.
        if !nested.options.as_ref().is_some_and(|options| options.map_entry()) {
            found.extend(json_attributes(&path, nested));
        }
    }
    found
}

/// Returns the attribute of a field: it is omitted if it has its default, and has two names.
fn json_attribute(field: &FieldDescriptorProto) -> String {
    let (name, alias) = (field.json_name(), field.name());
    let mut attribute = format!("rename = \"{name}\", ");
    if alias != name {
        attribute += &format!("alias = \"{alias}\", ");
    }
    let type_name = field.type_name().rsplit('.').next().unwrap_or_default();
    match field.r#type() {
        Type::Enum => {
            attribute += &format!("with = \"crate::wire::json::EnumField::<crate::wire::{type_name}>\", ");
        }
        Type::Message if type_name == "Timestamp" => {
            attribute += "with = \"crate::wire::json::TimestampField\", ";
        }
        _ => {}
    }
    format!("#[serde({attribute}skip_serializing_if = \"crate::wire::json::is_default\")]")
}
