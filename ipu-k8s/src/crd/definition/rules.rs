//! What the API server itself checks of a job, whichever way it is changed: `kubectl scale` asks no webhook of others.
//!
//! Rules of the core, as far as they need neither the limits of an installation nor a name. A rule of one field is not asked
//! again while the field stays as it was, so that no rule keeps a stored job from being deleted.
//!
//! Every write of a status asks all of them, and each look at a field makes the API server (1.36) copy the schemas of all its
//! siblings, twice if the field is there: two fifths of the time of such a write, before the rules looked less often.

use serde_json::{Value, json};

use crate::crd::schema::MOST;

/// The most IPUs that a reconfigurable partition has: those of one link domain.
const MOST_RECONFIGURABLE: u32 = 64;

/// A whole number from 1 to `most` at `path`, bare or in quotes.
pub(super) fn count(path: &str, most: u32) -> Value {
    told_with_value(
        path,
        &format!("[{}].all(n, n >= 1 && n <= {most})", number("self")),
        &format!("must be a whole number from 1 to {most}; write digits only"),
    )
}

/// A power of two up to `most` at `path`, bare or in quotes.
pub(super) fn power_of_two(path: &str, most: u32) -> Value {
    told_with_value(
        path,
        &format!("{} in {}", number("self"), powers()),
        &format!("must be a power of two from 1 to {most}; use 1, 2, 4, 8 and so on"),
    )
}

/// What holds for all that a job asks for together. What is no number is left to the rule of its field.
pub(super) fn of_spec() -> Value {
    let (ipus, workers) = (ipus_of("self"), workers_of("self"));
    let alpha = "has(self.modelReplicas) && has(self.ipusPerModelReplica)";
    let powers = powers();
    [
        rule(
            ".ipusPerJobInstance",
            &format!("has(self.ipusPerJobInstance) || ({alpha})"),
            "spec.ipusPerJobInstance is absent: every job says how many IPUs one instance needs; add ipusPerJobInstance: a power \
             of two",
        ),
        rule(
            ".modelReplicas",
            &format!("has(self.ipusPerJobInstance) || [{ipus}].all(i, i == 0 || i in {powers})"),
            "spec.modelReplicas × spec.ipusPerModelReplica is read as the IPUs of one instance: must be a power of two from 1 to \
             65536; write ipusPerJobInstance instead of both",
        ),
        rule(
            ".workersPerJobInstance",
            &format!("[{workers}].all(w, w <= 1 || {ipus} % w == 0)"),
            "spec.workersPerJobInstance (or workers.replicas): each worker of an instance has a GCD of its own, and the GCDs must \
             divide the IPUs of the instance; use a power of two up to these IPUs",
        ),
        rule(
            ".jobInstances",
            &format!("[self.?jobInstances.orValue(1)].all(n, n <= 1 || n * {workers} <= {MOST})"),
            "spec.jobInstances × workers of an instance are more than 65536 workers, which no system has IPUs for; use fewer \
             instances",
        ),
        rule(
            ".reconfigurable",
            &format!("!has(self.reconfigurable) || !self.reconfigurable || {ipus} <= {MOST_RECONFIGURABLE}"),
            "spec.reconfigurable = true: a partition of more than 64 IPUs uses GW-links, which a reconfigurable one cannot; remove \
             it, or ask for fewer IPUs",
        ),
        rule(
            ".launcher",
            "!has(self.launcher) || has(self.interactive) || (has(self.launcher.command) && size(self.launcher.command) > 0)",
            "spec.launcher.command is absent or empty: a launcher starts the work with a command; add the program and its \
             arguments, one list item each",
        ),
    ]
    .into_iter()
    .collect()
}

/// What stays as it is while a job holds IPUs, because its partitions and processes were made for it; and who looks after it.
pub(super) fn of_changes() -> Value {
    // What is cheap first.
    let fixed = |field: &str, of: &dyn Fn(&str) -> String| {
        rule(
            &format!(".spec.{field}"),
            &format!(
                "{FIRST_STATUS} || {} == {} || {FREE}",
                of("self.spec"),
                of("oldSelf.spec")
            ),
            &format!(
                "spec.{field} cannot change while the job holds IPUs, which were chosen for it; suspend the job, change it when \
                 its phase is Suspended and go on, or make a new job"
            ),
        )
    };
    let replicas = |spec: &str| {
        let field = format!("{spec}.modelReplicasPerWorker");
        format!("(has({field}) ? {} : 1)", number(&field))
    };
    let reconfigurable = |spec: &str| format!("{spec}.?reconfigurable.orValue(false)");
    let allocation = |spec: &str| format!("(has({spec}.allocation) ? {spec}.allocation : '')");
    [
        fixed("ipusPerJobInstance", &ipus_of),
        fixed("workersPerJobInstance", &workers_of),
        fixed("modelReplicasPerWorker", &replicas),
        fixed("reconfigurable", &reconfigurable),
        fixed("allocation", &allocation),
        fixed("launcher", &|spec| format!("has({spec}.launcher)")),
        fixed("interactive", &|spec| format!("has({spec}.interactive)")),
        rule(
            ".spec.managedBy",
            &format!(
                "{FIRST_STATUS} || has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && (!has(self.spec.managedBy) || \
                 self.spec.managedBy == oldSelf.spec.managedBy)"
            ),
            "spec.managedBy cannot change: two would look after the job; make a new job",
        ),
    ]
    .into_iter()
    .collect()
}

/// Whether this is the first write of a status: one of the rest cannot bring or take a status, nor one of a status the rest.
const FIRST_STATUS: &str = "has(self.status) != has(oldSelf.status)";

/// Whether the job holds nothing that a change could contradict, as its status says.
const FREE: &str = "(has(self.status) && has(self.status.phase) && self.status.phase in ['Suspended', 'Completed', 'Failed'] && \
                    (!has(self.status.ipusHeld) || self.status.ipusHeld == 0))";

/// The IPUs of one instance of `spec`, from either form; 0 if they cannot be told.
fn ipus_of(spec: &str) -> String {
    let right = format!("{spec}.ipusPerJobInstance");
    let (replicas, each) = (
        format!("{spec}.modelReplicas"),
        format!("{spec}.ipusPerModelReplica"),
    );
    format!(
        "(has({right}) ? {} : has({replicas}) && has({each}) ? {} * {} : 0)",
        number(&right),
        number(&replicas),
        number(&each),
    )
}

/// The workers of one instance of `spec`: the first of three fields that says something else than 1. 0 if they cannot be told.
fn workers_of(spec: &str) -> String {
    let (right, misspelt) = (
        format!("{spec}.workersPerJobInstance"),
        format!("{spec}.workerPerJobInstance"),
    );
    // Optional access to what may be text is taken for infinitely costly.
    let replicas = format!("{spec}.workers.?replicas.orValue(1)");
    let says = |field: &str| format!("(string({field}) != '1' ? {} : {replicas})", number(field));
    format!(
        "(has({right}) ? {} : has({misspelt}) ? {} : {replicas})",
        says(&right),
        says(&misspelt)
    )
}

/// The number in `value`, bare or in quotes, far from overflow; 0 if there is none.
fn number(value: &str) -> String {
    format!("(string({value}).matches('^[0-9]{{1,9}}$') ? int({value}) : 0)")
}

/// All powers of two that a size may be.
fn powers() -> String {
    let powers = (0..=MOST.ilog2()).map(|exponent| (1_u32 << exponent).to_string());
    format!("[{}]", powers.collect::<Vec<_>>().join(", "))
}

fn rule(field: &str, expression: &str, message: &str) -> Value {
    json!({"rule": expression, "fieldPath": field, "message": message})
}

/// A rule of the one field at `path` whose message has the value in it.
fn told_with_value(path: &str, expression: &str, message: &str) -> Value {
    json!({
        "rule": expression,
        "message": format!("{path}: {message}"),
        "messageExpression": format!("'{path} = ' + string(self) + ': {message}'"),
    })
}
