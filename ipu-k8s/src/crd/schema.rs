//! The fields of an IPUJob with their kinds, meanings and CRD constraints: one table for the validation of
//! manifests, the generation of the CRD, and its reference page.

mod spec;
mod status;
mod validate;

pub(super) use self::spec::{IPU_JOB, MAX_COUNT, SPEC};
pub(super) use self::status::STATUS;
pub(super) use self::validate::prune;

/// A field of an IPUJob.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: FieldKind,
    /// Description for `kubectl explain` and the reference.
    pub(super) description: &'static str,
    pub(super) wire: WireFormat,
    pub(super) presence: FieldPresence,
}

/// Kind of value of a field.
#[derive(Clone, Copy)]
pub(super) enum FieldKind {
    /// A number or a string: the custom resource 1.2.0 requires some numbers as strings.
    Scalar,
    Text,
    Flag,
    Texts,
    /// Strings by name.
    TextMap,
    Object(&'static [Field]),
    Objects(&'static [Field]),
    /// An opaque object that Kubernetes defines.
    Any,
}

/// CRD constraint of a field beyond its kind.
#[derive(Clone, Copy)]
pub(super) enum WireFormat {
    /// No constraint.
    Kind,
    /// A 32-bit integer in these bounds.
    Integer { min: i32, max: i32 },
    /// A 64-bit integer.
    Long,
    /// Any number.
    Float,
    /// An integer from 1 to this maximum, as a number or a string.
    Count { max: u32 },
    /// A power of two up to this maximum, as a number or a string.
    PowerOfTwo { max: u32 },
    /// A number or a string.
    NumberOrText,
    /// A number, or a string that matches this pattern.
    Pattern(&'static str),
    /// A string of 1 to this many printable ASCII characters without blanks, `"` and `\`.
    Token { max: usize },
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// An RFC 3339 timestamp.
    Time,
    /// A pod template.
    PodTemplate,
    /// Source of an environment variable.
    EnvVarSource,
    /// Numbers by name.
    NumberMap,
    /// Integers.
    Integers,
}

/// Presence of a field: optional, required, or with a default.
#[derive(Clone, Copy)]
pub(super) enum FieldPresence {
    Optional,
    Required,
    /// Default number that the API server stores.
    Number(i32),
    /// Default string that the API server stores.
    Text(&'static str),
}

/// Creates a field with a description.
const fn field(name: &'static str, kind: FieldKind, description: &'static str) -> Field {
    Field {
        name,
        kind,
        description,
        wire: WireFormat::Kind,
        presence: FieldPresence::Optional,
    }
}

/// Creates a field that Kubernetes defines.
const fn kubernetes_field(name: &'static str, kind: FieldKind) -> Field {
    field(name, kind, "")
}

impl Field {
    const fn wire(mut self, wire: WireFormat) -> Self {
        self.wire = wire;
        self
    }

    /// Restricts the field to integers of at least `min`.
    const fn from(self, min: i32) -> Self {
        self.wire(WireFormat::Integer { min, max: i32::MAX })
    }

    const fn presence(mut self, presence: FieldPresence) -> Self {
        self.presence = presence;
        self
    }

    const fn required(self) -> Self {
        self.presence(FieldPresence::Required)
    }
}

#[cfg(test)]
mod tests {
    use super::FieldKind::{Any, Flag, Object, Objects, Scalar, Text, TextMap, Texts};
    use super::*;

    const GUIDE: &str = include_str!("../../../docs/ipujob.md");

    /// Collects the paths of all fields, except those that Kubernetes defines.
    fn paths(path: &str, fields: &[Field], to: &mut Vec<String>) {
        for field in fields {
            let path = format!("{path}{}", field.name);
            match &field.kind {
                Object(fields) | Objects(fields) => paths(&format!("{path}."), fields, to),
                Scalar | Text | Flag | Texts | TextMap | Any => {}
            }
            to.push(path);
        }
    }

    #[test]
    fn the_guide_documents_every_field() {
        let mut all = Vec::new();
        paths("spec.", SPEC, &mut all);
        all.retain(|path| !GUIDE.contains(&format!("`{path}`")));
        // The guide explains only the fields of a group.
        all.retain(|path| !GUIDE.contains(&format!("`{path}.")));
        assert!(all.is_empty(), "not in docs/ipujob.md: {all:?}");
    }

    #[test]
    fn the_guide_names_no_unknown_field() {
        let mut all = Vec::new();
        paths("", IPU_JOB, &mut all);
        let quoted = GUIDE.split('`').skip(1).step_by(2);
        let mut unknown: Vec<_> = quoted
            .filter(|word| word.starts_with("spec.") || word.starts_with("metadata."))
            .collect();
        unknown.retain(|word| !all.iter().any(|path| path == word));
        assert!(
            unknown.is_empty(),
            "unknown fields in docs/ipujob.md: {unknown:?}"
        );
    }
}
