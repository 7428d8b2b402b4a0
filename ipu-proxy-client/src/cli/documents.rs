//! Documents as tables.

use ipu_core::Timestamp;

use super::table::Table;
use super::time;
use crate::api::{ControllerList, ControllerStatus, CordonDocument, HoldState, RecordDocument, Stats};

/// Returns the text of a value; empty if there is none.
pub fn text_or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Returns the name of a state as the tables show it.
#[must_use]
pub const fn state_label(state: HoldState) -> &'static str {
    match state {
        HoldState::Waiting => "queued",
        other => other.label(),
    }
}

/// Returns the controllers with state and free IPUs.
#[must_use]
pub fn controllers(list: &ControllerList) -> Table {
    let mut table = Table::new(&[
        "CONTROLLER",
        "STATE",
        "FREE",
        "LARGEST",
        "PLACEMENT",
        "VERSION",
        "ERROR",
    ]);
    for status in &list.controllers {
        table.row([
            status.controller.name.to_string(),
            controller_state(status).to_owned(),
            text_or_empty(status.free),
            text_or_empty(status.largest_block),
            text_or_empty(status.placement.as_ref()),
            text_or_empty(status.version.as_ref()),
            text_or_empty(status.error.as_ref()),
        ]);
    }
    table
}

const fn controller_state(status: &ControllerStatus) -> &'static str {
    match (status.available, status.draining) {
        (true, false) => "available",
        (true, true) => "draining",
        (false, _) => "unavailable",
    }
}

/// Returns the machines with their cordons and partitions. A controller that does not answer, or does not
/// report its hardware, is one row without a machine.
///
/// ```
/// use ipu_proxy_client::cli::machines;
/// use ipu_proxy_client::{ControllerDocument, ControllerList, ControllerStatus, CordonList, MachineDocument};
///
/// let mut status = ControllerStatus::new(ControllerDocument::new("pod1:8090".parse()?));
/// status.available = true;
/// status.machines = vec![
///     MachineDocument::new("a1".parse()?, 0, vec!["training".parse()?]),
///     MachineDocument::new("a2".parse()?, 4, vec![]),
/// ];
/// let list: CordonList = serde_json::from_str(
///     r#"{"cordons":[
///         {"id":"fan","controller":"pod1:8090","machine":"a2","ipu":null,"owner":"anonymous",
///          "reason":"a fan is broken","since":1795982444291},
///         {"id":"link","controller":"pod1:8090","machine":"a1","ipu":1,"owner":"anonymous",
///          "reason":"link errors","since":1795982444329}
///     ]}"#,
/// )?;
/// let expected = "\
/// CONTROLLER  MACHINE  STATE      FREE  PARTITIONS  CORDON
/// pod1:8090   a1       available  0     training    IPU 1: link errors
/// pod1:8090   a2       cordoned   4     -           a fan is broken
/// ";
/// assert_eq!(machines(&ControllerList::new(vec![status]), &list.cordons).to_string(), expected);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn machines(list: &ControllerList, cordons: &[CordonDocument]) -> Table {
    let mut table = Table::new(&["CONTROLLER", "MACHINE", "STATE", "FREE", "PARTITIONS", "CORDON"]);
    for status in &list.controllers {
        let controller = &status.controller.name;
        if status.machines.is_empty() {
            let state = controller_state(status).to_owned();
            let error = text_or_empty(status.error.as_ref());
            table.row([
                controller.to_string(),
                String::new(),
                state,
                String::new(),
                String::new(),
                error,
            ]);
        }
        for machine in &status.machines {
            let own: Vec<&CordonDocument> = cordons
                .iter()
                .filter(|cordon| cordon.controller == *controller)
                .filter(|cordon| cordon.machine.as_ref().is_none_or(|name| *name == machine.name))
                .collect();
            let is_whole = own.iter().any(|cordon| cordon.ipu.is_none());
            let reason = |cordon: &&CordonDocument| match cordon.ipu {
                Some(ipu) => format!("IPU {ipu}: {}", cordon.reason),
                None => cordon.reason.clone(),
            };
            let partitions: Vec<String> = machine.partitions.iter().map(ToString::to_string).collect();
            table.row([
                controller.to_string(),
                machine.name.to_string(),
                if is_whole {
                    "cordoned"
                } else {
                    controller_state(status)
                }
                .to_owned(),
                machine.free.to_string(),
                partitions.join(", "),
                own.iter().map(reason).collect::<Vec<_>>().join("; "),
            ]);
        }
    }
    table
}

/// Returns the cordons with owner, age and reason.
#[must_use]
pub fn cordons(cordons: &[CordonDocument], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "CONTROLLER", "MACHINE", "IPU", "OWNER", "AGE", "REASON"]);
    for cordon in cordons {
        table.row([
            cordon.id.to_string(),
            cordon.controller.to_string(),
            text_or_empty(cordon.machine.as_ref()),
            text_or_empty(cordon.ipu),
            cordon.owner.to_string(),
            time::age(cordon.since, now),
            cordon.reason.clone(),
        ]);
    }
    table
}

/// Returns used and available IPUs by namespace, those of the whole system last.
#[must_use]
pub fn stats(stats: &Stats) -> Table {
    let mut table = Table::new(&["NAMESPACE", "USED", "AVAILABLE"]);
    let (totals, namespaces): (Vec<_>, Vec<_>) = stats.0.iter().partition(|(name, _)| *name == Stats::TOTAL);
    for (name, usage) in namespaces.into_iter().chain(totals) {
        table.row([name.clone(), usage.used.to_string(), usage.available.to_string()]);
    }
    table
}

/// Returns a note about the partitions that the ledger does not record; none if there are none. Nothing
/// releases them but their users.
#[must_use]
pub fn foreign_partitions(list: &ControllerList) -> Option<String> {
    let of_controller = |status: &ControllerStatus| {
        let name = status.controller.name.clone();
        let foreign = status.foreign.iter();
        let foreign =
            foreign.map(move |partition| format!("{} ({} IPUs at {name})", partition.id, partition.size));
        foreign.collect::<Vec<_>>()
    };
    let all: Vec<String> = list.controllers.iter().flat_map(of_controller).collect();
    (!all.is_empty()).then(|| {
        format!(
            "Used by partitions of other programs: {}. If no process uses one, its user removes it with `vipu remove partition`.",
            all.join(", ")
        )
    })
}

/// Returns finished holds with owner, times and size.
#[must_use]
pub fn usage(records: &[RecordDocument]) -> Table {
    let mut table = Table::new(&[
        "PARTITION",
        "OWNER",
        "ACCOUNT",
        "SIZE",
        "FROM",
        "TO",
        "IPU-SECONDS",
        "END",
    ]);
    for record in records {
        table.row([
            record.id.to_string(),
            text_or_empty(record.owner.as_ref()),
            text_or_empty(record.account.as_ref()),
            record.size.to_string(),
            time::format(record.held_since),
            time::format(record.released_at),
            ipu_seconds(record),
            record.end.clone(),
        ]);
    }
    table
}

/// Returns the seconds of a hold, with milliseconds.
#[must_use]
pub fn held_seconds(record: &RecordDocument) -> String {
    seconds(held_millis(record))
}

/// Returns the seconds of a hold times its IPUs, with milliseconds.
///
/// ```
/// use ipu_proxy_client::RecordDocument;
/// use ipu_proxy_client::cli::{held_seconds, ipu_seconds};
///
/// let record: RecordDocument = serde_json::from_str(
///     r#"{"id":"training","owner":{"kind":"IPUJob","namespace":"default","name":"mnist","uid":"1"},
///         "instance":0,"account":null,"controller":"pod1:8090","size":8,"attempts":1,
///         "heldSince":1795982442520,"releasedAt":1795982446787,"end":"released"}"#,
/// )?;
/// assert_eq!((held_seconds(&record), ipu_seconds(&record)), ("4.267".into(), "34.136".into()));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use]
pub fn ipu_seconds(record: &RecordDocument) -> String {
    seconds(held_millis(record).saturating_mul(u64::from(record.size)))
}

fn held_millis(record: &RecordDocument) -> u64 {
    let length = record.released_at.since(record.held_since);
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1000, millis % 1000)
}
