//! What holds for whatever people write: parsing never panics, and what it accepts can run.

use std::collections::BTreeSet;

use ipu_core::{CleanPodPolicy, IpuCount, JobKind, JobSpec, Limits, RawJob, RestartPolicy};
use ipu_testkit::strategies::{any_manifests, plausible_manifests};
use proptest::prelude::*;
use serde_json::Value;

proptest! {
    #[test]
    fn whatever_is_written_is_accepted_as_runnable_or_refused_with_reasons(raw in any_manifests(), order in 0_u32..=16) {
        check(&raw, IpuCount::from_order(order).unwrap())?;
    }

    #[test]
    fn plausible_jobs_are_accepted_as_runnable_or_refused_with_reasons(raw in plausible_manifests(), order in 0_u32..=16) {
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
        JobKind::Workers => {}
        JobKind::Launcher { command } => {
            prop_assert!(command.first().is_some_and(|program| !program.is_empty()))
        }
        JobKind::Interactive { ttl } => prop_assert!(ttl.as_secs() >= 1),
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
