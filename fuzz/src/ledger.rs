//! Ledger contents: stored entries, and the SQLite file.

use std::io::Write as _;
use std::time::Duration;

use ipu_core::{
    CallWindow, ControllersSnapshot, Entry, LedgerState, Owners, PartitionSpec, QueuePolicy, Request,
    Timestamp,
};
use ipu_ledger::{
    Lease, LedgerStore as _, SqliteStore, StoreError, decode, decode_cordon, encode, encode_cordon,
};

use crate::error_messages::{check_error, text};

/// Input: one stored entry, stored cordon or lease per line.
///
/// # Panics
///
/// If a record does not round-trip, or a query of the ledger panics.
pub fn ledger_entries(bytes: &[u8]) {
    let text = text(bytes);
    let mut entries = Vec::new();
    for line in text.lines().take(16) {
        if let Ok(cordon) = decode_cordon(line) {
            let decoded = decode_cordon(&encode_cordon(&cordon)).expect("an encoded record decodes");
            assert_eq!(decoded, cordon);
        }
        if let Ok(lease) = line.parse::<Lease>() {
            assert_eq!(lease.to_string().parse(), Ok(lease));
        }
        match decode(line) {
            Ok(entry) => {
                let decoded = decode(&encode(&entry)).expect("an encoded record decodes");
                assert_eq!(decoded, entry);
                entries.push(entry);
            }
            Err(error) => check_error(&error, line.len()),
        }
    }
    if !entries.is_empty() {
        query(&entries);
    }
}

/// Runs every ledger query once.
fn query(entries: &[Entry]) {
    let state = LedgerState::from_entries(entries.iter().cloned());
    let (controllers, policy) = (ControllersSnapshot::default(), QueuePolicy::default());
    let now = entries.iter().map(|entry| entry.since).max().unwrap_or_default();
    let queue = state.queue();
    let evaluated = state.evaluate_queue(&controllers, &policy, now);
    assert_eq!(queue.len(), evaluated.len());
    let stats = state.stats(&controllers);
    assert!(stats.used >= stats.quarantined);
    for now in [Timestamp::from_millis(0), now] {
        let settle = Duration::from_secs(30);
        let window = CallWindow { now, settle };
        for action in state.diff(&controllers, &Owners::default(), Duration::ZERO, now) {
            let _ = state.changes_for(&action, &controllers, &Owners::default(), window);
        }
        for entry in entries {
            let Some(owner) = entry.owner.clone() else {
                continue;
            };
            let spec = PartitionSpec::of_size(entry.spec.size);
            let request = Request::of_instance(owner, 0, spec);
            let step = state.request(&request, &controllers, &policy, window);
            if let Ok(step) = step {
                let mut next = state.clone();
                step.changes.iter().for_each(|change| next.apply(change));
            }
        }
    }
}

/// Input: the bytes of an SQLite file.
///
/// # Panics
///
/// If opening, reading or writing panics, or a refused file was modified.
pub fn ledger_file(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("ledger.db");
    let mut file = std::fs::File::create(&path).expect("create the file");
    file.write_all(bytes).expect("write the file");
    drop(file);
    let check_refusal = |error: StoreError| check_error(&error, bytes.len() + path.as_os_str().len());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("create a runtime");
    let store = match SqliteStore::open(&path) {
        Ok(store) => store,
        Err(error) => {
            if matches!(error, StoreError::Format(_)) {
                let now = std::fs::read(&path).expect("read the file again");
                assert!(now == bytes, "a ledger of another format was written to");
            }
            return check_refusal(error);
        }
    };
    runtime.block_on(async {
        match store.load(None).await {
            Ok(Some(snapshot)) => {
                query(&snapshot.entries);
                match store.commit(&snapshot.revision, &[]).await {
                    Ok(next) => assert_ne!(next, snapshot.revision, "a commit without a new revision"),
                    Err(error) => check_refusal(error),
                }
            }
            Ok(None) => panic!("the first load returned no snapshot"),
            Err(error) => check_refusal(error),
        }
    });
}
