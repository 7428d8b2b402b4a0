//! The fields of what is recorded of a job: those of `IpuJobStatus`, as the tests hold against it.

use super::FieldKind::{Any, Flag, Object, Objects, Scalar, Text, Texts};
use super::{Field, FieldPresence, WireFormat, field};

/// A moment.
const fn time(name: &'static str, about: &'static str) -> Field {
    field(name, Text, about).wire(WireFormat::Time)
}

/// A count.
const fn count(name: &'static str, about: &'static str) -> Field {
    field(name, Scalar, about).from(0)
}

/// Seconds, with a fraction.
const fn seconds(name: &'static str, about: &'static str) -> Field {
    field(name, Scalar, about).wire(WireFormat::Float)
}

/// What is recorded of a job. Nothing is required, so that a part of it can be written.
pub(in crate::crd) const STATUS: &[Field] = &[
    field(
        "launcherStatus",
        Text,
        "How far the job is, also if it has no launcher: Pending, Running, Restarting, Suspended, Completed, Failed or \
         Terminating.",
    )
    .presence(FieldPresence::Text("Pending")),
    count("currentReplicas", "Instances whose partition is active and whose workers exist."),
    count("desiredReplicas", "Instances that are asked for."),
    field("lastMessage", Text, "How far the job is, as a sentence, and the exact reason if it waits."),
    field(
        "iPUPartitionCreated",
        Flag,
        "Whether every instance has its partition for the attempt restartCount.",
    ),
    count("restartCount", "Restarts so far, after success and after failure."),
    time("startTime", "When the operator first took the job up."),
    time("completionTime", "When the job finished."),
    time("lastReconcileTime", "When this was last written."),
    field(
        "workersStatus",
        Object(WORKERS_STATUS),
        "How many worker Kubernetes Pods are in which state.",
    ),
    field(
        "conditions",
        Objects(CONDITION),
        "What the job is and was: one entry for each phase that it has reached.",
    ),
    field(
        "observedGeneration",
        Scalar,
        "The metadata.generation that this is the answer to.",
    )
    .wire(WireFormat::Long),
    field(
        "phase",
        Text,
        "How far the job is, for machines: the same as launcherStatus, and absent until the operator has looked at the job.",
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
        "What failed first in the last attempt that failed; it survives the clean-up.",
    ),
    field("attempts", Objects(ATTEMPT), "The last attempts that failed, the newest last."),
    field(
        "phaseSeconds",
        Object(PHASE_SECONDS),
        "Seconds that the job spent in each part of its way to running. They add up to the whole way.",
    ),
    count("restartsAfterFailure", "Restarts that count against restartPolicy.backOffLimit."),
    time(
        "firstRunTime",
        "When the first process of the job ran; activeDeadlineSeconds counts from here.",
    ),
    field("conclusion", Object(REASON), "Why the job finished."),
    count("exitCode", "The exit code of the job, once it has finished."),
    count("ipusHeld", "IPUs that the job holds, also when it has finished."),
];

const WORKERS_STATUS: &[Field] = &[
    count("active", "Pending or running."),
    count("succeeded", "Ended with code 0."),
    count("failed", "Ended otherwise."),
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
        "True for the phase that the job is in, False for those that it has left.",
    ),
    field("reason", Text, "IPUJob and the type."),
    field("message", Text, "One sentence."),
    time("lastUpdateTime", "When the message last changed."),
    time("lastTransitionTime", "When the status last changed."),
];

const INSTANCE: &[Field] = &[
    count("index", "Which, from 0."),
    field(
        "state",
        Text,
        "How far it is: Waiting, Preparing, Starting, Running, Releasing, Succeeded, SessionOver or Failed.",
    ),
    field("reason", Text, "Why, if it does not run."),
    field("partition", Text, "The id of its partition."),
    field("controller", Text, "The V-IPU controller that has it, host:port."),
    field("nodeLabel", Text, "The node label of that controller, key=value."),
    field("workers", Texts, "The names of its workers that exist."),
    count("attempt", "The attempt that runs or is to run, from 0."),
    time(
        "retryTime",
        "When the next attempt may start, while it backs off.",
    ),
    count("exitCode", "The exit code of an instance that failed for good."),
    time(
        "runningTime",
        "Since when all workers of this attempt were seen to run.",
    ),
    time(
        "launchTime",
        "Since when the launcher of this attempt was seen to run.",
    ),
    field(
        "done",
        Any,
        "The workers of this attempt that ended with code 0, by their number within the instance.",
    )
    .wire(WireFormat::Integers),
    count(
        "givenBack",
        "How often in a row its partition was given back because nothing could run on it.",
    ),
    field(
        "givenBackBecause",
        Object(REASON),
        "Why its partition was given back the last time, while givenBack is not 0.",
    ),
];

const FAILURE: &[Field] = &[
    count("instance", "Which instance."),
    count("attempt", "Which attempt."),
    count(
        "worker",
        "Which worker, by its number within the instance; absent if it was the launcher or the partition.",
    ),
    field(
        "name",
        Text,
        "The name of what failed: of a Kubernetes Pod, or of a partition.",
    ),
    field("kind", Text, "Worker, Launcher or Partition."),
    field("node", Text, "The node that it ran on."),
    count("exitCode", "Its exit code."),
    count("signal", "The signal that ended it."),
    field("reason", Text, "What is known of the cause."),
    time("time", "When."),
    field("log", Text, "The end of its log, at most 2 KiB."),
];

const ATTEMPT: &[Field] = &[
    count("instance", "Which instance."),
    count("attempt", "Which attempt."),
    field("name", Text, "What failed first."),
    field("reason", Text, "What is known of the cause."),
    time("time", "When."),
];

const PHASE_SECONDS: &[Field] = &[
    seconds("queue", "In the line, until its last partition was granted."),
    seconds("partition", "Until its last partition was ready."),
    seconds("schedule", "Until its last worker was placed on a node."),
    seconds("start", "Until everything ran."),
];

const REASON: &[Field] = &[
    field("code", Text, "A stable code, such as NotEnoughFree."),
    field("numbers", Any, "The numbers of the sentence, by name.").wire(WireFormat::NumberMap),
    field("message", Text, "One sentence."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::IpuJobStatus;
    use serde_json::Value;

    const FULL: &str = include_str!("../../../tests/data/status.json");

    /// The paths of all fields of the table.
    fn told(path: &str, fields: &[Field], to: &mut Vec<String>) {
        for field in fields {
            let path = format!("{path}.{}", field.name);
            match field.kind {
                Object(fields) | Objects(fields) => told(&path, fields, to),
                _ => to.push(path),
            }
        }
    }

    /// The paths of everything in `value` that the table does not leave to its kind.
    fn written(path: &str, value: &Value, all: &[String], to: &mut Vec<String>) {
        match value {
            Value::Object(fields) if !all.iter().any(|known| known == path) => {
                for (name, value) in fields {
                    written(&format!("{path}.{name}"), value, all, to);
                }
            }
            Value::Array(items) if items.iter().all(Value::is_object) => {
                for item in items {
                    written(path, item, all, to);
                }
            }
            _ => to.push(path.into()),
        }
    }

    #[test]
    fn the_table_has_the_fields_that_a_full_status_has_and_no_others() {
        let full: Value = serde_json::from_str(FULL).unwrap();
        let status: IpuJobStatus = serde_json::from_value(full.clone()).unwrap();
        // The file has every field that there is: nothing stayed as a default.
        let shown = format!("{status:?}");
        for absent in ["None", "[]", "\"\"", ": 0,", ": 0 "] {
            assert!(!shown.contains(absent), "{absent:?} in {shown}");
        }
        assert_eq!(serde_json::to_value(&status).unwrap(), full);

        let (mut table, mut fields) = (Vec::new(), Vec::new());
        told("", STATUS, &mut table);
        written("", &full, &table, &mut fields);
        table.sort();
        fields.sort();
        assert_eq!(fields, table);
    }
}
