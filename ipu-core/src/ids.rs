//! Validated names. Each type rejects invalid names of its kind.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::sha256;

/// The reason that a text is not a valid name of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a {kind}: {rule}")]
#[non_exhaustive]
pub struct NameError {
    /// The expected kind, such as `partition id`.
    pub kind: &'static str,
    /// The given text; cut if it is much longer than any name.
    pub value: String,
    /// The broken rule.
    pub rule: &'static str,
}

/// Returns the part of an invalid name that an error repeats: all of it up to the maximum length of a name,
/// and the beginning of a longer one.
fn excerpt(mut value: String) -> String {
    const MAX_LEN: usize = 253;
    if value.len() > MAX_LEN {
        let end = (0..=MAX_LEN)
            .rev()
            .find(|end| value.is_char_boundary(*end))
            .unwrap_or(0);
        value.truncate(end);
        value.push('…');
    }
    value
}

/// Declares a newtype over a text that only one validating constructor creates. A clone shares the text,
/// because ids are copied often.
macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $max:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// Maximum number of characters.
            pub const MAX_LEN: usize = $max;

            /// Parses `text`.
            ///
            /// # Errors
            ///
            /// [`NameError`] names the rule that `text` breaks.
            pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
                let value = text.into();
                let valid: fn(char) -> bool = $valid;
                if value.is_empty() || value.len() > Self::MAX_LEN || !value.chars().all(valid) {
                    return Err(NameError { kind: $kind, value: excerpt(value), rule: $rule });
                }
                Ok(Self(value.into()))
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = NameError;

            fn try_from(value: String) -> Result<Self, NameError> {
                Self::new(value)
            }
        }

        impl FromStr for $type {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> Self {
                Self::from(&*name.0)
            }
        }

        impl AsRef<str> for $type {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name_type!(
    /// The id of a partition at a V-IPU controller: 1 to 50 letters, digits, `-`, `_` and `.`.
    ///
    /// 50 characters is the limit that agrees with public reports of failing longer ids (EIDF FAQ: job names
    /// over 36 characters).
    PartitionId, "partition id", 50, "1 to 50 letters, digits, '-', '_' or '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);
name_type!(
    /// The id of a V-IPU allocation: a set of agents that partitions draw from.
    AllocationId, "allocation id", 253, "1 to 253 printable characters without blanks", |c| c.is_ascii_graphic()
);
name_type!(
    /// The id of a V-IPU cluster.
    ClusterId, "cluster id", 253, "1 to 253 printable characters without blanks", |c| c.is_ascii_graphic()
);
name_type!(
    /// The id of a V-IPU agent, which is one IPU-Machine of four IPUs.
    AgentId, "agent id", 253, "1 to 253 printable characters without blanks", |c| c.is_ascii_graphic()
);
name_type!(
    /// The name of a V-IPU controller among several: its `host:port`, or any other name.
    ControllerName, "controller name", 253, "1 to 253 printable characters without blanks", |c| c.is_ascii_graphic()
);
name_type!(
    /// The owner of a cordon, and the only one that may remove it: `health`, `foreign`, `conflict`, or the
    /// client that made it.
    CordonOwner, "cordon owner", 253, "1 to 253 printable characters without blanks", |c| c.is_ascii_graphic()
);

name_type!(
    /// The id of a cordon in the ledger: 1 to 63 letters, digits, `-`, `_` and `.`.
    CordonId, "cordon id", 63, "1 to 63 letters, digits, '-', '_' or '.'",
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
);

impl CordonOwner {
    /// Returns whether the name is reserved for observations: `health`, `foreign` and `conflict`.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        [Self::health(), Self::foreign(), Self::conflict()].contains(self)
    }

    /// Returns the owner of cordons of IPUs that the controller reports unhealthy.
    #[must_use]
    pub fn health() -> Self {
        Self(Arc::from("health"))
    }

    /// Returns the owner of cordons of IPUs that partitions not managed by this ledger have.
    #[must_use]
    pub fn foreign() -> Self {
        Self(Arc::from("foreign"))
    }

    /// Returns the owner of cordons of IPUs in conflict. An owner of the ledger may still use them, but its
    /// controller does not list its partition and has placed another one on some of them.
    #[must_use]
    pub fn conflict() -> Self {
        Self(Arc::from("conflict"))
    }
}

name_type!(
    /// The namespace of a job: a Kubernetes namespace, a Slurm cluster, or the user of a bare host.
    Namespace, "namespace", 253, "1 to 253 printable characters without blanks or '/'", |c| c.is_ascii_graphic() && c != '/'
);
name_type!(
    /// The name of a job within its namespace.
    JobName, "job name", 253, "1 to 253 printable characters without blanks or '/'", |c| c.is_ascii_graphic() && c != '/'
);
name_type!(
    /// The unique id of a job among jobs of the same name: a Kubernetes uid, a Slurm job id, a random id of a
    /// run.
    JobUid, "job uid", 253, "1 to 253 printable characters without blanks or '/'", |c| c.is_ascii_graphic() && c != '/'
);

name_type!(
    /// An account that requests are charged to. Each character is one byte in JSON, so that the stored size
    /// is bounded.
    AccountName, "account", 63, "1 to 63 printable characters without blanks, '\"' or '\\'", is_plain
);

/// Returns whether a character is printable, not a blank, and needs no escape in JSON.
const fn is_plain(c: char) -> bool {
    c.is_ascii_graphic() && !matches!(c, '"' | '\\')
}

impl AllocationId {
    /// Maximum number of characters of an allocation in a request. A controller may list longer ones.
    pub const MAX_REQUESTED_LEN: usize = 63;

    /// Parses the allocation id of a request. It is recorded with every queued request. So it is shorter than
    /// a listed one may be, and has no character that JSON escapes.
    ///
    /// # Errors
    ///
    /// [`NameError`] names the rule that `text` breaks.
    pub fn requested(text: impl Into<String>) -> Result<Self, NameError> {
        let value = text.into();
        if value.is_empty() || value.len() > Self::MAX_REQUESTED_LEN || !value.chars().all(is_plain) {
            return Err(NameError {
                kind: "allocation id",
                value: excerpt(value),
                rule: "1 to 63 printable characters without blanks, '\"' or '\\'",
            });
        }
        Ok(Self(value.into()))
    }
}

/// Identity of a job: namespace, name and uid. Two successive jobs of the same name differ in their uid.
///
/// ```
/// use ipu_core::JobKey;
///
/// let job = JobKey::new("default", "mnist", "4f1c")?;
/// assert_eq!(job.partition_id(0), job.partition_id(0));
/// assert_ne!(job.partition_id(0), job.partition_id(1));
/// # Ok::<(), ipu_core::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobKey {
    /// The namespace, within which the name is unique.
    pub namespace: Namespace,
    /// The name shown to users.
    pub name: JobName,
    /// The uid, which makes the key unique over time.
    pub uid: JobUid,
}

impl JobKey {
    /// Parses the three parts.
    ///
    /// # Errors
    ///
    /// [`NameError`] for the first invalid part.
    ///
    /// ```
    /// let key = ipu_core::JobKey::new("default", "mnist-training", "beb81bbe-2309-494a-9e28-2a75a704be15")?;
    /// assert_eq!(key.to_string(), "default/mnist-training");
    /// # Ok::<(), ipu_core::NameError>(())
    /// ```
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        uid: impl Into<String>,
    ) -> Result<Self, NameError> {
        Ok(Self {
            namespace: Namespace::new(namespace)?,
            name: JobName::new(name)?,
            uid: JobUid::new(uid)?,
        })
    }

    /// Returns the id of the partition of instance `instance`. It is always the same for the same job and
    /// instance, so that a retry finds the partition of an earlier attempt. Format: a readable prefix, then
    /// 80 bits of SHA-256 over the length-prefixed parts.
    ///
    /// The documented form `p-<job>-<namespace>-<instance>` is not injective and grows with its parts. This
    /// one is bounded by [`PartitionId::MAX_LEN`], and two collide with a probability of 2^-80 (the ledger
    /// rejects the second one then).
    #[must_use]
    pub fn partition_id(&self, instance: u32) -> PartitionId {
        let mut text = String::new();
        for part in [self.namespace.as_str(), self.name.as_str(), self.uid.as_str()] {
            text.push_str(&format!("{}:{part}", part.len()));
        }
        text.push_str(&format!("#{instance}"));
        let digest = base32(&sha256(text.as_bytes())[..10]);
        let instance = instance.to_string();
        // "p-" + name + "-" + instance + "-" + digest
        let max_name_len = PartitionId::MAX_LEN - 4 - instance.len() - digest.len();
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        };
        let name: String = self.name.as_str().chars().take(max_name_len).map(plain).collect();
        PartitionId(format!("p-{}-{instance}-{digest}", name.trim_matches('-')).into())
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl PartitionId {
    /// Parses the partition id of a request. `.` and `..` are rejected, because clients remove them from the
    /// path of a URL. Ledgers of earlier builds may have them.
    ///
    /// # Errors
    ///
    /// [`NameError`] names the rule that `text` breaks.
    pub fn requested(text: impl Into<String>) -> Result<Self, NameError> {
        let value = text.into();
        if matches!(&*value, "." | "..") {
            return Err(NameError {
                kind: "partition id",
                value,
                rule: "1 to 50 letters, digits, '-', '_' or '.', and not '.' or '..'",
            });
        }
        Self::new(value)
    }

    /// Creates the id of a hypothetical partition: it contains a blank, which no valid id has.
    #[cfg(feature = "allocator")]
    pub(crate) fn hypothetical(number: usize) -> Self {
        Self(format!("what if {number}").into())
    }

    /// Returns whether the id has the form of [`JobKey::partition_id`]: `p-<name>-<instance>-<16 base-32
    /// digits>`. A partition of that form may belong to this project even if no ledger records it; any other
    /// certainly does not.
    #[must_use]
    pub fn is_derived(&self) -> bool {
        self.derived_instance().is_some()
    }

    /// Returns the instance that an id of the derived form names.
    fn derived_instance(&self) -> Option<&str> {
        let (rest, digest) = self.0.strip_prefix("p-")?.rsplit_once('-')?;
        let instance = rest.rsplit_once('-').map_or(rest, |(_, instance)| instance);
        let derived = digest.len() == 16
            && digest.bytes().all(|b| BASE32.contains(&b))
            && !instance.is_empty()
            && instance.bytes().all(|b| b.is_ascii_digit());
        derived.then_some(instance)
    }

    /// Returns whether [`JobKey::partition_id`] gives this id for `job` and some instance.
    #[must_use]
    pub fn is_derived_from(&self, job: &JobKey) -> bool {
        let instance = self.derived_instance().and_then(|text| text.parse().ok());
        instance.is_some_and(|instance| job.partition_id(instance) == *self)
    }
}

/// RFC 4648 base 32 in lower case: five bits a character, all of them valid in a partition id.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

fn base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    let (mut bits, mut count) = (0_u32, 0);
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(BASE32[(bits >> count & 31) as usize]));
        }
    }
    text
}

/// Owner of partitions and requests: a kind of job (`IPUJob`, `SlurmJob`, `HostRun`, …) and its key.
///
/// ```
/// use ipu_core::{JobKey, Owner};
///
/// let owner = Owner::new("IPUJob", JobKey::new("default", "mnist", "4f1c")?);
/// let namesake = Owner::new("IPUJob", JobKey::new("default", "mnist", "77e0")?);
/// assert_ne!(owner, namesake);
/// # Ok::<(), ipu_core::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Owner {
    /// Kind of the owner, as its own system names it.
    pub kind: String,
    /// Key of the job.
    pub job: JobKey,
}

impl Owner {
    /// Creates the owner of `kind` with the key `job`.
    #[must_use]
    pub fn new(kind: impl Into<String>, job: JobKey) -> Self {
        Self {
            kind: kind.into(),
            job,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.job)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(namespace: &str, name: &str, uid: &str) -> JobKey {
        JobKey::new(namespace, name, uid).unwrap()
    }

    #[test]
    fn a_partition_id_is_readable_and_stable_across_versions() {
        let id = key(
            "default",
            "mnist-training",
            "beb81bbe-2309-494a-9e28-2a75a704be15",
        )
        .partition_id(0);
        assert!(id.as_str().starts_with("p-mnist-training-0-"), "{id}");
        // Changing the derivation would orphan every partition of a running system.
        assert_eq!(id.as_str(), "p-mnist-training-0-yxyf5xnew52l27nw");
    }

    #[test]
    fn an_error_repeats_at_most_the_maximum_length_of_a_name() {
        let error = PartitionId::new("ä".repeat(1_000)).unwrap_err();
        assert_eq!(error.value, format!("{}…", "ä".repeat(126)));
        assert_eq!(PartitionId::new("a".repeat(253)).unwrap_err().value.len(), 253);
    }

    #[test]
    fn parts_that_join_to_the_same_text_give_different_ids() {
        assert_ne!(
            key("c", "a-b", "u").partition_id(0),
            key("b-c", "a", "u").partition_id(0)
        );
        assert_ne!(
            key("n", "a", "u").partition_id(1),
            key("n", "a", "u").partition_id(11)
        );
    }

    proptest! {
        #[test]
        fn every_derived_id_is_a_valid_id_of_the_derived_form(
            namespace in "[!-.0-~]{1,253}", name in "[!-.0-~]{1,253}", uid in "[!-.0-~]{1,64}", instance: u32,
        ) {
            let id = key(&namespace, &name, &uid).partition_id(instance);
            prop_assert_eq!(PartitionId::new(id.as_str()), Ok(id.clone()));
            prop_assert!(id.is_derived(), "{}", id);
        }

        #[test]
        fn a_job_never_shares_an_id_with_another(a in "[a-c]{1,3}", b in "[a-c]{1,3}", c in "[a-c]{1,3}", d in "[a-c]{1,3}", i in 0_u32..3, j in 0_u32..3) {
            let (one, two) = (key(&a, &b, "u"), key(&c, &d, "u"));
            prop_assert_eq!(one.partition_id(i) == two.partition_id(j), one == two && i == j);
        }
    }

    #[test]
    fn ids_of_other_tools_are_not_derived_ids() {
        for other in [
            "p64",
            "slurm_10675",
            "p-bert-poprun-64ipus-gc-dev-0",
            "p--0-",
            "training_partition",
        ] {
            assert!(!PartitionId::new(other).unwrap().is_derived(), "{other}");
        }
    }
}
