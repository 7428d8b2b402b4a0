//! Who holds or asks.

use std::fmt;

use ipu_core::Owner;
use serde::{Deserialize, Serialize};

/// Who holds or asks, in one level.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct OwnerDocument {
    /// What the owner is, such as `IPUJob`: 1 to 63 printable characters without blanks.
    pub kind: String,
    /// The namespace that it is counted in.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What tells it from an earlier one of the same name.
    pub uid: String,
}

impl OwnerDocument {
    /// An owner.
    #[must_use]
    pub fn new(
        kind: impl Into<String>,
        namespace: impl Into<String>,
        name: impl Into<String>,
        uid: impl Into<String>,
    ) -> Self {
        Self {
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

impl From<&Owner> for OwnerDocument {
    fn from(owner: &Owner) -> Self {
        Self::new(
            &owner.kind,
            owner.job.namespace.to_string(),
            owner.job.name.to_string(),
            owner.job.uid.to_string(),
        )
    }
}

/// `IPUJob default/mnist`: without the uid, which people do not go by.
impl fmt::Display for OwnerDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}
