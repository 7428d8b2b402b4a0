//! What the API server itself checks of a job, whichever way it is changed: `kubectl scale` asks no webhook of others.
//!
//! Rules of the core, as far as they do not need the limits of an installation. What a stored job broke already is not asked of it
//! again, so that no rule keeps it from being deleted. Below `spec` the API server itself sees to that: it asks nothing of what an
//! update leaves as it is. The whole job is never left as it is, so that its rules look at the job before themselves; and `spec` is
//! not required of it but by such a rule, because a job that was stored without one could otherwise never lose its finalizer.
//!
//! To look at a field, the API server (1.36) copies the schemas of all its siblings, and of all that is in it, with each write of
//! a status too. So what needs more than one field is one rule of `spec` and two of changes, and their messages have a
//! sentence for each [`Clause`] that does not hold.

use serde_json::{Value, json};

use crate::crd::schema::MAX_COUNT;

/// The most IPUs that a reconfigurable partition has: those of one link domain.
const MAX_RECONFIGURABLE_SIZE: u32 = 64;

/// The most characters of the name of a process, which becomes a host name.
const MAX_LABEL: usize = 63;

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

/// The expression of what a specification says of something.
type CelExpression = dyn Fn(&str) -> String;

/// Something that holds of a job, and what is said if it does not.
struct Clause {
    holds: String,
    otherwise: String,
}

/// What holds for all that a job asks for together, with `w` workers in an instance. What is no number is left to the rule of its
/// field.
fn of_all_fields() -> Vec<Clause> {
    let ipus = ipus_of("self");
    let alpha = "has(self.modelReplicas) && has(self.ipusPerModelReplica)";
    let powers = powers();
    let clause = |holds: String, otherwise: &str| Clause {
        holds,
        otherwise: otherwise.into(),
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
            // As many instances of one worker as there may be instances.
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

/// How large the partitions of a job are and for how many model replicas, which stays as it is while the job holds IPUs.
///
/// In today's form both are compared field by field. To reckon what the alpha form says takes the workers and more fields, so only
/// jobs of that form are asked for them.
struct UnchangedRule {
    holds: String,
    /// What is said of it.
    sentences: Vec<Clause>,
}

fn of_made() -> UnchangedRule {
    let (new, old) = ("self.spec", "oldSelf.spec");
    let same = |of: &dyn Fn(&str) -> String| format!("{} == {}", of(new), of(old));
    let right = |spec: &str| format!("{spec}.ipusPerJobInstance");
    let plain = format!("has({}) && has({})", right(new), right(old));
    let ipus = same(&|spec| number(&right(spec)));
    let each = same(&|spec| {
        let field = format!("{spec}.modelReplicasPerWorker");
        format!("(has({field}) ? {} : 1)", number(&field))
    });
    let ipus_of_any = same(&ipus_of);
    // That the workers stay the same is a clause of its own.
    let each_of_any = format!("[{}].all(w, {})", workers_of(new), same(&replicas_of));
    let clause = |holds: &str, field: &str| Clause {
        holds: holds.into(),
        otherwise: fixed(field),
    };
    UnchangedRule {
        holds: format!("({plain} ? {ipus} && {each} : {ipus_of_any} && {each_of_any})"),
        sentences: vec![
            clause(&ipus_of_any, "ipusPerJobInstance"),
            clause(
                &each_of_any,
                "modelReplicasPerWorker (in the alpha form modelReplicas)",
            ),
        ],
    }
}

/// What is said of a field that has changed while it must not.
fn fixed(field: &str) -> String {
    format!(
        "spec.{field} cannot change while the job holds IPUs, which were chosen for it; suspend the job, change it when its phase is \
         Suspended and go on, or make a new job"
    )
}

/// What else stays as it is while a job holds IPUs, because its partitions and processes were made for it.
fn of_changes() -> Vec<Clause> {
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
        holds: format!("{} == {}", of("self.spec"), of("oldSelf.spec")),
        otherwise: fixed(field),
    });
    clauses.collect()
}

/// What stays as it is for ever.
fn of_all_changes() -> Vec<Clause> {
    vec![Clause {
        holds: "has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && (!has(self.spec.managedBy) || \
                self.spec.managedBy == oldSelf.spec.managedBy)"
            .into(),
        otherwise: "spec.managedBy cannot change: two would look after the job; make a new job".into(),
    }]
}

/// The rule of all of `spec`.
pub(super) fn of_spec() -> Value {
    let (workers, clauses) = (workers_of("self"), of_all_fields());
    json!([{
        "rule": format!("[{workers}].all(w, {})", all(&clauses)),
        "message": "spec asks for what no system can give",
        "messageExpression": format!("[{workers}].map(w, {})[0]", sentences(&clauses)),
    }])
}

/// The rules of a whole job. Several, because the API server reckons what a rule could cost, and one would cost too much.
pub(super) fn of_job() -> Value {
    let (made, rest, ever, growth) = (of_made(), of_changes(), of_all_changes(), of_growth());
    let rule = |holds: &str, message: &str| {
        json!({
            "rule": format!("{FIRST_STATUS} || !has(self.spec) || !has(oldSelf.spec) || {holds}"),
            "fieldPath": ".spec",
            "message": "spec has changed where it cannot",
            "messageExpression": message,
        })
    };
    let mut rules = vec![
        rule(&format!("{FREE} || {}", made.holds), &sentences(&made.sentences)),
        rule(
            &format!("({FREE} || {}) && {}", all(&rest), all(&ever)),
            &format!("({FREE} ? '' : {}) + {}", sentences(&rest), sentences(&ever)),
        ),
        json!({
            "rule": growth.holds,
            "fieldPath": ".metadata",
            "message": growth.otherwise,
        }),
    ];
    rules.extend(of_new().map(|(path, clause)| {
        json!({
            "rule": clause.holds,
            "fieldPath": path,
            "optionalOldSelf": true,
            "message": clause.otherwise,
        })
    }));
    rules.into()
}

/// What holds of a job that is new, with the field that is told. None of it is asked of a job that was there before with a `spec`.
fn of_new() -> [(&'static str, Clause); 3] {
    let clause = |holds: String, otherwise: &str| Clause {
        holds: format!("oldSelf.hasValue(){holds}"),
        otherwise: otherwise.into(),
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
                TOO_LONG,
            ),
        ),
    ]
}

/// What holds of the number of processes of a job that has changed: no more of them have too long a name than before.
fn of_growth() -> Clause {
    let no_more = |of: &CelExpression| format!("{} <= {}", of("self.spec"), of("oldSelf.spec"));
    Clause {
        holds: format!(
            "{} || !has(oldSelf.spec) || {} && {}",
            names_fit(),
            no_more(&instances_of),
            no_more(&processes_of)
        ),
        otherwise: TOO_LONG.into(),
    }
}

const TOO_LONG: &str = "metadata.name: the name of the last process, <job>-worker-<n> or <job>-launcher-<n>, must fit in 63 characters; use \
                        a shorter name, or fewer instances or workers";

/// Whether all names that are derived from a job's are labels. Most are whatever the job has, and then nothing else is looked at.
fn names_fit() -> String {
    let (name, instances) = ("size(self.metadata.name)", instances_of("self.spec"));
    let shortest = MAX_LABEL - "-launcher-65535".len();
    let launcher = format!("({instances} <= 1 ? 9 : 10 + size(string({instances} - 1)))");
    let worker = "(all <= 10 ? 9 : 8 + size(string(all - 1)))";
    format!(
        "{name} <= {shortest} || !has(self.spec) || {name} + {launcher} <= {MAX_LABEL} && [{}].all(all, {name} + {worker} <= {MAX_LABEL})",
        processes_of("self.spec")
    )
}

fn instances_of(spec: &str) -> String {
    format!("{spec}.?jobInstances.orValue(1)")
}

fn processes_of(spec: &str) -> String {
    format!("{} * {}", instances_of(spec), workers_of(spec))
}

/// What they say of a job that breaks them.
pub(super) fn messages() -> Vec<String> {
    let clauses = of_made()
        .sentences
        .into_iter()
        .chain(of_changes())
        .chain(of_all_changes())
        .chain(of_all_fields())
        .chain(of_new().map(|(_, clause)| clause));
    clauses.map(|clause| clause.otherwise).collect()
}

/// That all of them hold.
fn all(clauses: &[Clause]) -> String {
    let parts = clauses.iter().map(|clause| format!("({})", clause.holds));
    parts.collect::<Vec<_>>().join(" && ")
}

/// A sentence for each that does not hold.
fn sentences(clauses: &[Clause]) -> String {
    let parts = clauses
        .iter()
        .map(|clause| format!("(({}) ? '' : '{}. ')", clause.holds, clause.otherwise));
    parts.collect::<Vec<_>>().join(" + ")
}

/// Whether this is the first write of a status: one of the rest cannot bring or take a status, nor one of a status the rest.
const FIRST_STATUS: &str = "has(self.status) != has(oldSelf.status)";

/// Whether the job holds nothing that a change could contradict, as its status says. Of a job that goes on since, the status says
/// that it is suspended until the next one is written, while there may be a partition already.
const FREE: &str = "(has(self.status) && has(self.status.phase) && (self.status.phase in ['Completed', 'Failed'] || \
                    self.status.phase == 'Suspended' && has(oldSelf.spec.suspend) && oldSelf.spec.suspend) && \
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
    let replicas = format!("{spec}.?workers.?replicas.orValue(1)");
    let says = |field: &str| format!("(string({field}) != '1' ? {} : {replicas})", number(field));
    format!(
        "(has({right}) ? {} : has({misspelt}) ? {} : {replicas})",
        says(&right),
        says(&misspelt)
    )
}

/// The model replicas of each of `w` workers of one instance of `spec`, from either form.
fn replicas_of(spec: &str) -> String {
    let (each, right, all) = (
        format!("{spec}.modelReplicasPerWorker"),
        format!("{spec}.ipusPerJobInstance"),
        format!("{spec}.modelReplicas"),
    );
    format!(
        "(has({each}) ? {} : has({right}) || !has({all}) || w == 0 ? 1 : [{}].map(r, r % w == 0 ? r / w : 1)[0])",
        number(&each),
        number(&all),
    )
}

/// The number in `value`, bare or in quotes, far from overflow; 0 if there is none.
fn number(value: &str) -> String {
    format!("(string({value}).matches('^[0-9]{{1,9}}$') ? int({value}) : 0)")
}

/// All powers of two that a size may be.
fn powers() -> String {
    let powers = (0..=MAX_COUNT.ilog2()).map(|exponent| (1_u32 << exponent).to_string());
    format!("[{}]", powers.collect::<Vec<_>>().join(", "))
}

/// A rule of the one field at `path` whose message has the value in it.
fn told_with_value(path: &str, expression: &str, message: &str) -> Value {
    json!({
        "rule": expression,
        "message": format!("{path}: {message}"),
        "messageExpression": format!("'{path} = ' + string(self) + ': {message}'"),
    })
}
