//! What a ledger holds: stored entries, and the SQLite file.

use std::io::Write as _;
use std::time::Duration;

use ipu_core::{
    CallWindow, ControllersSnapshot, Entry, LedgerState, Owners, PartitionSpec, QueuePolicy, Request,
    Timestamp,
};
use ipu_ledger::{
    Lease, LedgerStore as _, SqliteStore, StoreError, decode, decode_cordon, encode, encode_cordon,
};

use crate::error_messages::{said_of, text};

/// A stored entry, a stored cordon or a lease a line.
///
/// # Panics
///
/// If one does not print as itself, or a ledger of the entries cannot be asked.
pub fn ledger_entries(bytes: &[u8]) {
    let text = text(bytes);
    let mut entries = Vec::new();
    for line in text.lines().take(16) {
        if let Ok(cordon) = decode_cordon(line) {
            let again = decode_cordon(&encode_cordon(&cordon)).expect("what is encoded is decoded");
            assert_eq!(again, cordon);
        }
        if let Ok(lease) = line.parse::<Lease>() {
            assert_eq!(lease.to_string().parse(), Ok(lease));
        }
        match decode(line) {
            Ok(entry) => {
                let again = decode(&encode(&entry)).expect("what is encoded is decoded");
                assert_eq!(again, entry);
                entries.push(entry);
            }
            Err(error) => said_of(&error, line.len()),
        }
    }
    if !entries.is_empty() {
        ask(&entries);
    }
}

/// Every question that a ledger answers, once.
fn ask(entries: &[Entry]) {
    let state = LedgerState::of(entries.iter().cloned());
    let (world, rules) = (ControllersSnapshot::default(), QueuePolicy::default());
    let now = entries.iter().map(|entry| entry.since).max().unwrap_or_default();
    let line = state.queue();
    let judged = state.evaluate_queue(&world, &rules, now);
    assert_eq!(line.len(), judged.len());
    let stats = state.stats(&world);
    assert!(stats.used >= stats.quarantined);
    for now in [Timestamp::from_millis(0), now] {
        let settle = Duration::from_secs(30);
        let window = CallWindow { now, settle };
        for action in state.diff(&world, &Owners::default(), Duration::ZERO, now) {
            let _ = state.act(&action, &world, &Owners::default(), window);
        }
        for entry in entries {
            let Some(owner) = entry.owner.clone() else {
                continue;
            };
            let spec = PartitionSpec::of_size(entry.spec.size);
            let request = Request::of_instance(owner, 0, spec);
            let step = state.request(&request, &world, &rules, window);
            if let Ok(step) = step {
                let mut next = state.clone();
                step.changes.iter().for_each(|change| next.apply(change));
            }
        }
    }
}

/// The bytes of an SQLite file.
///
/// # Panics
///
/// If opening, reading or writing it does, or a file that is refused was changed.
pub fn ledger_file(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for the file");
    let path = folder.path().join("ledger.db");
    let mut file = std::fs::File::create(&path).expect("make the file");
    file.write_all(bytes).expect("write the file");
    drop(file);
    let refused = |error: StoreError| said_of(&error, bytes.len() + path.as_os_str().len());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("make a runtime");
    let store = match SqliteStore::open(&path) {
        Ok(store) => store,
        Err(error) => {
            if matches!(error, StoreError::Format(_)) {
                let now = std::fs::read(&path).expect("read the file again");
                assert!(now == bytes, "a ledger of another format was written to");
            }
            return refused(error);
        }
    };
    runtime.block_on(async {
        match store.load(None).await {
            Ok(Some(snapshot)) => {
                ask(&snapshot.entries);
                match store.commit(&snapshot.revision, &[]).await {
                    Ok(next) => assert_ne!(next, snapshot.revision, "a commit without a new revision"),
                    Err(error) => refused(error),
                }
            }
            Ok(None) => panic!("nothing was read before, and nothing is newer"),
            Err(error) => refused(error),
        }
    });
}
