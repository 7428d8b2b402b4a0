//! From what people write to a job that can run, or to everything that is wrong with it, all at once.
//!
//! One file for each group of fields: [`naming`] (metadata), [`size`] (instances, workers), [`ipus`] (IPUs, model
//! replicas), [`shape`] (launcher, interactive), [`ending`] (restarts, clean-up, deadlines). The rules are listed in
//! `docs/ipujob.md`.

mod counts;
mod diagnostics;
mod ipus;
mod kind;
mod lifecycle;
mod metadata;

use alloc::vec::Vec;

use serde::Serialize;

use self::diagnostics::Diagnostics;
pub(super) use self::metadata::launcher_suffix;
use super::JobSpec;
use super::limits::Limits;
use super::raw::RawJob;
use super::violation::{Violation, Warning};

/// A job that can run, and what is odd about how it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParsedJob {
    /// The job.
    pub spec: JobSpec,
    /// What its writer should know, in the order of the rules.
    pub warnings: Vec<Warning>,
}

impl RawJob {
    /// The job that this describes. The only way to a [`JobSpec`].
    ///
    /// # Errors
    ///
    /// Everything that keeps the job from running, or that `limits` forbid to a new job; never empty.
    ///
    /// ```
    /// use ipu_core::{Limits, RawJob};
    ///
    /// let mut job = RawJob::default();
    /// job.metadata.name = Some("mnist-training".into());
    /// job.metadata.assign("beb81bbe-2309-494a-9e28-2a75a704be15", "");
    /// job.spec.ipus_per_job_instance = Some(3.into());
    /// let violations = job.parse(&Limits::default()).unwrap_err();
    /// assert_eq!(
    ///     violations[0].to_string(),
    ///     "spec.ipusPerJobInstance = 3: must be a power of two from 1 to 64; use 2 or 4",
    /// );
    ///
    /// job.spec.ipus_per_job_instance = Some("4".into());
    /// assert_eq!(job.parse(&Limits::default()).unwrap().spec.partition().size.get(), 4);
    /// ```
    pub fn parse(&self, limits: &Limits) -> Result<ParsedJob, Vec<Violation>> {
        let mut findings = Diagnostics::new(limits.origin());
        let spec = self.spec(limits, &mut findings);
        let Diagnostics {
            violations, warnings, ..
        } = findings;
        match spec {
            Some(spec) if violations.is_empty() => Ok(ParsedJob { spec, warnings }),
            Some(_) | None => Err(violations),
        }
    }

    /// Every part is looked at before any is given up, so that all violations are found.
    fn spec(&self, limits: &Limits, findings: &mut Diagnostics) -> Option<JobSpec> {
        let raw = &self.spec;
        let size = counts::parse(raw, limits, findings);
        let many = size
            .as_ref()
            .map_or(counts::ProcessCounts::default(), |size| size.many);
        let key = metadata::parse(&self.metadata, many, findings);
        let shape = kind::parse(raw, many, findings);
        let ending = lifecycle::parse(raw, findings);
        let priority = findings.whole("spec.priority", raw.priority.as_ref());
        let priority = priority.and_then(|value| findings.int32("spec.priority", value));
        let account = metadata::account(raw, findings);
        let allocation = metadata::allocation(raw, findings);
        let reconfigurable = raw.reconfigurable.unwrap_or(false);
        counts::check_reconfigurable(reconfigurable, size.as_ref(), findings);
        let (key, size, shape, ending) = (key?, size?, shape?, ending?);
        let mut partition = size.partition;
        partition.reconfigurable = reconfigurable;
        partition.allocation = allocation;
        Some(JobSpec {
            key,
            instances: many.instances,
            partition,
            workers_per_instance: many.workers,
            shape: shape.shape,
            launcher_env: shape.env,
            tcp_interface: shape.tcp_interface,
            restart: ending.restart,
            clean_pod_policy: ending.clean_pod_policy,
            back_off: ending.back_off,
            suspend: raw.suspend.unwrap_or(false),
            priority: priority.unwrap_or(0),
            preemptible: raw.preemptible.unwrap_or(false),
            account,
            max_runtime: ending.max_runtime,
            ttl_after_finished: ending.ttl_after_finished,
            start_deadline: ending.start_deadline,
            max_requested: limits.max_requested(),
        })
    }
}
