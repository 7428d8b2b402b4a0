//! Cordons: their commands, and their effect on capacity.
//!
//! Cordons are part of the state, so that the commit of a grant covers them too: no request starts on
//! hardware that was cordoned meanwhile. Partitions there keep their IPUs.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::allocator::capacity::Hardware;
use crate::allocator::cordon::Cordon;
use crate::allocator::error::RequestError;
use crate::allocator::holders::reserve_recorded;
use crate::allocator::queue::Blocker;
use crate::allocator::state::{Change, State};
use crate::ids::{CordonId, CordonOwner, PartitionId};
use crate::units::Timestamp;

/// The effect of a cordon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct CordonEffect {
    /// The recorded cordon.
    pub cordon: Cordon,
    /// Holders of cordoned IPUs, by id, which keep them. Includes holders whose IPUs are not known yet. If
    /// the controller cannot be queried: all holders that the state records at it.
    pub holders: Vec<Blocker>,
}

/// Cordons hardware. Repeating the same cordon changes nothing. A controller that cannot be queried is
/// cordoned too; hardware of it that does not exist does no harm.
///
/// # Errors
///
/// [`RequestError::OtherCordon`] if another cordon has the id. [`RequestError::CannotCordon`] if the
/// controller is not configured, has no such hardware, or does not report its hardware, or if the reason is
/// too long.
pub(super) fn cordon(
    state: &State,
    hardware: &Hardware,
    cordon: &Cordon,
    now: Timestamp,
) -> Result<(CordonEffect, Vec<Change>), RequestError> {
    let recorded = state.cordon(&cordon.id);
    let mut cordon = cordon.clone();
    cordon.since = recorded.map_or(now, |recorded| recorded.since);
    let rejected = |why: String| RequestError::CannotCordon {
        what: Box::new(cordon.target.clone()),
        controller: cordon.controller.clone(),
        why,
    };
    if cordon.owner.is_reserved() {
        return Err(rejected(format!("the name {} is reserved", cordon.owner)));
    }
    if let Some(recorded) = recorded
        && **recorded != cordon
    {
        return Err(other_cordon(recorded));
    }
    if recorded.is_none() && cordon.reason.len() > Cordon::MAX_REASON_LEN {
        return Err(rejected(format!(
            "its reason has {} bytes and may have {}; shorten it",
            cordon.reason.len(),
            Cordon::MAX_REASON_LEN
        )));
    }
    let mut views = hardware.controllers.iter();
    let view = views
        .find(|view| view.name == cordon.controller)
        .ok_or_else(|| rejected(String::from("it is not configured")))?;
    let holders = match &view.listing {
        Ok(listing) => {
            let mut capacity = listing.capacity().boxed_clone();
            let unplaced = reserve_recorded(state, &view.name, &mut *capacity);
            let mut holders = capacity
                .cordon(&cordon.owner, &cordon.target)
                .map_err(|reason| rejected(reason.message))?;
            // Their partitions may appear there.
            holders.extend(unplaced);
            holders.sort_unstable();
            holders.dedup();
            holders
        }
        Err(_) => {
            let held = state.entries().filter(|entry| entry.phase.holds());
            let here = held.filter(|entry| entry.controller.as_ref() == Some(&view.name));
            here.map(|entry| entry.id.clone()).collect()
        }
    };
    let changes = match recorded {
        Some(_) => Vec::new(),
        None => Vec::from([Change::Cordon(Arc::new(cordon.clone()))]),
    };
    let effect = CordonEffect {
        cordon,
        holders: holders
            .into_iter()
            .map(|id: PartitionId| Blocker::find(state, hardware, id, now))
            .collect(),
    };
    Ok((effect, changes))
}

/// Removes a cordon on behalf of its owner. Returns the cordon; none if there is none of that id.
///
/// # Errors
///
/// [`RequestError::OtherCordon`] if the cordon has another owner.
pub(super) fn uncordon(
    state: &State,
    id: &CordonId,
    owner: &CordonOwner,
) -> Result<(Option<Cordon>, Vec<Change>), RequestError> {
    match state.cordon(id) {
        None => Ok((None, Vec::new())),
        Some(recorded) if recorded.owner == *owner => Ok((
            Some(Cordon::clone(recorded)),
            Vec::from([Change::Uncordon(id.clone())]),
        )),
        Some(recorded) => Err(other_cordon(recorded)),
    }
}

fn other_cordon(recorded: &Cordon) -> RequestError {
    RequestError::OtherCordon {
        recorded: Box::new(recorded.clone()),
    }
}
