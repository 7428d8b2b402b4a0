//! Records of format 1, written by the build before the names of the code changed, in every state and with
//! every field.

use ipu_ledger::{LedgerStore, SqliteStore, decode, decode_cordon, encode, encode_cordon};

const RECORDS: &str = include_str!("../data/format-1.jsonl");
/// A database of a proxy with one active partition, two queued requests and a cordon.
const DATABASE: &[u8] = include_bytes!("../data/ledger-0.1.db");

#[test]
fn records_of_format_1_are_read_and_written_unchanged() {
    let (mut entries, mut cordons) = (0, 0);
    for line in RECORDS.lines() {
        if line.contains("\"exclusion\":") {
            assert_eq!(encode_cordon(&decode_cordon(line).unwrap()), line);
            cordons += 1;
        } else {
            assert_eq!(encode(&decode(line).unwrap()), line);
            entries += 1;
        }
    }
    assert_eq!((entries, cordons), (21, 2));
}

#[tokio::test]
async fn a_database_of_format_1_is_read_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ledger.db");
    std::fs::write(&path, DATABASE).unwrap();
    let stored = SqliteStore::open(&path)
        .unwrap()
        .load(None)
        .await
        .unwrap()
        .unwrap();
    let states: Vec<_> = stored
        .entries
        .iter()
        .map(|entry| (entry.id.as_str(), entry.state.label()))
        .collect();
    assert_eq!(
        states,
        [("one", "active"), ("three", "waiting"), ("two", "waiting")]
    );
    let cordons: Vec<_> = stored
        .cordons
        .iter()
        .map(|cordon| cordon.reason.as_str())
        .collect();
    assert_eq!(cordons, ["a fan is broken"]);
}
