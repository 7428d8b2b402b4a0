//! Names, quantities and exit codes.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ipu_core::job::ExitCodeSet;
use ipu_core::{
    AgentId, AllocationId, ClusterId, ControllerName, CordonOwner, IpuCount, JobKey, JobName, JobUid,
    Namespace, PartitionId,
};
use serde::{Deserialize, Serialize};

use crate::decide::assert_round_trip;
use crate::error_messages::{check_error, text};

/// Parses each line as a name of every kind and as an IPU count; the first three lines also form a job key.
///
/// # Panics
///
/// If a name does not round-trip, or the partition ids of a job are invalid or not unique.
pub fn names(bytes: &[u8]) {
    let text = text(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    for line in &lines {
        check_name::<AgentId>(line);
        check_name::<AllocationId>(line);
        check_name::<ClusterId>(line);
        check_name::<ControllerName>(line);
        check_name::<CordonOwner>(line);
        check_name::<JobName>(line);
        check_name::<JobUid>(line);
        check_name::<Namespace>(line);
        check_name::<PartitionId>(line);
        match line.parse::<IpuCount>() {
            Ok(count) => {
                assert_eq!(count.to_string().parse(), Ok(count));
                assert_eq!(IpuCount::from_order(count.order()), Some(count));
                assert_round_trip(&count);
            }
            Err(error) => check_error(&error, line.len()),
        }
    }
    if let [namespace, job, uid, ..] = lines.as_slice()
        && let Ok(key) = JobKey::new(*namespace, *job, *uid)
    {
        assert_round_trip(&key);
        let ids = [0, 1, 10, u32::MAX].map(|instance| key.partition_id(instance));
        for (i, id) in ids.iter().enumerate() {
            assert!(id.is_derived() && id.is_derived_from(&key), "{id}");
            assert_eq!(PartitionId::new(id.as_str()).as_ref(), Ok(id));
            assert!(!ids[i + 1..].contains(id), "duplicate id {id}");
        }
    }
}

fn check_name<T>(text: &str)
where
    T: FromStr<Err = ipu_core::NameError>
        + Display
        + Debug
        + PartialEq
        + Serialize
        + for<'de> Deserialize<'de>,
{
    match text.parse::<T>() {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            assert_round_trip(&name);
        }
        Err(error) => check_error(&error, text.len()),
    }
}

/// Parses the input as a set of exit codes.
///
/// # Panics
///
/// If the set does not round-trip, or contains other codes than its printed form.
pub fn exit_codes(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<ExitCodeSet>() {
        Ok(set) => {
            let reparsed: ExitCodeSet = set.to_string().parse().expect("the printed form parses");
            assert_eq!(reparsed, set);
            assert_round_trip(&set);
            for code in 0..=255 {
                let listed = text.split(',').any(|part| {
                    let (from, to) = part.split_once('-').unwrap_or((part, part));
                    let number = |text: &str| text.trim().parse::<u8>().ok();
                    number(from)
                        .zip(number(to))
                        .is_some_and(|(from, to)| (from..=to).contains(&code))
                });
                assert_eq!(set.contains(code), listed, "{code} of {text}");
            }
        }
        Err(error) => {
            assert!(text.contains(&error.part));
            check_error(&error, bytes.len());
        }
    }
}
