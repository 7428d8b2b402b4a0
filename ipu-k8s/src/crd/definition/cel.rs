//! The CEL rules of the CRD, which the API server evaluates however a job is changed: `kubectl scale` calls
//! no webhook of the main resource.
//!
//! They are rules of the core that do not depend on the limits of an installation. A violation that a stored
//! job already has is not reported again, so that no rule prevents its deletion. Below `spec` the API server
//! itself ensures that: it skips rules on unchanged values (ratcheting). The whole object always changes, so
//! its rules compare it with the old object. `spec` is required by such a rule only, because a job that was
//! stored without one could otherwise never lose its finalizer.
//!
//! To evaluate a field, the API server (1.36) copies the schemas of all its siblings and their content, with
//! each write of a status too. So the rules about several fields are combined into one rule of `spec` and two
//! about changes. Their messages have a sentence for each violated [`Clause`].

use serde_json::{Value, json};

use crate::crd::schema::MAX_COUNT;

/// Maximum number of IPUs of a reconfigurable partition: those of one link domain.
const MAX_RECONFIGURABLE_SIZE: u32 = 64;

/// Maximum length of a process name in characters, because it becomes a host name.
const MAX_LABEL_LEN: usize = 63;

/// Returns the rule of an integer from 1 to `max` at `path`, as a number or a string.
pub(super) fn count(path: &str, max: u32) -> Value {
    rule_with_value(
        path,
        &format!("[{}].all(n, n >= 1 && n <= {max})", number("self")),
        &format!("must be a whole number from 1 to {max}; write digits only"),
    )
}

/// Returns the rule of a power of two up to `max` at `path`, as a number or a string.
pub(super) fn power_of_two(path: &str, max: u32) -> Value {
    rule_with_value(
        path,
        &format!("{} in {}", number("self"), powers()),
        &format!("must be a power of two from 1 to {max}; use 1, 2, 4, 8 and so on"),
    )
}

/// Returns a CEL expression about the specification at a path.
type CelExpression = dyn Fn(&str) -> String;

/// A condition of a job, and the message if it is violated.
struct Clause {
    condition: String,
    message: String,
}

/// Returns the clauses about all fields together, with `w` workers in an instance. Values that are not
/// numbers are left to the rules of their fields.
fn spec_clauses() -> Vec<Clause> {
    let ipus = ipus_of("self");
    let alpha = "has(self.modelReplicas) && has(self.ipusPerModelReplica)";
    let powers = powers();
    let clause = |condition: String, message: &str| Clause {
        condition,
        message: message.into(),
    };
    vec![
        clause(
            format!("has(self.ipusPerJobInstance) || ({alpha})"),
            "spec.ipusPerJobInstance is absent: every job says how many IPUs one instance needs; add ipusPerJobInstance: a power \
             of two",
        ),
        clause(
            format!(
                "!has(self.modelReplicas) || has(self.ipusPerJobInstance) || [{ipus}].all(i, i == 0 || i in {powers})"
            ),
            "spec.modelReplicas × spec.ipusPerModelReplica is read as the IPUs of one instance: must be a power of two from 1 to \
             65536; write ipusPerJobInstance instead of both",
        ),
        clause(
            format!("w <= 1 || {ipus} % w == 0"),
            "spec.workersPerJobInstance (or workers.replicas): each worker of an instance has a GCD of its own, and the GCDs must \
             divide the IPUs of the instance; use a power of two up to these IPUs",
        ),
        clause(
            // A job has at most as many workers as it may have instances.
            format!("w <= 1 || self.?jobInstances.orValue(1) * w <= {MAX_COUNT}"),
            "spec.jobInstances × workers of an instance are more than 65536 workers, which no system has IPUs for; use fewer \
             instances",
        ),
        clause(
            format!("!has(self.reconfigurable) || !self.reconfigurable || {ipus} <= {MAX_RECONFIGURABLE_SIZE}"),
            "spec.reconfigurable = true: a partition of more than 64 IPUs uses GW-links, which a reconfigurable one cannot; remove \
             it, or ask for fewer IPUs",
        ),
        clause(
            "!has(self.launcher) || has(self.interactive) || (has(self.launcher.command) && size(self.launcher.command) > 0)"
                .into(),
            "spec.launcher.command is absent or empty: a launcher starts the work with a command; add the program and its \
             arguments, one list item each",
        ),
    ]
}

/// Rule that the size of partitions and the number of model replicas are immutable while the job holds IPUs.
///
/// In the current form both are compared field by field. The alpha form needs a computation with the workers
/// and further fields, so only jobs of that form evaluate it.
struct UnchangedRule {
    condition: String,
    /// Messages of the rule.
    sentences: Vec<Clause>,
}

fn partition_clauses() -> UnchangedRule {
    let (new, old) = ("self.spec", "oldSelf.spec");
    let same = |of: &dyn Fn(&str) -> String| format!("{} == {}", of(new), of(old));
    let current_field = |spec: &str| format!("{spec}.ipusPerJobInstance");
    let plain = format!("has({}) && has({})", current_field(new), current_field(old));
    let ipus = same(&|spec| number(&current_field(spec)));
    let each = same(&|spec| {
        let field = format!("{spec}.modelReplicasPerWorker");
        format!("(has({field}) ? {} : 1)", number(&field))
    });
    let ipus_of_any = same(&ipus_of);
    // The immutability of the workers is a separate clause.
    let each_of_any = format!("[{}].all(w, {})", workers_of(new), same(&replicas_of));
    let clause = |condition: &str, field: &str| Clause {
        condition: condition.into(),
        message: immutable_message(field),
    };
    UnchangedRule {
        condition: format!("({plain} ? {ipus} && {each} : {ipus_of_any} && {each_of_any})"),
        sentences: vec![
            clause(&ipus_of_any, "ipusPerJobInstance"),
            clause(
                &each_of_any,
                "modelReplicasPerWorker (in the alpha form modelReplicas)",
            ),
        ],
    }
}

/// Returns the message about a field that is immutable while the job holds IPUs.
fn immutable_message(field: &str) -> String {
    format!(
        "spec.{field} cannot change while the job holds IPUs, which were chosen for it; suspend the job, change it when its phase is \
         Suspended and go on, or make a new job"
    )
}

/// Returns the clauses about further fields that are immutable while a job holds IPUs, because its partitions
/// and processes depend on them.
fn immutable_while_held() -> Vec<Clause> {
    let reconfigurable = |spec: &str| format!("{spec}.?reconfigurable.orValue(false)");
    let allocation = |spec: &str| format!("(has({spec}.allocation) ? {spec}.allocation : '')");
    let launcher = |spec: &str| format!("has({spec}.launcher)");
    let interactive = |spec: &str| format!("has({spec}.interactive)");
    let fields: [(&str, &CelExpression); 5] = [
        ("workersPerJobInstance", &workers_of),
        ("reconfigurable", &reconfigurable),
        ("allocation", &allocation),
        ("launcher", &launcher),
        ("interactive", &interactive),
    ];
    let clauses = fields.iter().map(|(field, of)| Clause {
        condition: format!("{} == {}", of("self.spec"), of("oldSelf.spec")),
        message: immutable_message(field),
    });
    clauses.collect()
}

/// Returns the clauses about fields that are always immutable.
fn immutable_fields() -> Vec<Clause> {
    vec![Clause {
        condition:
            "has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && (!has(self.spec.managedBy) || \
                self.spec.managedBy == oldSelf.spec.managedBy)"
                .into(),
        message: "spec.managedBy cannot change: two controllers would manage the job; create a new job"
            .into(),
    }]
}

/// Returns the rule of `spec`.
pub(super) fn spec_rules() -> Value {
    let (workers, clauses) = (workers_of("self"), spec_clauses());
    json!([{
        "rule": format!("[{workers}].all(w, {})", all(&clauses)),
        "message": "spec asks for what no system can give",
        "messageExpression": format!("[{workers}].map(w, {})[0]", sentences(&clauses)),
    }])
}

/// Returns the rules of a whole job. They are several, because the API server limits the estimated cost of
/// each rule.
pub(super) fn job_rules() -> Value {
    let (partition, rest, always, growth) = (
        partition_clauses(),
        immutable_while_held(),
        immutable_fields(),
        growth_clause(),
    );
    let rule = |condition: &str, message: &str| {
        json!({
            "rule": format!("{IS_FIRST_STATUS} || !has(self.spec) || !has(oldSelf.spec) || {condition}"),
            "fieldPath": ".spec",
            "message": "spec has changed where it cannot",
            "messageExpression": message,
        })
    };
    let mut rules = vec![
        rule(
            &format!("{HOLDS_NOTHING} || {}", partition.condition),
            &sentences(&partition.sentences),
        ),
        rule(
            &format!("({HOLDS_NOTHING} || {}) && {}", all(&rest), all(&always)),
            &format!(
                "({HOLDS_NOTHING} ? '' : {}) + {}",
                sentences(&rest),
                sentences(&always)
            ),
        ),
        json!({
            "rule": growth.condition,
            "fieldPath": ".metadata",
            "message": growth.message,
        }),
    ];
    rules.extend(new_job_clauses().map(|(path, clause)| {
        json!({
            "rule": clause.condition,
            "fieldPath": path,
            "optionalOldSelf": true,
            "message": clause.message,
        })
    }));
    rules.into()
}

/// Returns the clauses about new jobs, with the reported field. They do not apply to a job that existed
/// before with a `spec`.
fn new_job_clauses() -> [(&'static str, Clause); 3] {
    let clause = |condition: String, message: &str| Clause {
        condition: format!("oldSelf.hasValue(){condition}"),
        message: message.into(),
    };
    let before = " && has(oldSelf.value().spec)";
    [
        (
            ".spec",
            clause(
                " && !has(oldSelf.value().spec) || has(self.spec)".into(),
                "spec is absent: every job says what it asks for; add ipusPerJobInstance and workers to it",
            ),
        ),
        (
            ".metadata",
            clause(
                " || !self.metadata.name.contains('.')".into(),
                "metadata.name: must be lower-case letters, digits and '-', beginning with a letter or digit (DNS-1123), because host \
                 names are derived from it; leave out the dots",
            ),
        ),
        (
            ".metadata",
            clause(
                format!("{before} || !has(self.spec) || {}", names_fit()),
                NAME_TOO_LONG,
            ),
        ),
    ]
}

/// Returns the clause about changes of the number of processes: no more of them have too long a name than
/// before.
fn growth_clause() -> Clause {
    let no_more = |of: &CelExpression| format!("{} <= {}", of("self.spec"), of("oldSelf.spec"));
    Clause {
        condition: format!(
            "{} || !has(oldSelf.spec) || {} && {}",
            names_fit(),
            no_more(&instances_of),
            no_more(&processes_of)
        ),
        message: NAME_TOO_LONG.into(),
    }
}

const NAME_TOO_LONG: &str = "metadata.name: the name of the last process, <job>-worker-<n> or <job>-launcher-<n>, must fit in 63 characters; use \
                        a shorter name, or fewer instances or workers";

/// Returns the condition that all names derived from a job's are valid labels. Short names always are, which
/// skips the rest.
fn names_fit() -> String {
    let (name, instances) = ("size(self.metadata.name)", instances_of("self.spec"));
    let shortest = MAX_LABEL_LEN - "-launcher-65535".len();
    let launcher = format!("({instances} <= 1 ? 9 : 10 + size(string({instances} - 1)))");
    let worker = "(all <= 10 ? 9 : 8 + size(string(all - 1)))";
    format!(
        "{name} <= {shortest} || !has(self.spec) || {name} + {launcher} <= {MAX_LABEL_LEN} && [{}].all(all, {name} + {worker} <= {MAX_LABEL_LEN})",
        processes_of("self.spec")
    )
}

fn instances_of(spec: &str) -> String {
    format!("{spec}.?jobInstances.orValue(1)")
}

fn processes_of(spec: &str) -> String {
    format!("{} * {}", instances_of(spec), workers_of(spec))
}

/// Returns the messages of all clauses.
pub(super) fn messages() -> Vec<String> {
    let clauses = partition_clauses()
        .sentences
        .into_iter()
        .chain(immutable_while_held())
        .chain(immutable_fields())
        .chain(spec_clauses())
        .chain(new_job_clauses().map(|(_, clause)| clause));
    clauses.map(|clause| clause.message).collect()
}

/// Returns the conjunction of all clauses.
fn all(clauses: &[Clause]) -> String {
    let parts = clauses.iter().map(|clause| format!("({})", clause.condition));
    parts.collect::<Vec<_>>().join(" && ")
}

/// Returns an expression with a sentence for each violated clause.
fn sentences(clauses: &[Clause]) -> String {
    let parts = clauses
        .iter()
        .map(|clause| format!("(({}) ? '' : '{}. ')", clause.condition, clause.message));
    parts.collect::<Vec<_>>().join(" + ")
}

/// Condition for the first write of a status: a write of the rest cannot add or remove a status, nor one of a
/// status the rest.
const IS_FIRST_STATUS: &str = "has(self.status) != has(oldSelf.status)";

/// Condition for a job that holds nothing that a change could contradict, according to its status. After a
/// job is resumed, its status still reports it as suspended until the next write, while it may have a
/// partition already.
const HOLDS_NOTHING: &str = "(has(self.status) && has(self.status.phase) && (self.status.phase in ['Completed', 'Failed'] || \
                    self.status.phase == 'Suspended' && has(oldSelf.spec.suspend) && oldSelf.spec.suspend) && \
                    (!has(self.status.ipusHeld) || self.status.ipusHeld == 0))";

/// Returns the IPUs of one instance of `spec`, from either form; 0 if they are unknown.
fn ipus_of(spec: &str) -> String {
    let current_field = format!("{spec}.ipusPerJobInstance");
    let (replicas, each) = (
        format!("{spec}.modelReplicas"),
        format!("{spec}.ipusPerModelReplica"),
    );
    format!(
        "(has({current_field}) ? {} : has({replicas}) && has({each}) ? {} * {} : 0)",
        number(&current_field),
        number(&replicas),
        number(&each),
    )
}

/// Returns the workers of one instance of `spec`: the first of three fields that differs from 1; 0 if they
/// are unknown.
fn workers_of(spec: &str) -> String {
    let (current_field, misspelt_field) = (
        format!("{spec}.workersPerJobInstance"),
        format!("{spec}.workerPerJobInstance"),
    );
    // The cost estimate of optional access to a possible string is infinite.
    let replicas = format!("{spec}.?workers.?replicas.orValue(1)");
    let unless_one = |field: &str| format!("(string({field}) != '1' ? {} : {replicas})", number(field));
    format!(
        "(has({current_field}) ? {} : has({misspelt_field}) ? {} : {replicas})",
        unless_one(&current_field),
        unless_one(&misspelt_field)
    )
}

/// Returns the model replicas of each of `w` workers of one instance of `spec`, from either form.
fn replicas_of(spec: &str) -> String {
    let (each, current_field, all) = (
        format!("{spec}.modelReplicasPerWorker"),
        format!("{spec}.ipusPerJobInstance"),
        format!("{spec}.modelReplicas"),
    );
    format!(
        "(has({each}) ? {} : has({current_field}) || !has({all}) || w == 0 ? 1 : [{}].map(r, r % w == 0 ? r / w : 1)[0])",
        number(&each),
        number(&all),
    )
}

/// Returns the number in `value`, as a number or a string, far from overflow; 0 if there is none.
fn number(value: &str) -> String {
    format!("(string({value}).matches('^[0-9]{{1,9}}$') ? int({value}) : 0)")
}

/// Returns all valid sizes, which are powers of two.
fn powers() -> String {
    let powers = (0..=MAX_COUNT.ilog2()).map(|exponent| (1_u32 << exponent).to_string());
    format!("[{}]", powers.collect::<Vec<_>>().join(", "))
}

/// Returns a rule of the one field at `path` whose message contains the value.
fn rule_with_value(path: &str, expression: &str, message: &str) -> Value {
    json!({
        "rule": expression,
        "message": format!("{path}: {message}"),
        "messageExpression": format!("'{path} = ' + string(self) + ': {message}'"),
    })
}
