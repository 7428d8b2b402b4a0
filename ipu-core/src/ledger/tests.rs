//! Properties and cases of the ledger.
