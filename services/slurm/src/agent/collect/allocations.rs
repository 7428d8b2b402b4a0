//! Removes the allocations of runs that have ended, which no hook could remove.

use std::io;

use ipu_slurm::{RunStart, SlurmctldWatch};

use super::{SlurmFacts, partition_of};
use crate::agent::context::Context;
use crate::failure::Failure;
use crate::host_map::{Allocations, FoundRecord, record_name, records};

/// Removes the allocations of runs that have ended and have no partition any more. Adds a line for each.
/// The error names all allocations that could not be removed.
pub(in crate::agent) async fn collect(
    context: &Context,
    watch: &mut SlurmctldWatch,
    lines: &mut Vec<String>,
) -> Result<(), Failure> {
    let Some(allocations) = Allocations::of(&context.conf)? else {
        return Ok(());
    };
    let cluster = context.cluster.as_str();
    let found = own_records(context, &allocations)?;
    if found.is_empty() {
        return Ok(());
    }
    let partitions = context.proxy.partitions().await?;
    let in_ledger = partitions
        .iter()
        .filter_map(|partition| context.start_of(partition));
    let in_records = found.iter().map(|found| found.record.start.clone());
    let facts = SlurmFacts::load(context, in_ledger.chain(in_records).collect(), watch).await?;
    let mut problems = Vec::new();
    for FoundRecord { record, .. } in found {
        let start = &record.start;
        let partition = partition_of(context, start);
        let has_partition = partitions.iter().any(|one| Some(&one.id) == partition.as_ref());
        if has_partition || !facts.is_dead(start, true) {
            continue;
        }
        match allocations.remove(&context.proxy, cluster, start).await {
            Ok(true) => lines.push(format!("run {start} has ended: removed its allocation")),
            Ok(false) => {}
            Err(error) => problems.push(format!("run {start}: {}", error.0)),
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure(problems.join("; ")))
}

/// Returns the records of this cluster.
fn own_records(context: &Context, allocations: &Allocations<'_>) -> io::Result<Vec<FoundRecord>> {
    let cluster = context.cluster.as_str();
    // Another cluster may share the directory.
    let is_ours = |found: &FoundRecord| found.name == record_name(cluster, found.record.start.key.job_id);
    let found = records(allocations.directory())?;
    Ok(found.into_iter().filter(is_ours).collect())
}

/// Returns the starts that have an allocation. [`collect`] reports a directory that cannot be read.
pub(super) fn starts(context: &Context) -> Vec<RunStart> {
    let Ok(Some(allocations)) = Allocations::of(&context.conf) else {
        return Vec::new();
    };
    let found = own_records(context, &allocations).unwrap_or_default();
    found.into_iter().map(|found| found.record.start).collect()
}
