//! The promise, as a check of the ground truth and of what owners believe. It knows nothing of the allocator.

use ipu_core::{PartitionId, PartitionState};

use super::controller::{BY_HAND, Controller, User};

/// A partition that processes of an owner use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Use {
    pub(super) id: PartitionId,
    pub(super) user: User,
    /// Index of the controller.
    pub(super) controller: usize,
    /// Its IPUs, one bit each.
    pub(super) ipus: u64,
    /// Whether the controller has lost it.
    pub(super) is_lost: bool,
}

/// Begins the use of a partition, whose owner has the answer that it is active.
pub(super) fn begin_use(
    controllers: &mut [Controller],
    controller: usize,
    id: &PartitionId,
    user: User,
    recorded: u64,
    last_run_in_copy: u32,
) -> Result<Use, String> {
    let at = &mut controllers[controller];
    let is_lost = at.lost.contains(id);
    let ipus = match at.partitions.get_mut(id) {
        Some(truth) if !is_lost => {
            if truth.is_foreign {
                return Err(format!("{id} was granted, and is foreign"));
            }
            // An old copy of the record does not show whether its owner uses it: it is not reset then.
            let is_fresh = |other: User| other == user || other.0 == user.0 && other.1 <= last_run_in_copy;
            if let Some(other) = truth.used_by.filter(|other| !is_fresh(*other)) {
                return Err(format!(
                    "{id} was granted to {user:?}, and is not fresh since {other:?}"
                ));
            }
            truth.used_by = Some(user);
            truth.ipus
        }
        _ if is_lost => recorded,
        _ => return Err(format!("{id} was granted to {user:?}, and does not exist")),
    };
    Ok(Use {
        id: id.clone(),
        user,
        controller,
        ipus,
        is_lost,
    })
}

/// Checks that every used partition exists as it was granted, and that no IPU is in two of them.
pub(super) fn check_uses<'a>(
    controllers: &[Controller],
    uses: impl Iterator<Item = &'a mut Use>,
) -> Result<(), String> {
    let mut ipus_in_use = vec![0; controllers.len()];
    for one in uses {
        let at = &controllers[one.controller];
        one.is_lost |= at.lost.contains(&one.id);
        if one.is_lost && !at.reports_ipus {
            // The IPUs of a partition that was requested before the loss was observed cannot be known.
            continue;
        }
        let taken: &mut u64 = &mut ipus_in_use[one.controller];
        if *taken & one.ipus != 0 {
            return Err(format!("an IPU of {} is in two partitions in use", one.id));
        }
        *taken |= one.ipus;
        if one.is_lost {
            continue;
        }
        let truth = at.partitions.get(&one.id);
        let truth = truth.ok_or_else(|| format!("{} was removed while {:?} used it", one.id, one.user))?;
        let is_disturbed = truth.used_by != Some(one.user)
            || matches!(truth.state, PartitionState::Resetting | PartitionState::Removing);
        if is_disturbed {
            return Err(format!(
                "{} was reset or removed while {:?} used it",
                one.id, one.user
            ));
        }
    }
    Ok(())
}

/// Checks that nothing is left but partitions that were made by hand.
pub(super) fn check_leaks(controllers: &[Controller]) -> Result<(), String> {
    for controller in controllers {
        let mut partitions = controller.partitions.iter();
        if let Some((id, _)) =
            partitions.find(|(_, truth)| !truth.is_foreign && truth.used_by != Some(BY_HAND))
        {
            return Err(format!("{id} is leaked at {}", controller.name));
        }
    }
    Ok(())
}
