//! What proves a placement policy, a ledger store or a controller transport, also one that is not ours.
