//! Sentences about partitions and queued requests.

use ipu_core::{ReasonCode, Timestamp};
use ipu_proxy_client::{BlockerDocument, PartitionDocument, UnrecordedPartition};
use ipu_slurm::host_map::waits_for_machines;
use ipu_slurm::text::{Holder, Shortage, shortage};

/// Returns the sentence about a request that waits at the proxy.
pub(crate) fn describe_wait(model: &str, partition: &PartitionDocument) -> String {
    let ipus = partition.size;
    let waiting = partition.waiting.as_ref();
    let reason = waiting
        .map(|waiting| &waiting.reason)
        .or(partition.reason.as_ref());
    let Some(reason) = reason else {
        return format!(
            "waits for {ipus} IPUs of {model}: the partition is {}",
            partition.state
        );
    };
    let number = |name: &str| reason.numbers.get(name).and_then(|n| u32::try_from(*n).ok());
    let blockers = waiting
        .map(|waiting| waiting.blockers.as_slice())
        .unwrap_or_default();
    // Any other reason says more than the number of free IPUs does.
    let is_shortage = matches!(reason.code, ReasonCode::NotEnoughFree | ReasonCode::Fragmented);
    match (number("free"), number("largestBlock")) {
        (Some(free), Some(largest)) if is_shortage => shortage(&Shortage {
            model: model.to_owned(),
            ipus,
            free,
            largest,
            holders: blockers.iter().map(holder_of_blocker).collect(),
        }),
        _ => {
            let holders: Vec<Holder> = blockers.iter().map(holder_of_blocker).collect();
            waits_for_machines(ipus, model, &reason.message, &holders)
        }
    }
}

fn holder_of_blocker(blocker: &BlockerDocument) -> Holder {
    Holder {
        owner: match &blocker.owner {
            Some(owner) => owner.to_string(),
            None => format!("partition {}", blocker.id),
        },
        ipus: blocker.size.map_or(0, ipu_core::IpuCount::get),
        until: blocker.until.map(time_text),
    }
}

/// Returns a partition that holds IPUs as a holder.
pub(crate) fn holder_of_partition(partition: &PartitionDocument) -> Holder {
    let start = partition.held_since.unwrap_or(partition.since);
    Holder {
        owner: match &partition.owner {
            Some(owner) => owner.to_string(),
            None => format!("partition {}", partition.id),
        },
        ipus: partition.size,
        until: partition
            .max_runtime_seconds
            .map(|seconds| time_text(start.plus(std::time::Duration::from_secs(seconds)))),
    }
}

/// Returns a partition that the ledger does not record as a holder.
pub(crate) fn holder_of_foreign(partition: &UnrecordedPartition) -> Holder {
    Holder {
        owner: format!("partition {}", partition.id),
        ipus: partition.size,
        until: None,
    }
}

/// Returns a time in the notation of RFC 3339, in UTC.
fn time_text(time: Timestamp) -> String {
    let seconds = i64::try_from(time.as_millis() / 1000).ok();
    let time = seconds.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "unknown".to_owned(), |time| time.to_string())
}
