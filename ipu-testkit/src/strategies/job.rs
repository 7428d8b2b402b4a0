//! Jobs: arbitrary user manifests, and small jobs that can run.

use std::ops::Range;

use ipu_core::job::{JobSpec, Limits, RawJob};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::job_dsl::{parse, raw_job_from_dsl};

/// Returns small jobs in the job DSL ([`raw_job_from_dsl`]): every shape, restart policy and clean-up policy,
/// up to three instances of up to two workers, with and without each time limit. One, two or all instances
/// may be in the queue at once. Small jobs expose the same interactions between instances as large ones, and
/// shrink further.
pub fn job_dsl() -> impl Strategy<Value = Vec<String>> {
    let size = (0_u32..4, 1_u32..3).prop_map(|(instances, workers)| {
        vec![format!("instances={instances}"), format!("workers={workers}")]
    });
    let shape = select(vec!["shape=workers", "shape=launcher", "ttl=60"]);
    let restart = (
        prop_oneof![1 => Just("Never"), 2 => select(vec!["Always", "OnFailure", "ExitCode"])],
        select(vec![0_u32, 1, 2, 7]),
        select(vec!["0", "10", "200", "400"]),
    )
        .prop_map(|(kind, limit, back_off)| {
            vec![
                format!("restart={kind}"),
                format!("limit={limit}"),
                format!("backoff={back_off}"),
            ]
        });
    // With `All`, a job behaves as if it were never restarted.
    let clean = prop_oneof![3 => select(vec!["clean=None", "clean=Workers"]), 1 => Just("clean=All")];
    let times = (
        option::of(select(vec!["keep=0", "keep=100"])),
        option::of(Just("deadline=500")),
        select(vec!["start=30", "start=600"]),
    );
    let suspend = prop_oneof![4 => Just("suspend=no"), 1 => Just("suspend=yes")];
    let requested = select(vec!["requested=1", "requested=2", "requested=64"]);
    (size, shape, restart, clean, times, suspend, requested).prop_map(
        |(mut fields, shape, restart, clean, (keep, deadline, start), suspend, requested)| {
            fields.extend(restart);
            fields.extend([shape, clean, start, suspend, requested].map(String::from));
            fields.extend([keep, deadline].into_iter().flatten().map(String::from));
            fields
        },
    )
}

/// Returns the jobs of [`job_dsl`] as user manifests. Each of them can run.
pub fn raw_jobs() -> impl Strategy<Value = RawJob> {
    job_dsl().prop_map(|fields| {
        raw_job_from_dsl(fields.iter().map(String::as_str)).expect("the strategy produces valid DSL fields")
    })
}

/// The jobs of [`raw_jobs`], parsed.
///
/// ```
/// use ipu_core::Timestamp;
/// use ipu_core::job::{Observation, check_plan, plan};
/// use proptest::prelude::*;
///
/// proptest!(ProptestConfig::with_cases(16), |(job in ipu_testkit::strategies::jobs())| {
///     let observation = Observation::for_new_job(Timestamp::from_millis(0));
///     let plan = plan(&job, &observation);
///     prop_assert_eq!(check_plan(&job, &observation, &plan), []);
/// });
/// ```
pub fn jobs() -> impl Strategy<Value = JobSpec> {
    raw_jobs().prop_map(|raw| parse(&raw, &Limits::default()).expect("a job of this strategy can run"))
}

/// Returns JSON manifests in which any field may hold anything, as input for a parser. Not every one is a
/// [`RawJob`].
pub fn any_manifests() -> impl Strategy<Value = Value> {
    manifests(any_value)
}

/// Returns JSON manifests in which every field has the right type. About half of them can run; the rest
/// contradict themselves or request too much.
pub fn plausible_manifests() -> impl Strategy<Value = Value> {
    manifests(likely_value)
}

/// Returns a job as JSON: a subset of the fields, each with a value of its kind from `value`.
fn manifests<S: Strategy<Value = Value>>(value: fn(FieldKind) -> S) -> impl Strategy<Value = Value> {
    let object = |fields: &[(&'static str, FieldKind)]| {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, kind)| (Just(*name), option::weighted(0.7, value(*kind))))
            .collect();
        fields.prop_map(|fields| {
            let chosen = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(chosen.collect::<Map<_, _>>())
        })
    };
    let part = |fields: &[(&'static str, FieldKind)]| option::of(object(fields));
    let metadata = object(&[("namespace", FieldKind::Name), ("generateName", FieldKind::Name)]);
    let key = (value(FieldKind::Name), value(FieldKind::Name));
    let spec = object(&[
        ("jobInstances", FieldKind::Count),
        ("workersPerJobInstance", FieldKind::Few),
        ("workerPerJobInstance", FieldKind::Few),
        ("modelReplicasPerWorker", FieldKind::Few),
        ("modelReplicas", FieldKind::Few),
        ("ipusPerModelReplica", FieldKind::Few),
        ("cleanPodPolicy", FieldKind::Policy),
        ("ttlSecondsAfterFinished", FieldKind::Count),
        ("activeDeadlineSeconds", FieldKind::Count),
        ("startDeadlineSeconds", FieldKind::Count),
        ("priority", FieldKind::Count),
        ("account", FieldKind::Name),
        ("suspend", FieldKind::Flag),
        ("reconfigurable", FieldKind::Flag),
    ]);
    let parts = (
        part(&[("ttl", FieldKind::Count)]),
        part(&[("command", FieldKind::Text)]),
        part(&[
            ("type", FieldKind::Restart),
            ("backOffLimit", FieldKind::Count),
            ("exitCodes", FieldKind::Codes),
        ]),
        part(&[("replicas", FieldKind::Few)]),
        option::weighted(0.9, value(FieldKind::Count)),
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

/// Kind of value that a field is meant to hold.
#[derive(Clone, Copy)]
enum FieldKind {
    Name,
    Count,
    /// Small count: workers and replicas, which must match each other and the IPUs.
    Few,
    Policy,
    Restart,
    Codes,
    Flag,
    Text,
}

fn likely_value(kind: FieldKind) -> BoxedStrategy<Value> {
    let texts = |texts: &'static [&'static str]| select(texts).prop_map(Value::from).boxed();
    match kind {
        FieldKind::Name => "[a-z][a-z0-9-]{0,50}".prop_map(Value::from).boxed(),
        FieldKind::Count => power_of_two(0..8),
        FieldKind::Few => power_of_two(0..2),
        FieldKind::Policy => texts(&["None", "Workers", "All"]),
        FieldKind::Restart => texts(&["Always", "OnFailure", "Never", "ExitCode"]),
        FieldKind::Codes => texts(&["1", "128-255,42", "1-300", "9-3"]),
        FieldKind::Flag => any::<bool>().prop_map(Value::from).boxed(),
        FieldKind::Text => vec("[a-z]{1,6}", 1..3).prop_map(Value::from).boxed(),
    }
}

fn power_of_two(order: Range<u32>) -> BoxedStrategy<Value> {
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

fn any_value(kind: FieldKind) -> BoxedStrategy<Value> {
    const EDGES: [i64; 9] = [
        0,
        -1,
        3,
        65_536,
        65_537,
        4_294_967_295,
        4_294_967_296,
        i64::MAX,
        i64::MIN,
    ];
    prop_oneof![
        4 => likely_value(kind),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => "\\PC{0,70}".prop_map(Value::from),
        1 => select(&EDGES[..]).prop_map(Value::from),
        1 => Just(Value::Null),
        1 => vec("\\PC{0,4}", 0..3).prop_map(Value::from),
    ]
    .boxed()
}
