//! Which state of the ConfigMap: what tells it from every other state that it was or will be in.
//!
//! The API server's own answer, `resourceVersion`, is not enough. It grows as long as etcd does; but when etcd is restored
//! from a snapshot it goes back, and numbers that were given before are given again to other content. So every write also
//! puts down a word that nobody else ever writes, and both are compared.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use ipu_ledger::Revision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation with the word of the last write.
pub(super) const WRITE: &str = "ledger.graphcore.ai/write";

/// The annotation with the version of how the ledger lies in the ConfigMap. It is what makes a ConfigMap a ledger.
pub(super) const LAYOUT: &str = "ledger.graphcore.ai/layout";

/// The state of the ConfigMap that a revision names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigMapRevision {
    /// Which object of the name: another one after it was deleted.
    pub(super) uid: String,
    /// The API server's number.
    pub(super) version: String,
    /// The word of the last write.
    pub(super) write: String,
}

impl ConfigMapRevision {
    /// The state of an object with this metadata; none if it is no ledger.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotations = metadata.annotations.as_ref()?;
        annotations.get(LAYOUT)?;
        Some(Self {
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone()?,
            write: annotations.get(WRITE)?.clone(),
        })
    }

    /// The state that `revision` names; none if no store of this kind made it.
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

    /// The version as a number, which it is although clients need not rely on it; 0 if it is not.
    pub(super) fn number(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }
}

/// Makes words that nobody else makes: 128 random bits of this writer, and a count.
#[derive(Debug)]
pub(super) struct WriteTokens {
    writer: String,
    count: AtomicU64,
}

impl WriteTokens {
    pub(super) fn new() -> Self {
        // The standard library seeds its hashers from the system; two of them are enough not to meet.
        let random = || RandomState::new().build_hasher().finish();
        Self {
            writer: format!("{:016x}{:016x}", random(), random()),
            count: AtomicU64::new(0),
        }
    }

    /// The writer of `word` and the number of the write, if it is another writer's.
    pub(super) fn other<'w>(&self, word: &'w str) -> Option<(&'w str, u64)> {
        let (writer, number) = word.rsplit_once('.')?;
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
    fn a_revision_names_its_state_and_words_differ() {
        let words = WriteTokens::new();
        let at = ConfigMapRevision {
            uid: "u".into(),
            version: "17".into(),
            write: words.next(),
        };
        assert_eq!(ConfigMapRevision::parse(&at.revision()), Some(at.clone()));
        assert_eq!(at.number(), 17);
        assert_ne!(at.write, words.next());
        assert_eq!(words.other(&at.write), None);
        let (writer, number) = at.write.split_once('.').unwrap();
        assert_eq!(WriteTokens::new().other(&at.write), Some((writer, 0)));
        assert_eq!(number, "0");
        assert_ne!(WriteTokens::new().next(), WriteTokens::new().next());
        assert_eq!(ConfigMapRevision::parse(&Revision::new("of another store")), None);
    }
}
