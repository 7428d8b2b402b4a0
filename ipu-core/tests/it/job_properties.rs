//! Properties of parsing over random manifests: parsing never panics, and every accepted job can run.

use std::collections::BTreeSet;

use ipu_core::IpuCount;
use ipu_core::job::{CleanPodPolicy, JobKind, JobSpec, Limits, RawJob, RestartPolicy};
use ipu_testkit::strategies::{any_manifests, plausible_manifests};
use proptest::prelude::*;
use serde_json::Value;

proptest! {
    #[test]
    fn any_manifest_is_accepted_as_runnable_or_rejected_with_reasons(raw in any_manifests(), order in 0_u32..=16) {
        check(&raw, IpuCount::from_order(order).unwrap())?;
    }

    #[test]
    fn plausible_jobs_are_accepted_as_runnable_or_rejected_with_reasons(raw in plausible_manifests(), order in 0_u32..=16) {
        check(&raw, IpuCount::from_order(order).unwrap())?;
    }
}

/// Parses `raw` as a new and as a stored job, and checks both results.
fn check(raw: &Value, max_ipus: IpuCount) -> Result<(), TestCaseError> {
    let Ok(raw) = serde_json::from_value::<RawJob>(raw.clone()) else {
        return Ok(());
    };
    let limits = Limits::default().with_max_ipus(max_ipus);
    let new = raw.parse(&limits);
    let stored = raw.parse(&limits.for_stored());
    match &new {
        Ok(parsed) => {
            check_runnable(&parsed.spec)?;
            prop_assert!(parsed.spec.ipus_per_instance() <= max_ipus);
            check_names(&parsed.spec)?;
            // A job accepted as new parses identically once it is stored.
            prop_assert_eq!(new.as_ref(), stored.as_ref());
        }
        Err(violations) => {
            prop_assert!(!violations.is_empty());
            for violation in violations.iter() {
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
        check_runnable(&parsed.spec)?;
        // A field value that is allowed only for stored jobs yields a warning.
        prop_assert!(new.is_ok() || !parsed.warnings.is_empty());
    }
    Ok(())
}

/// Checks the invariants that the rules rely on, from the fields.
fn check_runnable(job: &JobSpec) -> Result<(), TestCaseError> {
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
    }
    prop_assert!(job.clean_pod_policy() != CleanPodPolicy::All || job.restart() == &RestartPolicy::Never);
    prop_assert!(job.start_deadline().as_secs() >= 1);
    prop_assert!(job.max_runtime().is_none_or(|runtime| runtime.as_secs() >= 1));
    Ok(())
}

/// Checks that every process of a new job has a unique name that is a DNS-1123 label.
fn check_names(job: &JobSpec) -> Result<(), TestCaseError> {
    let mut names = BTreeSet::new();
    let (instances, workers) = (job.instances(), job.workers_per_instance());
    // The first and the last instance suffice; up to 65,536 would only take longer.
    let indices = [0, instances.saturating_sub(1)]
        .into_iter()
        .filter(|instance| *instance < instances);
    for instance in indices.collect::<BTreeSet<_>>() {
        let new = names.insert(job.launcher_name(instance));
        prop_assert!(new);
        for worker in [0, workers - 1].into_iter().collect::<BTreeSet<_>>() {
            prop_assert!(names.insert(job.worker_name(instance, worker)));
        }
    }
    for name in names {
        let is_label_char = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        prop_assert!(
            name.len() <= 63 && name.chars().all(is_label_char) && !name.starts_with('-'),
            "{}",
            name
        );
    }
    Ok(())
}
