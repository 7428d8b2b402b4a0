//! The choice of a start.

use std::collections::BTreeMap;

use super::*;

fn start(uid: &str) -> RunStart {
    RunStart::from_uid(uid).unwrap()
}

fn file(uid: &str, state: FileState, used: Option<u32>) -> RunFile {
    let start = start(uid);
    RunFile {
        partition: partition_id(uid),
        start,
        state,
        used,
        hook: "1-1".to_owned(),
        ipus: Some(4),
        gcds: 1,
        variables: BTreeMap::new(),
    }
}

fn partition_id(uid: &str) -> PartitionId {
    start(uid).owner("testbed").unwrap().job.partition_id(0)
}

/// Returns the start that a hook of the run `7.100` chooses after the loss of the ledger, which left the
/// partitions of these starts without owner.
fn chosen_without_owners(earlier: &[RunFile], quarantined: &[&str]) -> (String, FileState) {
    let partitions: Vec<PartitionDocument> = quarantined
        .iter()
        .map(|uid| {
            let document = serde_json::json!({
                "id": partition_id(uid), "state": "quarantined", "instance": 0, "attempt": 0, "size": 4, "gcds": 1,
                "replicas": 1, "reconfigurable": false, "ipus": [], "since": 0, "priority": 0,
                "preemptible": false, "errors": [], "env": {},
            });
            serde_json::from_value(document).unwrap()
        })
        .collect();
    let key = start("7.100").key;
    let owner = OwnerDocument::from(&start("7.100").owner("testbed").unwrap());
    let choice = StartChoice {
        cluster: "testbed",
        key: &key,
        request: &PutPartition::new(owner, 4),
        earlier,
    };
    let (start, state) = choice.choose_from(&partitions);
    (start.to_string(), state)
}

#[test]
fn a_start_that_may_have_been_used_is_not_repeated_after_the_loss_of_the_ledger() {
    let next = |number: u32| (format!("7.100.{number}"), FileState::Pending);
    let undecided = |used| [file("7.100", FileState::Undecided, used)];
    // A hook was killed between the file of the first start and its own choice.
    assert_eq!(chosen_without_owners(&undecided(Some(0)), &["7.100"]), next(1));
    assert_eq!(chosen_without_owners(&undecided(Some(2)), &[]), next(3));
    // A file of an earlier version of this program.
    assert_eq!(chosen_without_owners(&undecided(None), &["7.100"]), next(1));
    let pending = [file("7.100.1", FileState::Pending, None)];
    assert_eq!(chosen_without_owners(&pending, &["7.100", "7.100.1"]), next(1));
    let other = [file("7.99", FileState::Undecided, Some(4))];
    let first = ("7.100".to_owned(), FileState::Pending);
    assert_eq!(chosen_without_owners(&other, &[]), first);
}
