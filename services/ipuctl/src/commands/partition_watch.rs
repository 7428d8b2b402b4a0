//! `ipuctl partition list --watch`: prints the partitions, then a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use ipu_core::Timestamp;
use ipu_proxy_client::now;

use super::partition_table::{PartitionSummary, headings, row};
use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::align;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The state shown in the last line of a partition.
const REMOVED: &str = "removed";

/// Lists partitions until the reader of standard output closes it.
///
/// # Errors
///
/// Those of `list`, at the first poll that fails.
pub(crate) async fn watch(
    list: impl AsyncFn() -> Result<Vec<PartitionSummary>, Failure>,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    let mut watch = PartitionWatch::new(format);
    let first = list().await?;
    if first.is_empty() {
        output.say("No partitions found.");
    }
    let mut text = watch.update(first, now());
    while output.write_result(&text).is_ok() {
        tokio::time::sleep(POLL_INTERVAL).await;
        text = watch.update(list().await?, now());
    }
    Ok(Code::Done)
}

/// The partitions at the last poll.
struct PartitionWatch {
    format: Format,
    partitions: BTreeMap<String, PartitionSummary>,
    /// Widths of the columns so far; empty before the header is printed.
    widths: Vec<usize>,
}

impl PartitionWatch {
    const fn new(format: Format) -> Self {
        Self {
            format,
            partitions: BTreeMap::new(),
            widths: Vec::new(),
        }
    }

    /// Replaces the partitions. Returns the lines of those that are new, changed or removed.
    fn update(&mut self, partitions: Vec<PartitionSummary>, now: Timestamp) -> String {
        let current: BTreeMap<String, PartitionSummary> = partitions
            .into_iter()
            .map(|partition| (partition.id.clone(), partition))
            .collect();
        let previous = std::mem::replace(&mut self.partitions, current);
        let removed = previous
            .iter()
            .filter(|(id, _)| !self.partitions.contains_key(*id))
            .map(|(_, partition)| PartitionSummary {
                state: REMOVED.to_owned(),
                reason: String::new(),
                ..partition.clone()
            });
        let changed = self.partitions.iter().filter(|(id, partition)| {
            previous
                .get(*id)
                .is_none_or(|old| self.has_changed(old, partition))
        });
        let lines: Vec<PartitionSummary> = removed
            .chain(changed.map(|(_, partition)| partition.clone()))
            .collect();
        self.render(&lines, now)
    }

    /// Returns whether a shown field differs, or the attempt, which a reset increments. The age does not
    /// count.
    fn has_changed(&self, old: &PartitionSummary, new: &PartitionSummary) -> bool {
        let fields = |partition: &PartitionSummary| {
            let start = partition.since.unwrap_or_default();
            (row(partition, self.is_wide(), start), start, partition.attempt)
        };
        fields(old) != fields(new)
    }

    fn is_wide(&self) -> bool {
        self.format == Format::Wide
    }

    fn render(&mut self, partitions: &[PartitionSummary], now: Timestamp) -> String {
        if self.format == Format::Name {
            return partitions
                .iter()
                .map(|partition| format!("{}\n", partition.id))
                .collect();
        }
        let header = (self.widths.is_empty() && !partitions.is_empty()).then(|| headings(self.is_wide()));
        let rows = partitions
            .iter()
            .map(|partition| row(partition, self.is_wide(), now));
        let rows: Vec<Vec<String>> = header.into_iter().chain(rows).collect();
        align(&rows, &mut self.widths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(id: &str, state: &str, reason: &str) -> PartitionSummary {
        PartitionSummary {
            id: id.to_owned(),
            state: state.to_owned(),
            size: 4,
            reason: reason.to_owned(),
            since: Some(Timestamp::from_millis(1_000)),
            attempt: Some(0),
            ..PartitionSummary::default()
        }
    }

    #[test]
    fn each_change_is_one_aligned_line_under_one_header() {
        let mut watch = PartitionWatch::new(Format::Table);
        let mut update = |partitions: &[PartitionSummary], second: u64| {
            watch.update(partitions.to_vec(), Timestamp::from_millis(second * 1_000))
        };
        assert_eq!(update(&[], 1), "");
        let queued = partition("training", "queued", "Queued at position 2");
        assert_eq!(
            update(std::slice::from_ref(&queued), 1),
            "PARTITION  STATE   SIZE  IPUS  CONTROLLER  OWNER  AGE\n\
             training   queued  4     -     -           -      0s\n"
        );
        let moved = partition("training", "queued", "Queued at position 1");
        assert_eq!(update(&[moved], 5), "", "age and reason are not shown");
        let active = partition("training", "active", "");
        assert_eq!(
            update(&[active.clone(), partition("x", "creating", "")], 6),
            "training   active  4     -     -           -      5s\n\
             x          creating  4     -     -           -      5s\n"
                .replace("active  4", "active    4")
        );
        let reset = PartitionSummary {
            attempt: Some(1),
            ..active
        };
        assert_eq!(
            update(&[reset], 7),
            "x          removed   4     -     -           -      6s\n\
             training   active    4     -     -           -      6s\n"
        );
    }

    #[test]
    fn a_wide_watch_shows_the_reason_and_a_watch_of_names_has_no_header() {
        let mut wide = PartitionWatch::new(Format::Wide);
        let mut names = PartitionWatch::new(Format::Name);
        let now = Timestamp::from_millis(1_000);
        for reason in ["Queued at position 2", "Queued at position 1"] {
            let partitions = vec![partition("p", "queued", reason)];
            assert!(
                wide.update(partitions.clone(), now)
                    .ends_with(&format!("{reason}\n"))
            );
            names.update(partitions, now);
        }
        assert_eq!(names.update(vec![partition("p", "active", "")], now), "p\n");
        assert_eq!(names.update(Vec::new(), now), "p\n");
        assert_eq!(names.update(Vec::new(), now), "");
    }
}
