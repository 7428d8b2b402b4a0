//! Parsing of a raw job into a valid job, or into all of its violations at once.
//!
//! One file for each group of fields: [`metadata`] (name, account, allocation), [`counts`] (instances,
//! workers), [`ipus`] (IPUs, model replicas), [`kind`] (launcher, interactive), [`lifecycle`] (restarts,
//! cleanup, deadlines). The rules are listed in `docs/ipujob.md`.

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

/// A valid job, with the warnings about its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParsedJob {
    /// The job.
    pub spec: JobSpec,
    /// Warnings for the author of the job, in the order of the rules.
    pub warnings: Vec<Warning>,
}

impl RawJob {
    /// Parses and validates the job. The only way to create a [`JobSpec`].
    ///
    /// # Errors
    ///
    /// All violations that keep the job from running, or that `limits` forbid to a new job; never empty.
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
        let mut diagnostics = Diagnostics::new(limits.origin());
        let spec = self.spec(limits, &mut diagnostics);
        let Diagnostics {
            violations, warnings, ..
        } = diagnostics;
        match spec {
            Some(spec) if violations.is_empty() => Ok(ParsedJob { spec, warnings }),
            Some(_) | None => Err(violations),
        }
    }

    /// Parses every part before any `None` returns, so that all violations are found.
    fn spec(&self, limits: &Limits, diagnostics: &mut Diagnostics) -> Option<JobSpec> {
        let raw = &self.spec;
        let size = counts::parse(raw, limits, diagnostics);
        let process_counts = size
            .as_ref()
            .map_or(counts::ProcessCounts::default(), |size| size.counts);
        let key = metadata::parse(&self.metadata, process_counts, diagnostics);
        let kind = kind::parse(raw, process_counts, diagnostics);
        let lifecycle = lifecycle::parse(raw, diagnostics);
        let priority = diagnostics.whole("spec.priority", raw.priority.as_ref());
        let priority = priority.and_then(|value| diagnostics.int32("spec.priority", value));
        let account = metadata::account(raw, diagnostics);
        let allocation = metadata::allocation(raw, diagnostics);
        let reconfigurable = raw.reconfigurable.unwrap_or(false);
        counts::check_reconfigurable(reconfigurable, size.as_ref(), diagnostics);
        let (key, size, kind, lifecycle) = (key?, size?, kind?, lifecycle?);
        let mut partition = size.partition;
        partition.reconfigurable = reconfigurable;
        partition.allocation = allocation;
        Some(JobSpec {
            key,
            instances: process_counts.instances,
            partition,
            workers_per_instance: process_counts.workers,
            shape: kind.kind,
            launcher_env: kind.env,
            tcp_interface: kind.tcp_interface,
            restart: lifecycle.restart,
            clean_pod_policy: lifecycle.clean_pod_policy,
            back_off: lifecycle.back_off,
            suspend: raw.suspend.unwrap_or(false),
            priority: priority.unwrap_or(0),
            preemptible: raw.preemptible.unwrap_or(false),
            account,
            max_runtime: lifecycle.max_runtime,
            ttl_after_finished: lifecycle.ttl_after_finished,
            start_deadline: lifecycle.start_deadline,
            max_requested: limits.max_requested(),
        })
    }
}
