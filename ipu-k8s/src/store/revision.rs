//! Revisions of the ConfigMap: they distinguish its state from every other past or future state.
//!
//! The API server's `resourceVersion` is not sufficient. It grows as long as etcd does. After a restore of
//! etcd from a snapshot it goes back, and earlier numbers are assigned again to other content. So every write
//! also stores a unique token, and both are compared.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use ipu_ledger::Revision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Annotation with the token of the last write.
pub(super) const WRITE: &str = "ledger.graphcore.ai/write";

/// Annotation with the layout version. It marks a ConfigMap as a ledger.
pub(super) const LAYOUT: &str = "ledger.graphcore.ai/layout";

/// State of the ConfigMap that a revision identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigMapRevision {
    /// Uid of the object: it changes when the ConfigMap is recreated.
    pub(super) uid: String,
    /// `resourceVersion` of the API server.
    pub(super) version: String,
    /// Token of the last write.
    pub(super) write: String,
}

impl ConfigMapRevision {
    /// Returns the revision of an object with this metadata, or `None` if it is no ledger.
    pub(super) fn from_metadata(metadata: &ObjectMeta) -> Option<Self> {
        let annotations = metadata.annotations.as_ref()?;
        annotations.get(LAYOUT)?;
        Some(Self {
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            write: annotations.get(WRITE)?.clone(),
        })
    }

    /// Parses a `revision`. Returns `None` if it is of another kind of store.
    pub(super) fn parse(revision: &Revision) -> Option<Self> {
        let mut parts = revision.as_str().splitn(3, '/');
        Some(Self {
            uid: parts.next()?.into(),
            version: parts.next()?.into(),
            write: parts.next()?.into(),
        })
    }

    pub(super) fn revision(&self) -> Revision {
        Revision::new(format!("{}/{}/{}", self.uid, self.version, self.write))
    }

    /// Returns the version as a number, or 0. Clients need not rely on its format, but it is numeric.
    pub(super) fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}

/// Generator of unique tokens: 128 random bits of this writer, and a count.
#[derive(Debug)]
pub(super) struct WriteTokens {
    writer: String,
    count: AtomicU64,
}

impl WriteTokens {
    pub(super) fn new() -> Self {
        // The standard library seeds its hashers from the system; two of them suffice to avoid collisions.
        let random = || RandomState::new().build_hasher().finish();
        Self {
            writer: format!("{:016x}{:016x}", random(), random()),
            count: AtomicU64::new(0),
        }
    }

    /// Returns the writer of `token` and the number of the write, if another writer created it.
    pub(super) fn parse_foreign<'w>(&self, token: &'w str) -> Option<(&'w str, u64)> {
        let (writer, number) = token.rsplit_once('.')?;
        let number = number.parse().ok()?;
        (writer != self.writer).then_some((writer, number))
    }

    pub(super) fn next(&self) -> String {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        format!("{}.{count}", self.writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_identifies_its_state_and_tokens_differ() {
        let tokens = WriteTokens::new();
        let at = ConfigMapRevision {
            uid: "u".into(),
            version: "17".into(),
            write: tokens.next(),
        };
        assert_eq!(ConfigMapRevision::parse(&at.revision()), Some(at.clone()));
        assert_eq!(at.number(), 17);
        assert_ne!(at.write, tokens.next());
        assert_eq!(tokens.parse_foreign(&at.write), None);
        let (writer, number) = at.write.split_once('.').unwrap();
        assert_eq!(WriteTokens::new().parse_foreign(&at.write), Some((writer, 0)));
        assert_eq!(number, "0");
        assert_ne!(WriteTokens::new().next(), WriteTokens::new().next());
        assert_eq!(ConfigMapRevision::parse(&Revision::new("of another store")), None);
    }
}
