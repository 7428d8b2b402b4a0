//! What holds for whatever people write: parsing never panics, and what it accepts can run.

use std::collections::BTreeSet;

use ipu_core::{CleanPodPolicy, IpuCount, JobSpec, Limits, RawJob, RestartPolicy, Shape};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

proptest! {
    #[test]
    fn whatever_is_written_is_accepted_as_runnable_or_refused_with_reasons(raw in raw_job(any_value), order in 0_u32..=16) {
        check(&raw, IpuCount::from_order(order).unwrap())?;
    }

    #[test]
    fn plausible_jobs_are_accepted_as_runnable_or_refused_with_reasons(raw in raw_job(likely_value), order in 0_u32..=16) {
        check(&raw, IpuCount::from_order(order).unwrap())?;
    }
}

/// Parses `raw` as new and as stored, and checks both answers.
fn check(raw: &Value, max_ipus: IpuCount) -> Result<(), TestCaseError> {
    let Ok(raw) = serde_json::from_value::<RawJob>(raw.clone()) else {
        return Ok(());
    };
    let limits = Limits::default().with_max_ipus(max_ipus);
    let new = raw.parse(&limits);
    let stored = raw.parse(&limits.for_stored());
    match &new {
        Ok(parsed) => {
            runs(&parsed.spec)?;
            prop_assert!(parsed.spec.ipus_per_instance() <= max_ipus);
            names_fit(&parsed.spec)?;
            // A job that is accepted as new is the same job once it is stored.
            prop_assert_eq!(new.as_ref(), stored.as_ref());
        }
        Err(violations) => {
            prop_assert!(!violations.is_empty());
            for violation in violations {
                let field = &violation.field;
                prop_assert!(
                    field.starts_with("spec.") || field.starts_with("metadata."),
                    "{}",
                    field
                );
                prop_assert!(!violation.rule.is_empty() && !violation.fix.is_empty());
            }
        }
    }
    if let Ok(parsed) = &stored {
        runs(&parsed.spec)?;
        // What only a stored job may do is at least named.
        prop_assert!(new.is_ok() || !parsed.warnings.is_empty());
    }
    Ok(())
}

/// What the rules rely on, derived again from the fields.
fn runs(job: &JobSpec) -> Result<(), TestCaseError> {
    let partition = job.partition();
    let size = partition.size.get();
    prop_assert!(size.is_power_of_two());
    prop_assert_eq!(partition.gcds, job.workers_per_instance());
    prop_assert!(partition.gcds >= 1 && size.is_multiple_of(partition.gcds));
    prop_assert!(partition.replicas >= partition.gcds && partition.replicas <= size);
    prop_assert_eq!(partition.replicas % partition.gcds, 0);
    prop_assert!(u64::from(job.instances()) * u64::from(job.workers_per_instance()) <= 65_536);
    prop_assert!(!partition.reconfigurable || size <= 64);
    match job.shape() {
        Shape::Workers => {}
        Shape::Launcher { command } => {
            prop_assert!(command.first().is_some_and(|program| !program.is_empty()))
        }
        Shape::Interactive { ttl } => prop_assert!(ttl.as_secs() >= 1),
        other => prop_assert!(false, "a shape that is new: {:?}", other),
    }
    prop_assert!(job.clean_pod_policy() != CleanPodPolicy::All || job.restart() == &RestartPolicy::Never);
    prop_assert!(job.start_deadline().as_secs() >= 1);
    prop_assert!(job.max_runtime().is_none_or(|runtime| runtime.as_secs() >= 1));
    Ok(())
}

/// Every process of a new job has a name of its own that is a DNS-1123 label.
fn names_fit(job: &JobSpec) -> Result<(), TestCaseError> {
    let mut names = BTreeSet::new();
    let (instances, workers) = (job.instances(), job.workers_per_instance());
    // The first and the last instance: all of 65,536 would only take longer.
    let some = [0, instances.saturating_sub(1)]
        .into_iter()
        .filter(|instance| *instance < instances);
    for instance in some.collect::<BTreeSet<_>>() {
        let new = names.insert(job.launcher_name(instance));
        prop_assert!(new);
        for worker in [0, workers - 1].into_iter().collect::<BTreeSet<_>>() {
            prop_assert!(names.insert(job.worker_name(instance, worker)));
        }
    }
    for name in names {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        prop_assert!(
            name.len() <= 63 && name.chars().all(plain) && !name.starts_with('-'),
            "{}",
            name
        );
    }
    Ok(())
}

/// A job as JSON: some of the fields, each with one of the values that `value` makes for its kind.
fn raw_job<S: Strategy<Value = Value>>(value: fn(Kind) -> S) -> impl Strategy<Value = Value> {
    let object = |fields: &[(&'static str, Kind)]| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, kind)| (Just(*name), prop::option::weighted(0.7, value(*kind))))
            .collect();
        fields.prop_map(|fields| {
            let given = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(given.collect::<Map<_, _>>())
        })
    };
    let part = |fields: &[(&'static str, Kind)]| prop::option::of(object(fields));
    let metadata = object(&[("namespace", Kind::Name), ("generateName", Kind::Name)]);
    let key = (value(Kind::Name), value(Kind::Name));
    let spec = object(&[
        ("jobInstances", Kind::Count),
        ("workersPerJobInstance", Kind::Few),
        ("workerPerJobInstance", Kind::Few),
        ("modelReplicasPerWorker", Kind::Few),
        ("modelReplicas", Kind::Few),
        ("ipusPerModelReplica", Kind::Few),
        ("cleanPodPolicy", Kind::Policy),
        ("ttlSecondsAfterFinished", Kind::Count),
        ("activeDeadlineSeconds", Kind::Count),
        ("startDeadlineSeconds", Kind::Count),
        ("priority", Kind::Count),
        ("account", Kind::Name),
        ("suspend", Kind::Flag),
        ("reconfigurable", Kind::Flag),
    ]);
    let parts = (
        part(&[("ttl", Kind::Count)]),
        part(&[("command", Kind::Words)]),
        part(&[
            ("type", Kind::Restart),
            ("backOffLimit", Kind::Count),
            ("exitCodes", Kind::Codes),
        ]),
        part(&[("replicas", Kind::Few)]),
        prop::option::weighted(0.9, value(Kind::Count)),
    );
    (metadata, key, spec, parts).prop_map(|(mut metadata, (name, uid), mut spec, parts)| {
        metadata["name"] = name;
        metadata["uid"] = uid;
        let (interactive, launcher, restart, workers, ipus) = parts;
        for (field, part) in [
            ("interactive", interactive),
            ("launcher", launcher),
            ("restartPolicy", restart),
            ("workers", workers),
            ("ipusPerJobInstance", ipus),
        ] {
            if let Some(part) = part {
                spec[field] = part;
            }
        }
        json!({"metadata": metadata, "spec": spec})
    })
}

/// What a field is meant to hold.
#[derive(Clone, Copy)]
enum Kind {
    Name,
    Count,
    /// A small count: of workers and replicas, which must go together with one another and with the IPUs.
    Few,
    Policy,
    Restart,
    Codes,
    Flag,
    Words,
}

fn likely_value(kind: Kind) -> BoxedStrategy<Value> {
    let texts = |texts: &'static [&'static str]| prop::sample::select(texts).prop_map(Value::from).boxed();
    match kind {
        Kind::Name => "[a-z][a-z0-9-]{0,50}".prop_map(Value::from).boxed(),
        Kind::Count => power_of_two(0..8),
        Kind::Few => power_of_two(0..2),
        Kind::Policy => texts(&["None", "Workers", "All"]),
        Kind::Restart => texts(&["Always", "OnFailure", "Never", "ExitCode"]),
        Kind::Codes => texts(&["1", "128-255,42", "1-300", "9-3"]),
        Kind::Flag => any::<bool>().prop_map(Value::from).boxed(),
        Kind::Words => prop::collection::vec("[a-z]{1,6}", 1..3)
            .prop_map(Value::from)
            .boxed(),
    }
}

fn power_of_two(order: std::ops::Range<u32>) -> BoxedStrategy<Value> {
    let written = |(order, text): (u32, bool)| {
        let count = 1_u32 << order;
        if text {
            count.to_string().into()
        } else {
            count.into()
        }
    };
    (order, any::<bool>()).prop_map(written).boxed()
}

fn any_value(kind: Kind) -> BoxedStrategy<Value> {
    prop_oneof![
        4 => likely_value(kind),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => "\\PC{0,70}".prop_map(Value::from),
        1 => prop::sample::select(&[0_i64, -1, 3, 65_536, 65_537, 4_294_967_295, 4_294_967_296, i64::MAX, i64::MIN][..]).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => prop::collection::vec("\\PC{0,4}", 0..3).prop_map(Value::from),
    ]
    .boxed()
}
