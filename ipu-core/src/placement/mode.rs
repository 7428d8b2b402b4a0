//! The component that chooses the IPUs of a new partition: a policy of this crate or its embedder, or the
//! V-IPU controller.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{BestFit, FirstFit, PlacementPolicy};

/// A placement policy that the ledger shares between threads.
pub type SharedPolicy = Arc<dyn PlacementPolicy + Send + Sync>;

/// Origin of the IPUs of a new partition. The default is [`Explicit`](Self::Explicit) with [`FirstFit`].
///
/// Its text form is its [name](Self::name), which is read for the built-in policies only. Two modes are equal
/// if their names are.
///
/// ```
/// use ipu_core::placement::{FirstFit, PlacementMode};
///
/// assert_eq!("best-fit".parse::<PlacementMode>()?.name(), "best-fit");
/// assert_eq!(PlacementMode::explicit(FirstFit).name(), "first-fit");
/// # Ok::<(), ipu_core::placement::PlacementModeError>(())
/// ```
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum PlacementMode {
    /// The policy chooses, and the create call names the IPUs.
    Explicit(SharedPolicy),
    /// The V-IPU controller chooses. The ledger still names the IPUs of a create call if the free choice of
    /// the controller could take IPUs that the ledger keeps: for cordons, for partitions that the controller
    /// no longer lists, and for requests ahead in the queue.
    Delegated,
}

impl PlacementMode {
    /// Names of the modes that [`FromStr`] accepts.
    pub const NAMES: [&str; 3] = ["delegated", "first-fit", "best-fit"];

    /// Creates the explicit mode of `policy`.
    #[must_use]
    pub fn explicit(policy: impl PlacementPolicy + Send + Sync + 'static) -> Self {
        Self::Explicit(Arc::new(policy))
    }

    /// Returns `delegated`, or the name of the policy.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Explicit(policy) => policy.name(),
            Self::Delegated => "delegated",
        }
    }

    /// Returns the policy of hypothetical placements: first fit for [`Delegated`](Self::Delegated), because
    /// the choice of the controller is unknown.
    #[must_use]
    pub fn policy(&self) -> &dyn PlacementPolicy {
        match self {
            Self::Explicit(policy) => &**policy,
            Self::Delegated => &FirstFit,
        }
    }
}

impl Default for PlacementMode {
    fn default() -> Self {
        Self::explicit(FirstFit)
    }
}

impl PartialEq for PlacementMode {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for PlacementMode {}

impl TryFrom<String> for PlacementMode {
    type Error = PlacementModeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PlacementMode> for String {
    fn from(mode: PlacementMode) -> Self {
        mode.name().into()
    }
}

impl fmt::Debug for PlacementMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlacementMode").field(&self.name()).finish()
    }
}

impl fmt::Display for PlacementMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PlacementMode {
    type Err = PlacementModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "delegated" => Ok(Self::Delegated),
            "first-fit" => Ok(Self::explicit(FirstFit)),
            "best-fit" => Ok(Self::explicit(BestFit)),
            _ => Err(PlacementModeError { text: text.into() }),
        }
    }
}

/// Error for the name of a placement mode that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlacementModeError {
    /// The refused text.
    pub text: String,
}

impl fmt::Display for PlacementModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = PlacementMode::NAMES.join(", ");
        write!(f, "placement {:?} does not exist; use one of {names}", self.text)
    }
}

impl core::error::Error for PlacementModeError {}
