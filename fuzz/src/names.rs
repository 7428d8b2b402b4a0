//! Names, quantities and exit codes.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ipu_core::{
    AgentId, AllocationId, ClusterId, ControllerName, CordonOwner, ExitCodeSet, IpuCount, JobKey, JobName,
    JobUid, Namespace, PartitionId,
};
use serde::{Deserialize, Serialize};

use crate::decide::prints_as_itself;
use crate::error_messages::{said_of, text};

/// Each line as a name of every kind and as a count of IPUs; three of them as the key of a job.
///
/// # Panics
///
/// If a name does not print as itself, or the partition ids of a job are none or belong to another instance too.
pub fn names(bytes: &[u8]) {
    let text = text(bytes);
    let lines: Vec<&str> = text.split('\n').collect();
    for line in &lines {
        name::<AgentId>(line);
        name::<AllocationId>(line);
        name::<ClusterId>(line);
        name::<ControllerName>(line);
        name::<CordonOwner>(line);
        name::<JobName>(line);
        name::<JobUid>(line);
        name::<Namespace>(line);
        name::<PartitionId>(line);
        match line.parse::<IpuCount>() {
            Ok(count) => {
                assert_eq!(count.to_string().parse(), Ok(count));
                assert_eq!(IpuCount::from_order(count.order()), Some(count));
                prints_as_itself(&count);
            }
            Err(error) => said_of(&error, line.len()),
        }
    }
    if let [namespace, job, uid, ..] = lines.as_slice()
        && let Ok(key) = JobKey::new(*namespace, *job, *uid)
    {
        prints_as_itself(&key);
        let ids = [0, 1, 10, u32::MAX].map(|instance| key.partition_id(instance));
        for (i, id) in ids.iter().enumerate() {
            assert!(id.is_derived() && id.is_derived_from(&key), "{id}");
            assert_eq!(PartitionId::new(id.as_str()).as_ref(), Ok(id));
            assert!(!ids[i + 1..].contains(id), "{id} twice");
        }
    }
}

fn name<T>(text: &str)
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
            prints_as_itself(&name);
        }
        Err(error) => said_of(&error, text.len()),
    }
}

/// A set of exit codes.
///
/// # Panics
///
/// If it does not print as itself, or holds other codes than its printed form.
pub fn exit_codes(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<ExitCodeSet>() {
        Ok(set) => {
            let again: ExitCodeSet = set.to_string().parse().expect("what is printed is a set");
            assert_eq!(again, set);
            prints_as_itself(&set);
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
            said_of(&error, bytes.len());
        }
    }
}
