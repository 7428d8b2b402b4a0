//! The table and the description of partitions, the same for a controller and for a proxy.

use ipu_core::Timestamp;
use ipu_core::hardware::IpuPlace;
use ipu_proxy_client::{CordonDocument, HoldState, OwnerDocument, PartitionDocument, cli, now};
use serde::Serialize;

use crate::cli::Format;
use crate::display;
use crate::exit_code::{Code, Failure};
use crate::output::Output;
use crate::table::{align, render};
use crate::time;

/// A partition as it is shown to people.
#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionSummary {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) size: u32,
    pub(crate) places: Vec<IpuPlace>,
    pub(crate) controller: String,
    /// `namespace/name`; empty without a known owner.
    pub(crate) owner: String,
    pub(crate) owner_kind: String,
    /// Start of the hold, or of the wait; none for partitions of other programs.
    pub(crate) since: Option<Timestamp>,
    pub(crate) gcds: u32,
    pub(crate) replicas: u32,
    pub(crate) reconfigurable: bool,
    pub(crate) allocation: String,
    pub(crate) attempt: Option<u32>,
    pub(crate) priority: Option<i32>,
    pub(crate) account: String,
    pub(crate) preemptible: Option<bool>,
    /// The demand in force that the owner releases the partition, as a sentence; empty without one.
    pub(crate) preemption: String,
    /// The reason why the partition is not ready; empty if it is.
    pub(crate) reason: String,
    /// The reason without the place in the queue; empty if the request is not queued.
    pub(crate) queue_reason: String,
}

impl PartitionSummary {
    /// Returns the summary of what a proxy reports; `cordons` explain requests that wait for cordoned
    /// hardware.
    pub(crate) fn from_document(partition: &PartitionDocument, cordons: &[CordonDocument]) -> Self {
        let owner = partition.owner.as_ref();
        let controller = partition.controller.as_ref();
        Self {
            id: partition.id.to_string(),
            state: cli::state_label(partition.state).to_owned(),
            size: partition.size,
            places: partition.ipus.clone(),
            controller: controller
                .map(|controller| controller.name.to_string())
                .unwrap_or_default(),
            owner: owner.map(OwnerDocument::qualified_name).unwrap_or_default(),
            owner_kind: owner.map(|owner| owner.kind.clone()).unwrap_or_default(),
            since: Some(partition.held_since.unwrap_or(partition.since)),
            gcds: partition.gcds,
            replicas: partition.replicas,
            reconfigurable: partition.reconfigurable,
            allocation: partition.allocation.clone().unwrap_or_default(),
            attempt: Some(partition.attempt),
            priority: Some(partition.priority),
            account: partition.account.clone().unwrap_or_default(),
            preemptible: Some(partition.preemptible),
            preemption: preemption(partition),
            reason: progress(partition, cordons),
            queue_reason: partition
                .waiting
                .as_ref()
                .map(|waiting| display::queue_reason(waiting, cordons))
                .unwrap_or_default(),
        }
    }

    fn age(&self, now: Timestamp) -> String {
        self.since.map(|since| time::age(since, now)).unwrap_or_default()
    }

    /// Returns all fields, one a line.
    fn describe(&self, now: Timestamp) -> String {
        let number = |number: Option<String>| number.unwrap_or_default();
        let rows = [
            ("Partition", self.id.clone()),
            ("State", self.state.clone()),
            ("Reason", self.reason.clone()),
            ("Size", display::count(self.size, "IPU")),
            ("IPUs", display::place_cell(&self.places)),
            ("GCDs", self.gcds.to_string()),
            ("Replicas", self.replicas.to_string()),
            ("Reconfigurable", self.reconfigurable.to_string()),
            ("Allocation", self.allocation.clone()),
            ("Controller", self.controller.clone()),
            ("Owner", self.owner.clone()),
            ("Owner kind", self.owner_kind.clone()),
            ("Account", self.account.clone()),
            (
                "Priority",
                number(self.priority.map(|priority| priority.to_string())),
            ),
            (
                "Preemptible",
                number(self.preemptible.map(|preemptible| preemptible.to_string())),
            ),
            ("Preemption", self.preemption.clone()),
            ("Attempt", number(self.attempt.map(|attempt| attempt.to_string()))),
            ("Since", self.since.map(time::format).unwrap_or_default()),
            ("Age", self.age(now)),
        ];
        rows.iter()
            .map(|(name, value)| {
                let value = if value.is_empty() { "-" } else { value };
                format!("{:16}{value}\n", format!("{name}:"))
            })
            .collect()
    }
}

/// Returns what a partition waits for, as a sentence: a place in the queue, or an operation of the
/// controller. Empty if it is active, unless a request demands it.
pub(crate) fn progress(partition: &PartitionDocument, cordons: &[CordonDocument]) -> String {
    if let Some(waiting) = &partition.waiting {
        return display::queued(waiting, cordons);
    }
    let reason = partition.reason.as_ref();
    let id = &partition.id;
    match (
        partition.state,
        reason.map(|reason| reason.code.as_str()).unwrap_or_default(),
    ) {
        (HoldState::Creating, "Creating" | "") => format!("Creating partition {id}…"),
        (HoldState::Resetting, "Resetting" | "") => format!("Resetting partition {id}…"),
        (HoldState::Releasing, "Releasing" | "") => format!("Releasing partition {id}…"),
        (HoldState::Active, "") => {
            let demand = partition.preemption.as_ref();
            demand
                .map(|demand| display::reason(&demand.reason))
                .unwrap_or_default()
        }
        _ => reason.map(display::reason).unwrap_or_default(),
    }
}

/// Returns who demands the partition, and since when. Empty without a demand.
fn preemption(partition: &PartitionDocument) -> String {
    let Some(demand) = &partition.preemption else {
        return String::new();
    };
    let owner = demand.owner.as_ref().map(OwnerDocument::qualified_name);
    format!(
        "{} with priority {}, since {}",
        owner.unwrap_or_else(|| demand.by.to_string()),
        demand.priority,
        time::format(demand.at)
    )
}

/// Prints partitions in the format that was requested; `documents` are the same partitions for programs.
pub(crate) fn print(
    summaries: &[PartitionSummary],
    documents: &impl Serialize,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    match format {
        Format::Name => {
            let names = summaries.iter().map(|summary| format!("{}\n", summary.id));
            output.result(&names.collect::<String>());
        }
        Format::Table | Format::Wide if summaries.is_empty() => output.say("No partitions found."),
        _ => output.result(&render(format, documents, || {
            table(summaries, format == Format::Wide, now())
        })?),
    }
    Ok(Code::Done)
}

/// Prints all fields of a partition; `document` is the same partition for programs.
pub(crate) fn print_description(
    summary: &PartitionSummary,
    document: &impl Serialize,
    format: Format,
    output: &Output,
) -> Result<Code, Failure> {
    output.result(&render(format, document, || summary.describe(now()))?);
    Ok(Code::Done)
}

/// Returns the table of partitions with its header.
pub(crate) fn table(summaries: &[PartitionSummary], wide: bool, now: Timestamp) -> String {
    let rows = summaries.iter().map(|summary| row(summary, wide, now));
    let rows: Vec<Vec<String>> = std::iter::once(headings(wide)).chain(rows).collect();
    align(&rows, &mut Vec::new())
}

/// Returns the header of the table.
pub(crate) fn headings(wide: bool) -> Vec<String> {
    let mut headings = vec!["PARTITION", "STATE", "SIZE", "IPUS", "CONTROLLER", "OWNER", "AGE"];
    if wide {
        headings.extend(["GCDS", "REPLICAS", "ATTEMPT", "PRIORITY", "REASON"]);
    }
    headings.into_iter().map(str::to_owned).collect()
}

/// Returns the row of a partition in the table.
pub(crate) fn row(summary: &PartitionSummary, wide: bool, now: Timestamp) -> Vec<String> {
    let mut cells = vec![
        summary.id.clone(),
        summary.state.clone(),
        summary.size.to_string(),
        display::place_cell(&summary.places),
        summary.controller.clone(),
        summary.owner.clone(),
        summary.age(now),
    ];
    if wide {
        let optional = |number: Option<String>| number.unwrap_or_default();
        cells.extend([
            summary.gcds.to_string(),
            summary.replicas.to_string(),
            optional(summary.attempt.map(|attempt| attempt.to_string())),
            optional(summary.priority.map(|priority| priority.to_string())),
            summary.reason.clone(),
        ]);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_table_has_the_columns_of_the_table_first() {
        let summary = PartitionSummary {
            id: "p".to_owned(),
            state: "active".to_owned(),
            size: 4,
            places: (0..4).map(|ipu| IpuPlace { link_domain: 0, ipu }).collect(),
            since: Some(Timestamp::from_millis(1_000)),
            ..PartitionSummary::default()
        };
        let now = Timestamp::from_millis(61_000);
        let narrow = table(std::slice::from_ref(&summary), false, now);
        assert_eq!(
            narrow,
            "PARTITION  STATE   SIZE  IPUS   CONTROLLER  OWNER  AGE\np          active  4     0:0-3  -           -      60s\n"
        );
        let wide = table(&[summary], true, now);
        for (narrow, wide) in narrow.lines().zip(wide.lines()) {
            assert!(wide.starts_with(narrow), "{wide}");
        }
        assert!(wide.lines().all(|line| line.len() > 60), "{wide}");
    }
}
