//! Limits and text forms of names.

use std::str::FromStr;

use ipu_core::{AccountName, AllocationId, CordonId, JobKey, JobName, Owner, PartitionId};

/// Maximum number of characters, and whether a text is accepted.
type LimitOfName = (usize, fn(&str) -> bool);

fn parses<T: FromStr>(text: &str) -> bool {
    text.parse::<T>().is_ok()
}

#[test]
fn a_name_has_one_to_its_maximum_number_of_characters() {
    let types: [LimitOfName; 7] = [
        (50, parses::<PartitionId>),
        (50, |text| PartitionId::requested(text).is_ok()),
        (253, parses::<AllocationId>),
        (63, |text| AllocationId::requested(text).is_ok()),
        (63, parses::<CordonId>),
        (253, parses::<JobName>),
        (63, parses::<AccountName>),
    ];
    for (row, (maximum, is_accepted)) in types.into_iter().enumerate() {
        for len in 0..=300 {
            let expected = (1..=maximum).contains(&len);
            assert_eq!(
                is_accepted(&"a".repeat(len)),
                expected,
                "row {row}, {len} characters"
            );
        }
    }
}

#[test]
fn an_owner_is_shown_with_its_kind_namespace_and_name() {
    let owner = Owner::new("IPUJob", JobKey::new("default", "mnist", "4f1c").unwrap());
    assert_eq!(owner.to_string(), "IPUJob default/mnist");
}
