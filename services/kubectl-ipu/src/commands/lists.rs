//! `kubectl ipu controllers`, `partitions`, `waiting` and `cordons`: the state of the proxy.

use ipu_core::Timestamp;
use ipu_proxy_client::{
    BlockerDocument, ControllerStatus, CordonDocument, HoldState, OwnerDocument, PartitionDocument,
    ProxyClient,
};

use crate::cli::Format;
use crate::exit_code::{Code, Failure};
use crate::output::{self, Table, render};
use crate::proxy::failure;
use crate::time;

/// Prints the controllers. The exit code is 0 if all respond, else 69.
pub(crate) async fn controllers(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let list = proxy.controllers().await.map_err(failure)?;
    output::result(&render(format, &list, || controllers_table(&list.controllers))?)?;
    Ok(if list.controllers.iter().all(|status| status.available) {
        Code::Done
    } else {
        Code::Unavailable
    })
}

/// Prints the entries of the ledger, queued requests last.
pub(crate) async fn partitions(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let mut list = proxy.partitions().await.map_err(failure)?;
    list.sort_by_key(|partition| partition.state == HoldState::Waiting);
    let now = now();
    output::result(&render(format, &list, || partitions_table(&list, now))?)?;
    Ok(Code::Done)
}

/// Prints the queue in its order.
pub(crate) async fn waiting(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let queue = proxy.waiting().await.map_err(failure)?;
    let now = now();
    output::result(&render(format, &queue, || queue_table(&queue, now))?)?;
    Ok(Code::Done)
}

/// Prints the cordons.
pub(crate) async fn cordons(proxy: &ProxyClient, format: Format) -> Result<Code, Failure> {
    let list = proxy.cordons().await.map_err(failure)?;
    let now = now();
    output::result(&render(format, &list, || cordons_table(&list.cordons, now))?)?;
    Ok(Code::Done)
}

fn controllers_table(controllers: &[ControllerStatus]) -> String {
    let mut table = Table::new(&["CONTROLLER", "STATE", "FREE", "LARGEST", "VERSION", "ERROR"]);
    for status in controllers {
        let state = match (status.available, status.draining) {
            (true, false) => "available",
            (true, true) => "draining",
            (false, _) => "unavailable",
        };
        table.row([
            status.controller.name.to_string(),
            state.to_owned(),
            text(status.free),
            text(status.largest_block),
            text(status.version.as_ref()),
            text(status.error.as_ref()),
        ]);
    }
    table.text()
}

fn partitions_table(partitions: &[PartitionDocument], now: jiff::Timestamp) -> String {
    let mut table = Table::new(&[
        "PARTITION",
        "STATE",
        "SIZE",
        "CONTROLLER",
        "OWNER",
        "AGE",
        "REASON",
    ]);
    for partition in partitions {
        table.row([
            partition.id.to_string(),
            state(partition).to_owned(),
            partition.size.to_string(),
            text(partition.controller.as_ref().map(|controller| &controller.name)),
            owner(partition.owner.as_ref()),
            age(partition.held_since.unwrap_or(partition.since), now),
            reason(partition),
        ]);
    }
    table.text()
}

fn queue_table(queue: &[PartitionDocument], now: jiff::Timestamp) -> String {
    let mut table = Table::new(&[
        "POSITION", "OWNER", "INSTANCE", "SIZE", "PRIORITY", "AGE", "REASON", "BLOCKERS",
    ]);
    for request in queue {
        let waiting = request.waiting.as_ref();
        let blockers = waiting
            .map(|waiting| waiting.blockers.as_slice())
            .unwrap_or_default();
        table.row([
            text(waiting.map(|waiting| waiting.position)),
            owner(request.owner.as_ref()),
            request.instance.to_string(),
            request.size.to_string(),
            request.priority.to_string(),
            age(request.since, now),
            reason(request),
            blockers.iter().map(blocker).collect::<Vec<_>>().join(", "),
        ]);
    }
    table.text()
}

fn cordons_table(cordons: &[CordonDocument], now: jiff::Timestamp) -> String {
    let mut table = Table::new(&["NAME", "CONTROLLER", "MACHINE", "IPU", "OWNER", "AGE", "REASON"]);
    for cordon in cordons {
        table.row([
            cordon.id.to_string(),
            cordon.controller.to_string(),
            text(cordon.machine.as_ref()),
            text(cordon.ipu),
            cordon.owner.to_string(),
            age(cordon.since, now),
            cordon.reason.clone(),
        ]);
    }
    table.text()
}

/// Returns the state with the words of `ipuctl partition list`.
fn state(partition: &PartitionDocument) -> &'static str {
    match partition.state {
        HoldState::Waiting => "queued",
        other => other.label(),
    }
}

/// Returns the reason why a partition is not active, or why its request is queued.
fn reason(partition: &PartitionDocument) -> String {
    let waiting = partition.waiting.as_ref().map(|waiting| &waiting.reason);
    let reason = waiting.or(partition.reason.as_ref());
    reason.map_or_else(String::new, |reason| {
        format!("{}: {}", reason.code, reason.message)
    })
}

fn blocker(blocker: &BlockerDocument) -> String {
    match &blocker.owner {
        Some(_) => owner(blocker.owner.as_ref()),
        None => blocker.id.to_string(),
    }
}

fn owner(owner: Option<&OwnerDocument>) -> String {
    owner.map_or_else(String::new, |owner| format!("{}/{}", owner.namespace, owner.name))
}

fn text(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn now() -> jiff::Timestamp {
    jiff::Timestamp::now()
}

/// Returns the age of a time of the proxy; none if it is out of range.
fn age(since: Timestamp, now: jiff::Timestamp) -> String {
    let millis = i64::try_from(since.as_millis()).ok();
    let since = millis.and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    since.map_or_else(String::new, |since| time::age(since, now))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Time of the tables: an hour after the objects.
    const HOUR: i64 = 3_600_000;

    fn documents<T: serde::de::DeserializeOwned>(documents: Value) -> Vec<T> {
        serde_json::from_value(documents).unwrap()
    }

    fn hour() -> jiff::Timestamp {
        jiff::Timestamp::from_millisecond(HOUR).unwrap()
    }

    fn partition(id: &str, state: &str) -> Value {
        json!({
            "id": id, "state": state, "instance": 1, "attempt": 1, "size": 4, "gcds": 1, "replicas": 1,
            "owner": {"kind": "IPUJob", "namespace": "team", "name": "training", "uid": "u"},
            "reconfigurable": false, "controller": null, "ipus": [], "since": 0, "heldSince": null,
            "priority": 7, "account": null, "preemptible": false, "maxRuntimeSeconds": null,
            "leaseUntil": null, "waiting": null, "errors": [], "env": {},
        })
    }

    #[test]
    fn a_queued_request_shows_position_reason_and_blockers() {
        let mut queued = partition("p-training-1", "waiting");
        queued["waiting"] = json!({
            "position": 2,
            "reason": {"code": "Capacity", "message": "4 of 16 IPUs are free"},
            "blockers": [
                {"id": "p-other-0", "size": 4, "until": null,
                 "owner": {"kind": "IPUJob", "namespace": "team", "name": "other", "uid": "v"}},
                {"id": "p-foreign", "owner": null, "size": 4, "until": null},
            ],
            "earliestFit": null,
        });
        let queue = documents(json!([queued]));
        assert_eq!(
            queue_table(&queue, hour()),
            "POSITION  OWNER          INSTANCE  SIZE  PRIORITY  AGE  REASON                           BLOCKERS\n\
             2         team/training  1         4     7         60m  Capacity: 4 of 16 IPUs are free  \
             team/other, p-foreign\n"
        );
        assert_eq!(
            partitions_table(&queue, hour()),
            "PARTITION     STATE   SIZE  CONTROLLER  OWNER          AGE  REASON\n\
             p-training-1  queued  4     -           team/training  60m  Capacity: 4 of 16 IPUs are free\n"
        );
    }

    #[test]
    fn an_operation_of_the_controller_is_shown_as_such() {
        let all: Vec<PartitionDocument> = documents(json!([
            partition("p-training-0", "waiting"),
            partition("p-training-1", "creating"),
        ]));
        let states: Vec<&str> = all.iter().map(state).collect();
        assert_eq!(states, ["queued", "creating"]);
    }

    #[test]
    fn a_cordon_shows_hardware_owner_and_reason() {
        let cordons = documents(json!([
            {"id": "fan", "controller": "pod1:8090", "machine": "a1", "ipu": 0, "owner": "grace",
             "reason": "a fan is broken", "since": 0},
            {"id": "pod1-8090", "controller": "pod1:8090", "machine": null, "ipu": null, "owner": "grace",
             "reason": "moved", "since": 0},
        ]));
        assert_eq!(
            cordons_table(&cordons, hour()),
            "NAME       CONTROLLER  MACHINE  IPU  OWNER  AGE  REASON\n\
             fan        pod1:8090   a1       0    grace  60m  a fan is broken\n\
             pod1-8090  pod1:8090   -        -    grace  60m  moved\n"
        );
    }
}
