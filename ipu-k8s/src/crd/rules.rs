//! The CEL rules of the CRD, which the API server evaluates however a job is changed: no webhook of the main
//! resource sees `kubectl scale`.
//!
//! A violation that a stored job already has is not reported again, so that no rule prevents its deletion.
//! Below `spec` the API server itself ensures that: it skips rules on unchanged values (ratcheting). The
//! whole object always changes, so its rules compare it with the old object.

use ipu_core::IpuCount;
use kube::core::{Message, Rule};

use super::MAX_LABEL_LEN;

/// Maximum number of IPUs of a reconfigurable partition: those of one link domain.
const MAX_RECONFIGURABLE_SIZE: u32 = IpuCount::LINK_DOMAIN.get();

/// Maximum number of workers of a job and of IPUs of an instance: the maximum of the core under any limits.
pub(super) const MAX_COUNT: i32 = IpuCount::MAX.get().cast_signed();

/// Returns the rule of an integer from 1 to [`MAX_COUNT`] at `path`, as a number or a string.
pub(super) fn count(path: &str) -> Rule {
    with_value(
        path,
        format!("[{}].all(n, n >= 1 && n <= {MAX_COUNT})", number("self")),
        &format!("must be a whole number from 1 to {MAX_COUNT}; write digits only"),
    )
}

/// Returns the rule of a power of two up to [`MAX_COUNT`] at `path`, as a number or a string.
pub(super) fn power_of_two(path: &str) -> Rule {
    with_value(
        path,
        format!("{} in {}", number("self"), powers()),
        &format!("must be a power of two from 1 to {MAX_COUNT}; use 1, 2, 4, 8 and so on"),
    )
}

pub(super) fn has_size() -> Rule {
    Rule::new("has(self.ipusPerJobInstance) || has(self.modelReplicas) && has(self.ipusPerModelReplica)").message(
        "spec.ipusPerJobInstance is absent: every job says how many IPUs one instance needs; add ipusPerJobInstance: a power of two",
    )
}

pub(super) fn alpha_form_size() -> Rule {
    Rule::new(format!("has(self.ipusPerJobInstance) || !has(self.modelReplicas) || {} in [0, {}", ipus_of("self"), &powers()[1..])).message(
        "spec.modelReplicas × spec.ipusPerModelReplica is read as the IPUs of one instance: must be a power of two from 1 to 65536; write ipusPerJobInstance instead of both",
    )
}

pub(super) fn workers_divide_ipus() -> Rule {
    let (workers, ipus) = (workers_of("self"), ipus_of("self"));
    Rule::new(format!("[{workers}].all(w, w <= 1 || {ipus} % w == 0)")).message(
        "spec.workersPerJobInstance (or workers.replicas): each worker of an instance has a GCD of its own, and the GCDs must divide the IPUs of the instance; use a power of two up to these IPUs",
    )
}

pub(super) fn workers_are_countable() -> Rule {
    let (instances, workers) = (instances_of("self"), workers_of("self"));
    // A job has at most as many workers as it may have instances.
    Rule::new(format!(
        "[{workers}].all(w, w <= 1 || {instances} * w <= {MAX_COUNT})"
    ))
    .message(
        "spec.jobInstances × workers of an instance exceed the limit of 65536 workers; use fewer instances",
    )
}

pub(super) fn reconfigurable_size() -> Rule {
    let ipus = ipus_of("self");
    Rule::new(format!("!self.?reconfigurable.orValue(false) || {ipus} <= {MAX_RECONFIGURABLE_SIZE}")).message(
        "spec.reconfigurable = true: a partition of more than 64 IPUs uses GW-links, which a reconfigurable one cannot; remove it, or ask for fewer IPUs",
    )
}

pub(super) fn launcher_command() -> Rule {
    Rule::new("!has(self.launcher) || has(self.interactive) || self.launcher.?command.orValue([]).size() > 0").message(
        "spec.launcher.command is absent or empty: a launcher starts the work with a command; add the program and its arguments, one list item each",
    )
}

/// The partitions of a job depend on these fields, so that they are immutable while it may hold IPUs.
pub(super) fn fixed_partition() -> Rule {
    fixed_while_held(&[
        ("ipusPerJobInstance", &ipus_of),
        ("modelReplicas", &|spec| {
            number_or(&format!("{spec}.modelReplicas"), 0)
        }),
    ])
}

/// The processes of a job depend on these fields. They have a rule of their own, because the API server
/// limits the estimated cost of each.
pub(super) fn fixed_processes() -> Rule {
    fixed_while_held(&[
        ("workersPerJobInstance", &workers_of),
        ("modelReplicasPerWorker", &|spec| {
            number_or(&format!("{spec}.modelReplicasPerWorker"), 1)
        }),
        ("reconfigurable", &|spec| {
            format!("{spec}.?reconfigurable.orValue(false)")
        }),
        ("allocation", &|spec| {
            format!("(has({spec}.allocation) ? {spec}.allocation : '')")
        }),
        ("launcher", &|spec| format!("has({spec}.launcher)")),
        ("interactive", &|spec| format!("has({spec}.interactive)")),
    ])
}

/// Returns an expression for a value of the specification at a path.
type SpecExpression<'a> = &'a dyn Fn(&str) -> String;

/// Returns the rule that these fields are immutable while a job holds IPUs. Its message names the changed
/// ones.
fn fixed_while_held(fields: &[(&str, SpecExpression<'_>)]) -> Rule {
    let (mut equal, mut changed) = (Vec::new(), String::new());
    for (field, value_of) in fields {
        let condition = format!("{} == {}", value_of("self.spec"), value_of("oldSelf.spec"));
        changed.push_str(&format!("({condition} ? '' : 'spec.{field} ') + "));
        equal.push(condition);
    }
    on_change(&format!("{HOLDS_NOTHING} || {}", equal.join(" && "))).message(Message::Expression(format!(
        "{changed}'cannot change while the job holds IPUs, which were chosen for it; suspend the job, change it when its phase is Suspended and go on, or make a new job'"
    )))
}

pub(super) fn fixed_manager() -> Rule {
    // The cost estimate of optional access to a possible string is infinite.
    on_change(
        "has(self.spec.managedBy) == has(oldSelf.spec.managedBy) && \
         (!has(self.spec.managedBy) || self.spec.managedBy == oldSelf.spec.managedBy)",
    )
    .message("spec.managedBy cannot change: two controllers would manage the job; create a new job")
}

pub(super) fn name_is_label() -> Rule {
    Rule::new("oldSelf.hasValue() || !self.metadata.name.contains('.')").optional_old_self(true).field_path(".metadata").message(
        "metadata.name: must be lower-case letters, digits and '-', beginning with a letter or digit (DNS-1123), because host names are derived from it; leave out the dots",
    )
}

/// The name of a Service begins with a letter (DNS-1035).
pub(super) fn service_name() -> Rule {
    Rule::new(
        "!has(self.spec.headlessService) || !self.spec.headlessService || self.metadata.name.matches('^[a-z]')",
    )
    .field_path(".spec.headlessService")
    .message("spec.headlessService: the name of the job must begin with a letter, as the name of a Service; rename the job, or leave it out")
}

/// All names derived from the name of a new job are valid labels.
pub(super) fn new_names_fit() -> Rule {
    name_rule(&format!("oldSelf.hasValue() || {}", names_fit())).optional_old_self(true)
}

/// After a change of the number of processes, they still are, or no more of them are too long than before.
pub(super) fn more_names_fit() -> Rule {
    let [instances, old_instances] = ["self.spec", "oldSelf.spec"].map(instances_of);
    let [processes, old_processes] = ["self.spec", "oldSelf.spec"].map(processes_of);
    name_rule(&format!(
        "{} || {instances} <= {old_instances} && {processes} <= {old_processes}",
        names_fit()
    ))
}

fn name_rule(rule: &str) -> Rule {
    Rule::new(rule).field_path(".metadata").message(
        "metadata.name: the name of the last process, <job>-worker-<n> or <job>-launcher-<n>, must fit in 63 characters; use a shorter name, or fewer instances or workers",
    )
}

/// Returns the condition that all derived names are valid labels. Short names always are, which skips the
/// rest.
fn names_fit() -> String {
    let (name, instances) = ("size(self.metadata.name)", instances_of("self.spec"));
    let shortest = MAX_LABEL_LEN - "-launcher-65535".len();
    let launcher = format!("({instances} <= 1 ? 9 : 10 + size(string({instances} - 1)))");
    let worker = "(all <= 10 ? 9 : 8 + size(string(all - 1)))";
    format!(
        "{name} <= {shortest} || {name} + {launcher} <= {MAX_LABEL_LEN} && [{}].all(all, {name} + {worker} <= {MAX_LABEL_LEN})",
        processes_of("self.spec")
    )
}

/// Returns a rule about a change of `spec`. The first write of a status changes nothing else.
fn on_change(condition: &str) -> Rule {
    Rule::new(format!("has(self.status) != has(oldSelf.status) || {condition}")).field_path(".spec")
}

/// Condition for a job that holds nothing that a change could contradict, according to its status. After a
/// job is resumed, its status still reports it as suspended until the next write, while it may have a
/// partition already.
const HOLDS_NOTHING: &str = "has(self.status) && has(self.status.phase) && (self.status.phase in ['Completed', 'Failed'] || \
     self.status.phase == 'Suspended' && oldSelf.spec.?suspend.orValue(false)) && self.status.?ipusHeld.orValue(0) == 0";

fn instances_of(spec: &str) -> String {
    format!("{spec}.?jobInstances.orValue(1)")
}

fn processes_of(spec: &str) -> String {
    format!("{} * {}", instances_of(spec), workers_of(spec))
}

/// Returns the IPUs of one instance of `spec`, from either form; 0 if they are unknown.
fn ipus_of(spec: &str) -> String {
    let [size, replicas, each] =
        ["ipusPerJobInstance", "modelReplicas", "ipusPerModelReplica"].map(|field| format!("{spec}.{field}"));
    format!(
        "(has({size}) ? {} : has({replicas}) && has({each}) ? {} * {} : 0)",
        number(&size),
        number(&replicas),
        number(&each),
    )
}

/// Returns the workers of one instance of `spec`: the first of three fields that differs from 1; 0 if they
/// are unknown.
fn workers_of(spec: &str) -> String {
    // The cost estimate of optional access to a possible string is infinite.
    let replicas = format!("{spec}.?workers.?replicas.orValue(1)");
    let [current, misspelt] = ["workersPerJobInstance", "workerPerJobInstance"].map(|field| {
        let field = format!("{spec}.{field}");
        format!(
            "has({field}) ? (string({field}) != '1' ? {} : {replicas})",
            number(&field)
        )
    });
    format!("({current} : {misspelt} : {replicas})")
}

/// Returns the number of the field at `path`, or `default` if it is absent.
fn number_or(path: &str, default: u32) -> String {
    format!("(has({path}) ? {} : {default})", number(path))
}

/// Returns the number in `value`, as a number or a string, far from overflow; 0 if there is none.
fn number(value: &str) -> String {
    format!("(string({value}).matches('^[0-9]{{1,9}}$') ? int({value}) : 0)")
}

/// Returns all valid sizes, which are powers of two.
pub(super) fn powers() -> String {
    let powers: Vec<_> = (0..=MAX_COUNT.ilog2())
        .map(|exponent| (1_u32 << exponent).to_string())
        .collect();
    format!("[{}]", powers.join(", "))
}

/// Returns a rule of the field at `path` whose message contains the value.
fn with_value(path: &str, rule: String, message: &str) -> Rule {
    Rule::new(rule).message(Message::Expression(format!(
        "'{path} = ' + string(self) + ': {message}'"
    )))
}
