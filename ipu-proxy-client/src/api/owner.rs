//! Owners of partitions and requests.

use std::fmt;

use ipu_core::Owner;
use serde::{Deserialize, Serialize};

/// Owner of a partition or request, as a flat document.
///
/// ```
/// use ipu_proxy_client::OwnerDocument;
///
/// let owner = OwnerDocument::new("IPUJob", "default", "mnist", "1");
/// assert_eq!(owner.to_string(), "IPUJob default/mnist");
/// // A later job of the same name is another owner, and cannot use the partitions of the first.
/// assert_ne!(owner, OwnerDocument::new("IPUJob", "default", "mnist", "2"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[non_exhaustive]
pub struct OwnerDocument {
    /// Kind of the owner, such as `IPUJob`: 1 to 63 printable characters without blanks.
    pub kind: String,
    /// Namespace, which quotas and usage refer to.
    pub namespace: String,
    /// Name of the owner.
    pub name: String,
    /// Uid, which distinguishes it from an earlier owner of the same name.
    pub uid: String,
}

impl OwnerDocument {
    /// Creates an owner.
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

impl OwnerDocument {
    /// Returns `namespace/name`.
    #[must_use]
    pub fn qualified_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// Formats as `IPUJob default/mnist`, without the uid.
impl fmt::Display for OwnerDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}
