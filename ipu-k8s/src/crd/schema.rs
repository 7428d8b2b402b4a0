//! Which fields an IPUJob has, of what kind each is, what it means and what the custom resource asks of it: one table, from
//! which manifests are checked and the definition of the resource and its reference page are made.

mod spec;
mod status;
mod validate;

pub(super) use self::spec::{IPU_JOB, MAX_COUNT, SPEC};
pub(super) use self::status::STATUS;
pub(super) use self::validate::prune;

/// A field and what it may hold.
#[derive(Clone, Copy)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: FieldKind,
    /// What it means, for `kubectl explain` and the reference.
    pub(super) about: &'static str,
    pub(super) wire: WireFormat,
    pub(super) presence: FieldPresence,
}

/// What a field may hold.
#[derive(Clone, Copy)]
pub(super) enum FieldKind {
    /// A number or a text: the custom resource 1.2.0 wants some numbers as strings.
    Scalar,
    Text,
    Flag,
    Texts,
    /// Texts by name.
    TextMap,
    Object(&'static [Field]),
    Objects(&'static [Field]),
    /// Kubernetes' own: an object that is not looked into here.
    Any,
}

/// What the custom resource asks of a field beyond its kind.
#[derive(Clone, Copy)]
pub(super) enum WireFormat {
    /// Nothing.
    Kind,
    /// A whole number of 32 bits in these bounds.
    Integer { least: i32, most: i32 },
    /// A whole number of 64 bits.
    Long,
    /// Any number.
    Float,
    /// A whole number from 1 up to this, bare or in quotes.
    Count { most: u32 },
    /// A power of two up to this, bare or in quotes.
    PowerOfTwo { most: u32 },
    /// A number, or a text.
    NumberOrText,
    /// A number, or a text that matches this.
    Pattern(&'static str),
    /// A text of 1 to this many printable ASCII characters without blanks, `"` and `\`.
    Token { most: usize },
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A moment, as RFC 3339 writes it.
    Time,
    /// What a Kubernetes Pod template is.
    PodTemplate,
    /// What the source of a variable is.
    EnvVarSource,
    /// Numbers by name.
    NumberMap,
    /// Whole numbers.
    Integers,
}

/// Whether a field has to be there, and what counts if it is not.
#[derive(Clone, Copy)]
pub(super) enum FieldPresence {
    Optional,
    Required,
    /// The API server stores this number.
    Number(i32),
    /// The API server stores this text.
    Text(&'static str),
}

/// A field that is described.
const fn field(name: &'static str, kind: FieldKind, about: &'static str) -> Field {
    Field {
        name,
        kind,
        about,
        wire: WireFormat::Kind,
        presence: FieldPresence::Optional,
    }
}

/// A field of Kubernetes' own.
const fn known(name: &'static str, kind: FieldKind) -> Field {
    field(name, kind, "")
}

impl Field {
    const fn wire(mut self, wire: WireFormat) -> Self {
        self.wire = wire;
        self
    }

    /// A whole number from `least` on.
    const fn from(self, least: i32) -> Self {
        self.wire(WireFormat::Integer {
            least,
            most: i32::MAX,
        })
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

    /// The paths of all fields, but for those that are Kubernetes' own.
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
    fn every_field_is_in_the_guide() {
        let mut all = Vec::new();
        paths("spec.", SPEC, &mut all);
        all.retain(|path| !GUIDE.contains(&format!("`{path}`")));
        // Only the parts of a group are explained.
        all.retain(|path| !GUIDE.contains(&format!("`{path}.")));
        assert!(all.is_empty(), "not in docs/ipujob.md: {all:?}");
    }

    #[test]
    fn the_guide_speaks_of_no_field_that_is_none() {
        let mut all = Vec::new();
        paths("", IPU_JOB, &mut all);
        let words = GUIDE.split('`').skip(1).step_by(2);
        let mut unknown: Vec<_> = words
            .filter(|word| word.starts_with("spec.") || word.starts_with("metadata."))
            .collect();
        unknown.retain(|word| !all.iter().any(|path| path == word));
        assert!(
            unknown.is_empty(),
            "fields of docs/ipujob.md that are none: {unknown:?}"
        );
    }
}
