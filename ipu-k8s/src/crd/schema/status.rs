//! The fields of the status: those of `IpuJobStatus`, as the tests verify.

use super::FieldKind::{Any, Flag, Object, Objects, Scalar, Text, Texts};
use super::{Field, FieldPresence, WireFormat, field};

/// Creates a timestamp field.
const fn time(name: &'static str, description: &'static str) -> Field {
    field(name, Text, description).wire(WireFormat::Time)
}

/// Creates a count field.
const fn count(name: &'static str, description: &'static str) -> Field {
    field(name, Scalar, description).from(0)
}

/// Creates a field of fractional seconds.
const fn seconds(name: &'static str, description: &'static str) -> Field {
    field(name, Scalar, description).wire(WireFormat::Float)
}

/// Fields of the status. None is required, so that a part of the status can be written.
pub(in crate::crd) const STATUS: &[Field] = &[
    field(
        "launcherStatus",
        Text,
        "Phase of the job, even if it has no launcher: Pending, Running, Restarting, Suspended, Completed, Failed or \
         Terminating.",
    )
    .presence(FieldPresence::Text("Pending")),
    count("currentReplicas", "Instances whose partition is active and whose workers exist."),
    count("desiredReplicas", "Requested instances."),
    field("lastMessage", Text, "The state of the job as a sentence, and the exact reason if it waits."),
    field(
        "iPUPartitionCreated",
        Flag,
        "True if every instance has its partition for the attempt restartCount.",
    ),
    count("restartCount", "Restarts so far, after success and after failure."),
    time("startTime", "When the operator first reconciled the job."),
    time("completionTime", "When the job finished."),
    time("lastReconcileTime", "When the status was last written."),
    field(
        "workersStatus",
        Object(WORKERS_STATUS),
        "Number of worker pods in each state.",
    ),
    field(
        "conditions",
        Objects(CONDITION),
        "Current and past phases: one entry for each phase that the job has reached.",
    ),
    field(
        "observedGeneration",
        Scalar,
        "The metadata.generation that this status is based on.",
    )
    .wire(WireFormat::Long),
    field(
        "phase",
        Text,
        "Phase of the job for programs: equal to launcherStatus, and absent until the operator has reconciled the job.",
    ),
    field(
        "selector",
        Text,
        "The label selector of the job's workers, for the scale subresource.",
    ),
    field("instances", Objects(INSTANCE), "The instances, in order of their index."),
    field(
        "firstFailure",
        Object(FAILURE),
        "First failure of the last failed attempt; it is kept after the clean-up.",
    ),
    field("attempts", Objects(ATTEMPT), "The last failed attempts, the newest last."),
    field(
        "phaseSeconds",
        Object(PHASE_SECONDS),
        "Seconds that the job spent in each part of its start. They add up to the total start time.",
    ),
    count("restartsAfterFailure", "Restarts that count against restartPolicy.backOffLimit."),
    time(
        "firstRunTime",
        "When the first process of the job ran; activeDeadlineSeconds counts from here.",
    ),
    count(
        "preemptionCount",
        "Number of attempts that requests of higher priority preempted.",
    ),
    field("lastPreemption", Object(PREEMPTION), "The latest preemption."),
    field("conclusion", Object(REASON), "Why the job finished."),
    count("exitCode", "The exit code of the job, once it has finished."),
    count("ipusHeld", "IPUs that the job holds, also when it has finished."),
];

const WORKERS_STATUS: &[Field] = &[
    count("active", "Pending or running."),
    count("succeeded", "Exited with code 0."),
    count("failed", "Failed in any other way."),
];

const CONDITION: &[Field] = &[
    field(
        "type",
        Text,
        "Pending, Running, Restarting, Suspended, Completed, Failed or Terminating.",
    ),
    field(
        "status",
        Text,
        "True for the current phase, False for past phases.",
    ),
    field("reason", Text, "IPUJob and the type."),
    field("message", Text, "One sentence."),
    time("lastUpdateTime", "When the message last changed."),
    time("lastTransitionTime", "When the status last changed."),
];

const INSTANCE: &[Field] = &[
    count("index", "Index of the instance, from 0."),
    field(
        "state",
        Text,
        "State of the instance: Waiting, Preparing, Starting, Running, Releasing, Succeeded, SessionOver or Failed.",
    ),
    field("reason", Text, "Reason why it does not run."),
    field("partition", Text, "The id of its partition."),
    field(
        "controller",
        Text,
        "The V-IPU controller of the partition, host:port.",
    ),
    field("nodeLabel", Text, "The node label of that controller, key=value."),
    field("workers", Texts, "The names of its workers that exist."),
    count("attempt", "Current or next attempt, from 0."),
    time(
        "retryTime",
        "When the next attempt may start, while it backs off.",
    ),
    count("exitCode", "The exit code of an instance that failed for good."),
    time(
        "runningTime",
        "Time since which all workers of this attempt were observed running.",
    ),
    time(
        "launchTime",
        "Time since which the launcher of this attempt was observed running.",
    ),
    field(
        "done",
        Any,
        "The workers of this attempt that exited with code 0, by their index within the instance.",
    )
    .wire(WireFormat::Integers),
    count(
        "givenBack",
        "Number of consecutive releases of its partition because its processes could not start.",
    ),
    field(
        "givenBackBecause",
        Object(REASON),
        "Reason of the last such release, while givenBack is not 0.",
    ),
];

const FAILURE: &[Field] = &[
    count("instance", "Index of the instance."),
    count("attempt", "Number of the attempt."),
    count(
        "worker",
        "Index of the worker within the instance; absent if the launcher or the partition failed.",
    ),
    field("name", Text, "Name of the failed pod or partition."),
    field("kind", Text, "Worker, Launcher or Partition."),
    field("node", Text, "The node of the pod."),
    count("exitCode", "Its exit code."),
    count("signal", "The signal that ended it."),
    field("reason", Text, "Known cause of the failure."),
    time("time", "Time of the failure."),
    field("log", Text, "The end of its log, at most 2 KiB."),
];

const ATTEMPT: &[Field] = &[
    count("instance", "Index of the instance."),
    count("attempt", "Number of the attempt."),
    field("name", Text, "Name of the pod or partition that failed first."),
    field("reason", Text, "Known cause of the failure."),
    time("time", "Time of the failure."),
];

const PREEMPTION: &[Field] = &[
    count("instance", "Index of the instance."),
    count("attempt", "Number of the preempted attempt."),
    time("time", "When the attempt was stopped."),
    field(
        "reason",
        Object(REASON),
        "The reason, which names the preempting request.",
    ),
];

const PHASE_SECONDS: &[Field] = &[
    seconds("queue", "In the queue, until its last partition was granted."),
    seconds("partition", "Until its last partition was ready."),
    seconds("schedule", "Until its last worker was scheduled to a node."),
    seconds("start", "Until all processes ran."),
];

const REASON: &[Field] = &[
    field("code", Text, "A stable code, such as NotEnoughFree."),
    field("numbers", Any, "The numbers in the sentence, by name.").wire(WireFormat::NumberMap),
    field("message", Text, "One sentence."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::IpuJobStatus;
    use serde_json::Value;

    const FULL: &str = include_str!("../../../tests/data/status.json");

    /// Collects the paths of all fields of the table.
    fn table_paths(path: &str, fields: &[Field], to: &mut Vec<String>) {
        for field in fields {
            let path = format!("{path}.{}", field.name);
            match field.kind {
                Object(fields) | Objects(fields) => table_paths(&path, fields, to),
                _ => to.push(path),
            }
        }
    }

    /// Collects the paths of everything in `value` that is not opaque in the table.
    fn value_paths(path: &str, value: &Value, all: &[String], to: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !all.iter().any(|known| known == path) => {
                for (name, value) in fields {
                    value_paths(&format!("{path}.{name}"), value, all, to);
                }
            }
            Value::Array(items) if items.iter().all(Value::is_object) => {
                for item in items {
                    value_paths(path, item, all, to);
                }
            }
            _ => to.push(path.into()),
        }
    }

    #[test]
    fn the_table_has_exactly_the_fields_of_a_full_status() {
        let full: Value = serde_json::from_str(FULL).unwrap();
        let status: IpuJobStatus = serde_json::from_value(full.clone()).unwrap();
        // The file has every field: none has its default.
        let shown = format!("{status:?}");
        for absent in ["None", "[]", "\"\"", ": 0,", ": 0 "] {
            assert!(!shown.contains(absent), "{absent:?} in {shown}");
        }
        assert_eq!(serde_json::to_value(&status).unwrap(), full);

        let (mut table, mut fields) = (Vec::new(), Vec::new());
        table_paths("", STATUS, &mut table);
        value_paths("", &full, &table, &mut fields);
        table.sort();
        fields.sort();
        assert_eq!(fields, table);
    }
}
