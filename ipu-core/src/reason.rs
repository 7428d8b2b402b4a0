//! Machine-readable reasons: a code, numbers, and one sentence for users. The same value appears in the
//! status, events, logs, the command line and metric labels.

use alloc::collections::BTreeMap;
use alloc::string::String;
use core::error::Error;
use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident,)*) => {
        /// The code of a [`Reason`]. Its text is the name of the variant; safe as a metric label.
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[non_exhaustive]
        pub enum ReasonCode {
            $($(#[$doc])* $code,)*
            /// A code that this version does not know: of a later one, or of another scheduler.
            #[cfg_attr(feature = "schema", schemars(untagged))]
            Other(String),
        }

        impl ReasonCode {
            /// Returns the text, in UpperCamelCase.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$code => stringify!($code),)*
                    Self::Other(code) => code,
                }
            }
        }

        impl From<&str> for ReasonCode {
            fn from(code: &str) -> Self {
                match code {
                    $(stringify!($code) => Self::$code,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

codes! {
    // A request waits.
    /// Fewer IPUs are free than requested.
    NotEnoughFree,
    /// Enough IPUs are free, but they form no block of the size.
    Fragmented,
    /// No controller has hardware for a partition of the size.
    TooLarge,
    /// No controller has the requested allocation.
    UnknownAllocation,
    /// A cordon keeps the IPUs free.
    Cordoned,
    /// The placement policy declined.
    Declined,
    /// The placement policy chose IPUs that it must not choose.
    Illegal,
    /// Other partitions have the requested IPUs or machines.
    PinnedIpusBusy,
    /// The controller has no such IPUs.
    UnknownIpus,
    /// The controller does not report its hardware.
    HardwareUnknown,
    /// The controller did not reply.
    ControllerUnavailable,
    /// The controller replied that it does not do it.
    ControllerRefused,
    /// The controller is not configured.
    UnknownController,
    /// The controller is configured under two names.
    SameController,
    /// A partition whose owner may still use it vanished from its controller.
    LostPartition,
    /// It would fit, but an earlier request has the right to the IPUs.
    HeldBackForEarlier,
    /// It fits and starts next.
    NextInLine,
    /// A controller may have it already, which is being found out.
    NotConfirmed,
    /// A partition of its id exists that this allocator did not create.
    ForeignPartition,
    /// A quota is used up.
    QuotaExceeded,
    /// A quota is smaller than the request.
    QuotaTooSmall,
    /// A listed partition contradicts the known hardware or another partition.
    Conflict,
    /// It waits; no more is known.
    Queued,
    /// A request of higher priority got its IPUs.
    Preempted,
    // A partition.
    /// It is being created.
    Creating,
    /// It is being reset.
    Resetting,
    /// It is being removed.
    Releasing,
    /// The controller removes it only with force.
    RemovalRefused,
    /// It came up in an error state.
    PartitionFailed,
    /// It has no known owner, so it is kept.
    Quarantined,
    /// Pods use it: it is reset or released when they have ended.
    InUse,
    // A job.
    /// Its instances run.
    Running,
    /// It is scaled to no instances.
    ScaledToZero,
    /// It is suspended.
    Suspended,
    /// It is being deleted.
    Deleted,
    /// Every instance succeeded.
    Completed,
    /// An instance failed for good.
    Failed,
    /// It ran for longer than declared.
    DeadlineExceeded,
    /// It has finished and still holds IPUs.
    FinishedHoldsIpus,
    // An instance of a job.
    /// Further instances, which are not listed, do not run yet.
    More,
    /// Its partition is requested later, because the job has too many requests in the queue.
    NotRequested,
    /// Its partition is made ready for an attempt.
    PreparingPartition,
    /// Its workers start.
    StartingWorkers,
    /// Its launcher starts.
    StartingLauncher,
    /// Its processes are ending.
    StoppingProcesses,
    /// Its partition is being released.
    ReleasingPartition,
    /// Its next attempt waits for the back-off.
    BackingOff,
    /// It succeeded.
    InstanceDone,
    /// It failed for good, and others continue.
    InstanceFailed,
    /// Its session is over: the time to live has passed.
    SessionOver,
    /// It succeeded and restarts.
    RestartAfterSuccess,
    /// It failed and restarts.
    RestartAfterFailure,
    /// It failed with an exit code that is not retried.
    PermanentFailure,
    /// It failed, and the restart policy is `Never`.
    NeverRestarted,
    /// It failed more often than the back-off limit.
    BackOffLimitReached,
    /// A worker vanished.
    WorkerGone,
    /// The launcher vanished.
    LauncherGone,
    /// Workers did not start in time.
    WorkersUnschedulable,
    /// The launcher did not start in time.
    LauncherUnschedulable,
}

impl ReasonCode {
    /// Returns whether the end of other partitions does not help: only a change of the request, the hardware
    /// or the quotas does.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::TooLarge | Self::UnknownAllocation | Self::UnknownIpus | Self::QuotaTooSmall
        )
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq<&str> for ReasonCode {
    fn eq(&self, code: &&str) -> bool {
        self.as_str() == *code
    }
}

impl Serialize for ReasonCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ReasonCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = String::deserialize(deserializer)?;
        Ok(Self::from(code.as_str()))
    }
}

/// A reason for a decision or a state.
///
/// ```
/// use ipu_core::{Reason, ReasonCode};
///
/// let reason = Reason::new(ReasonCode::TooLarge, "no IPU-POD has 128 IPUs").with("size", 128_u32);
/// assert!(reason.code.is_permanent());
/// assert_eq!(reason.to_string(), "TooLarge: no IPU-POD has 128 IPUs");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reason {
    /// The code.
    pub code: ReasonCode,
    /// The numbers of the sentence, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub numbers: BTreeMap<String, u64>,
    /// One sentence, without a full stop.
    pub message: String,
}

impl Reason {
    /// Creates a reason without numbers.
    #[must_use]
    pub fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            code,
            numbers: BTreeMap::new(),
            message: message.into(),
        }
    }

    /// Returns the reason with the number `name` added.
    #[must_use]
    pub fn with(mut self, name: &str, number: impl Into<u64>) -> Self {
        self.numbers.insert(name.into(), number.into());
        self
    }
}

impl Error for Reason {}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}
