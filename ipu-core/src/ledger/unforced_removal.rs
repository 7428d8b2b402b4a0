//! Releases in which the controller must not be forced to remove the partition.
//!
//! A controller refuses to remove a partition that is in error, or in the middle of another operation, unless
//! it is forced. Such a release then stays in the state releasing, with the refusal of the controller, and
//! the partition keeps its IPUs. It ends when the controller accepts a later attempt, when the partition is
//! gone, or when the owner releases it again with force.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{Owner, PartitionId};
use crate::ledger::LedgerState;
use crate::ledger::change::Change;
use crate::ledger::entry::{Entry, EntryState};
use crate::ledger::transition_error::{TransitionError, check_attempt, check_owner, moved};
use crate::ledger::transitions::{CallWindow, Release, Transition};
use crate::reason::Reason;
use crate::units::Timestamp;

/// A release in which the controller must not be forced to remove the partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct UnforcedRemoval {
    /// The last refusal by the controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RemovalRefusal>,
}

/// A controller's refusal to remove a partition without force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemovalRefusal {
    /// The controller's message, at most [`MAX_MESSAGE_LEN`](Self::MAX_MESSAGE_LEN) bytes of it.
    pub message: String,
    /// Time of the refusal.
    pub at: Timestamp,
}

impl RemovalRefusal {
    /// Maximum length of the recorded message in bytes: two sentences. The ledger has to keep space for
    /// releases.
    pub const MAX_MESSAGE_LEN: usize = 256;

    /// Interval after a refusal in which the controller is not called again by itself: its operator has to
    /// act first.
    pub const RETRY_INTERVAL: Duration = Duration::from_secs(30);

    /// Creates a refusal at `at`.
    #[must_use]
    pub fn new(message: &str, at: Timestamp) -> Self {
        let end = (0..=Self::MAX_MESSAGE_LEN.min(message.len())).rfind(|end| message.is_char_boundary(*end));
        Self {
            message: message[..end.unwrap_or(0)].into(),
            at,
        }
    }

    /// Returns whether the controller is not called again before the interval has passed.
    #[must_use]
    pub fn is_recent(&self, now: Timestamp) -> bool {
        now.since(self.at) < Self::RETRY_INTERVAL
    }
}

/// Whether a release may force the controller to remove the partition.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Force {
    Allowed,
    Forbidden,
}

impl LedgerState {
    /// Releases the partition as [`release`](Self::release) does, but without force: the controller may
    /// refuse to remove it. A repeated release calls the controller again. A release that may use force
    /// already continues with it.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](Self::release).
    pub fn release_without_force(
        &self,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        self.release_with(Force::Forbidden, id, owner, attempt, answered, window)
    }

    pub(crate) fn release_with(
        &self,
        force: Force,
        id: &PartitionId,
        owner: &Owner,
        attempt: Option<u32>,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        let Some(entry) = self.get(id) else {
            return Ok(Transition::unchanged(Release::NotHeld));
        };
        check_owner(entry, owner, entry.instance)?;
        if let (Some(attempt), false) = (attempt, matches!(entry.state, EntryState::Releasing { .. })) {
            check_attempt(entry, attempt)?;
        }
        entry.released_with(force, answered, window)
    }

    /// Releases a quarantined partition as [`release_quarantined`](Self::release_quarantined) does, but
    /// without force.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if it is not quarantined.
    pub fn release_quarantined_without_force(
        &self,
        id: &PartitionId,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        self.release_quarantined_with(Force::Forbidden, id, window)
    }

    pub(crate) fn release_quarantined_with(
        &self,
        force: Force,
        id: &PartitionId,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        let entry = self.expect(id, "released")?;
        match &entry.state {
            EntryState::Quarantined | EntryState::Releasing { .. } => {
                entry.released_with(force, None, window)
            }
            _ => Err(moved(entry, "released")),
        }
    }

    /// Continues a release as it is recorded: with force only if that is allowed.
    ///
    /// # Errors
    ///
    /// [`TransitionError::NotTheOwner`] if another owner has the partition, [`TransitionError::Moved`] if it
    /// is not being released.
    pub fn resume_release(
        &self,
        id: &PartitionId,
        owner: &Owner,
    ) -> Result<Transition<Release>, TransitionError> {
        let entry = self.expect(id, "resumed")?;
        check_owner(entry, owner, entry.instance)?;
        match &entry.state {
            EntryState::Releasing { .. } => {
                Ok(Transition::unchanged(Release::Drive(Box::new(entry.clone()))))
            }
            _ => Err(moved(entry, "resumed")),
        }
    }

    /// Records that the controller refuses to remove the partition without force. `fence` is the fence of the
    /// release of the call.
    ///
    /// # Errors
    ///
    /// [`TransitionError::Moved`] if the release is not the one of the call any more, or may use force.
    pub fn refuse_removal(
        &self,
        id: &PartitionId,
        fence: Timestamp,
        refusal: RemovalRefusal,
    ) -> Result<Transition<Entry>, TransitionError> {
        let entry = self.expect(id, "refused")?;
        match (&entry.state, &entry.unforced) {
            (EntryState::Releasing { fence: current }, Some(_)) if *current == fence => {
                let mut entry = entry.clone();
                entry.unforced = Some(UnforcedRemoval {
                    refusal: Some(refusal),
                });
                Ok(Transition::put(&entry, entry.clone()))
            }
            _ => Err(moved(entry, "refused")),
        }
    }
}

impl Entry {
    /// Returns the refusal of the controller to remove the partition without force, if force is not allowed.
    #[must_use]
    pub const fn removal_refusal(&self) -> Option<&RemovalRefusal> {
        match &self.unforced {
            Some(unforced) => unforced.refusal.as_ref(),
            None => None,
        }
    }

    /// Returns the reason that the release does not continue, which names the two ways to go on; none unless
    /// the controller has refused to remove the partition without force.
    #[must_use]
    pub fn removal_reason(&self) -> Option<Reason> {
        let refusal = self.removal_refusal()?;
        let controller = self
            .controller
            .as_ref()
            .map_or("of the partition", |name| name.as_str());
        let message = format!(
            "controller {controller} refuses to remove the partition without force: {}; release it with force, or \
             mend the cause and release it without force again",
            refusal.message
        );
        Some(Reason::new("RemovalRefused", message))
    }

    fn released_with(
        &self,
        force: Force,
        answered: Option<Timestamp>,
        window: CallWindow,
    ) -> Result<Transition<Release>, TransitionError> {
        let unforced = (force == Force::Forbidden).then(UnforcedRemoval::default);
        if let EntryState::Releasing { .. } = self.state {
            // Force that was allowed once stays allowed: a call with it may be under way.
            if self.unforced.is_none() || self.unforced == unforced {
                return Ok(self.released(answered, window));
            }
            let mut entry = self.claimed(answered, window)?;
            entry.unforced = unforced;
            return Ok(Transition::put(&entry, Release::Drive(Box::new(entry.clone()))));
        }
        let mut released = self.released(answered, window);
        if let Release::Drive(entry) = &mut released.outcome {
            entry.unforced = unforced;
            released.changes = Vec::from([Change::Put(Arc::new(Self::clone(entry)))]);
        }
        Ok(released)
    }
}
