//! Combines the controller's ready state and operation state into a partition state. The match lists the
//! whole product.

use ipu_core::hardware::PartitionState;

use crate::error::VipuError;
use crate::wire::{PartitionOperationState as Op, PartitionReadyState as Ready};

/// Combines the two numbers of a status reply.
///
/// A pair maps to the most restrictive state, so that an uncertain partition is never granted. A missing or
/// unknown ready state, and a removed partition that is being created or reset, are invalid replies.
pub(crate) fn collapse(ready: i32, operation: i32, errors: Vec<String>) -> Result<PartitionState, VipuError> {
    let pair = Ready::try_from(ready).ok().zip(Op::try_from(operation).ok());
    let failed = |errors| Ok(PartitionState::Failed { errors });
    match pair {
        // A listing has no operation state: undefined does not contradict the ready state.
        Some((Ready::PsPending, Op::PosUndefined | Op::PosIdle | Op::PosCreating)) => {
            Ok(PartitionState::Creating)
        }
        Some((Ready::PsPending, Op::PosResetting)) => Ok(PartitionState::Resetting),
        Some((Ready::PsPending, Op::PosRemoving)) => Ok(PartitionState::Removing),
        Some((Ready::PsPending, Op::PosFailed)) => failed(errors),

        Some((Ready::PsActive, Op::PosUndefined | Op::PosIdle)) => Ok(PartitionState::Active),
        // Ready, but the creation has not completed: wait for it.
        Some((Ready::PsActive, Op::PosCreating)) => Ok(PartitionState::Creating),
        Some((Ready::PsActive, Op::PosResetting)) => Ok(PartitionState::Resetting),
        Some((Ready::PsActive, Op::PosRemoving)) => Ok(PartitionState::Removing),
        Some((Ready::PsActive, Op::PosFailed)) => failed(errors),

        Some((Ready::PsRemoved, Op::PosUndefined | Op::PosIdle | Op::PosRemoving)) => {
            Ok(PartitionState::Removing)
        }
        Some((Ready::PsRemoved, Op::PosFailed)) => failed(errors),

        Some((Ready::PsError, Op::PosUndefined | Op::PosIdle | Op::PosCreating | Op::PosFailed)) => {
            failed(errors)
        }
        // The controller repairs the partition on its own, or on another client's request.
        Some((Ready::PsError, Op::PosResetting)) => Ok(PartitionState::Resetting),
        Some((Ready::PsError, Op::PosRemoving)) => Ok(PartitionState::Removing),

        Some((Ready::PsRemoved, Op::PosCreating | Op::PosResetting))
        | Some((Ready::PsUndefined, _))
        | None => Err(VipuError::BadReply {
            detail: format!(
                "no partition has ready state {} and operation state {}",
                state_name(Ready::try_from(ready).map(|state| state.as_str_name()), ready),
                state_name(
                    Op::try_from(operation).map(|state| state.as_str_name()),
                    operation
                ),
            ),
        }),
    }
}

fn state_name<E>(name: Result<&'static str, E>, number: i32) -> String {
    name.map_or_else(|_| number.to_string(), ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: ready state 0 to 4. Columns: operation state 0 to 5. `-` is an invalid reply.
    const TABLE: [[&str; 6]; 5] = [
        // UNDEFINED   IDLE        CREATING    REMOVING    RESETTING    FAILED
        ["-", "-", "-", "-", "-", "-"], // UNDEFINED
        [
            "CREATING",
            "CREATING",
            "CREATING",
            "REMOVING",
            "RESETTING",
            "ERROR",
        ], // PENDING
        ["ACTIVE", "ACTIVE", "CREATING", "REMOVING", "RESETTING", "ERROR"], // ACTIVE
        ["REMOVING", "REMOVING", "-", "REMOVING", "-", "ERROR"], // REMOVED
        ["ERROR", "ERROR", "ERROR", "REMOVING", "RESETTING", "ERROR"], // ERROR
    ];

    fn label(ready: i32, operation: i32) -> &'static str {
        collapse(ready, operation, Vec::new()).map_or("-", |state| state.label())
    }

    #[test]
    fn every_pair_of_states_maps_as_in_the_table() {
        for (ready, row) in (0..).zip(TABLE) {
            for (operation, expected) in (0..).zip(row) {
                assert_eq!(label(ready, operation), expected, "({ready}, {operation})");
            }
        }
    }

    #[test]
    fn unknown_state_numbers_are_a_bad_reply() {
        for (ready, operation) in [(5, 1), (-1, 1), (2, 6), (2, -1), (i32::MAX, i32::MIN)] {
            assert_eq!(label(ready, operation), "-", "({ready}, {operation})");
        }
        let error = collapse(9, 2, Vec::new()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the controller's reply is invalid: \
             no partition has ready state 9 and operation state POS_CREATING"
        );
    }

    #[test]
    fn a_failed_partition_keeps_the_errors_of_the_controller() {
        let errors = vec!["link 3 down".to_owned()];
        let state = collapse(4, 5, errors.clone()).unwrap();
        assert_eq!(state, PartitionState::Failed { errors });
    }
}
