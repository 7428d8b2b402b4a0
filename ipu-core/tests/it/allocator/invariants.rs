//! The promise, as a check of the ground truth and of what owners believe. It knows nothing of the allocator.

use ipu_core::PartitionId;
use ipu_core::hardware::PartitionState;

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
    last_run_in_copy: u32,
) -> Result<Use, String> {
    let at = &mut controllers[controller];
    let lost = at.lost.get(id).copied();
    let ipus = match at.partitions.get_mut(id) {
        Some(truth) if lost.is_none() => {
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
        Some(truth) => truth.ipus,
        None => lost.ok_or_else(|| format!("{id} was granted to {user:?}, and does not exist"))?,
    };
    Ok(Use {
        id: id.clone(),
        user,
        controller,
        ipus,
        is_lost: lost.is_some(),
    })
}

/// Checks that every used partition exists as it was granted, and that no IPU is in two of them.
/// `is_recorded` returns whether the present record, perhaps an old copy, has a partition.
pub(super) fn check_uses<'a>(
    controllers: &[Controller],
    is_recorded: impl Fn(&PartitionId) -> bool,
    uses: impl Iterator<Item = &'a mut Use>,
) -> Result<(), String> {
    let mut ipus_in_use = vec![0; controllers.len()];
    for one in uses {
        let at = &controllers[one.controller];
        one.is_lost |= at.lost.contains_key(&one.id);
        // The IPUs of a partition that was requested before the loss was observed cannot be known. Nothing at
        // all is known of one that neither the controller nor an old copy of the record has, unless its owner
        // claims it by its id: a documented limit.
        let is_known = at.reports_ipus && (one.id.is_derived() || is_recorded(&one.id));
        if one.is_lost && !is_known {
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
