//! Positions of fields in the text of a manifest.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The documents of a file, as far as they are needed to find a field.
#[derive(Debug, Default)]
pub(super) struct Positions(Vec<Spanned<Node>>);

#[derive(Debug)]
enum Node {
    Map(Vec<(Spanned<String>, Self)>),
    List(Vec<Self>),
    Scalar,
}

impl Positions {
    /// Reads the documents; none if the text is a sequence of JSON documents, which is not YAML.
    pub(super) fn read(text: &str) -> Self {
        Self(serde_saphyr::from_multiple(text).unwrap_or_default())
    }

    /// Returns line and column of a field such as `spec.workers.template.spec.containers[0].image`, or of the
    /// field that it would be in, in the document that begins at `line`. A field of a `List` has none.
    pub(super) fn find(&self, line: u64, field: &str) -> Option<(u64, u64)> {
        let mut documents = self.0.iter();
        let document = documents.find(|document| document.defined.line() == line)?;
        document.value.find(field)
    }
}

impl Node {
    fn find(&self, path: &str) -> Option<(u64, u64)> {
        match self {
            Self::Scalar => None,
            Self::Map(entries) => entries.iter().find_map(|(key, child)| {
                // A key may contain dots.
                let rest = path.strip_prefix(key.value.as_str())?;
                if !(rest.is_empty() || rest.starts_with(['.', '['])) {
                    return None;
                }
                let own = (key.defined.line(), key.defined.column());
                Some(child.find(rest.trim_start_matches('.')).unwrap_or(own))
            }),
            Self::List(items) => {
                let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
                items
                    .get(index.parse::<usize>().ok()?)?
                    .find(rest.trim_start_matches('.'))
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

macro_rules! scalars {
    ($($visit:ident: $kind:ty),+) => {
        $(fn $visit<E>(self, _: $kind) -> Result<Node, E> {
            Ok(Node::Scalar)
        })+
    };
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Map(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar)
    }

    scalars! {visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str}
}
