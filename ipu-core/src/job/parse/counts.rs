//! Counts of a job: instances and workers (one GCD each), and their relation to the IPUs.

use alloc::format;
use alloc::string::ToString as _;

use super::diagnostics::Diagnostics;
use super::ipus;
use crate::job::limits::Limits;
use crate::job::raw::{IntOrString, RawSpec};
use crate::partition::PartitionSpec;
use crate::units::IpuCount;

/// Maximum number of workers of a job: each needs its own IPU, and no documented system has more. It also
/// keeps every index and product of a job far from overflow.
const MAX_WORKERS: u32 = IpuCount::MAX.get();

const INSTANCES: &str = "spec.jobInstances";
const WORKERS: &str = "spec.workersPerJobInstance";
const MISSPELT_WORKERS: &str = "spec.workerPerJobInstance";
const REPLICAS: &str = "spec.workers.replicas";

/// Process counts of a job.
#[derive(Clone, Copy)]
pub(super) struct ProcessCounts {
    pub(super) instances: u32,
    /// Workers of one instance.
    pub(super) workers: u32,
}

impl Default for ProcessCounts {
    fn default() -> Self {
        Self {
            instances: 1,
            workers: 1,
        }
    }
}

/// The size of a job.
pub(super) struct Size {
    pub(super) counts: ProcessCounts,
    pub(super) partition: PartitionSpec,
}

/// Parses the size of the job. Sources: seed 000 §6.6 and the custom resource 1.2.0; the alpha form of seed
/// 001 §6.5.
pub(super) fn parse(raw: &RawSpec, limits: &Limits, diagnostics: &mut Diagnostics) -> Option<Size> {
    let instances = instances(raw, diagnostics);
    let workers = workers(raw, diagnostics);
    let requested = ipus::parse(raw, limits, diagnostics);
    let (instances, (workers, source), requested) = (instances?, workers?, requested?);
    let ipus = requested.size.get();
    if !ipus.is_multiple_of(workers) {
        diagnostics.refuse(
            source,
            Some(&workers.to_string()),
            format!(
                "each worker of an instance has a GCD of its own, and the GCDs must divide its {ipus} IPUs"
            ),
            format!("use a power of two from 1 to {ipus}"),
        );
        return None;
    }
    if u64::from(instances) * u64::from(workers) > u64::from(MAX_WORKERS) {
        diagnostics.refuse(
            INSTANCES,
            Some(&instances.to_string()),
            format!("{instances} instances of {workers} workers are more than {MAX_WORKERS} workers, which no system has IPUs for"),
            format!("use at most {}", MAX_WORKERS / workers),
        );
        return None;
    }
    let replicas = ipus::replicas(raw, ipus, workers, requested.replicas, diagnostics)?;
    Some(Size {
        counts: ProcessCounts { instances, workers },
        partition: PartitionSpec {
            size: requested.size,
            gcds: workers,
            replicas,
            reconfigurable: false,
            allocation: None,
        },
    })
}

fn instances(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<u32> {
    match &raw.job_instances {
        None => Some(1),
        Some(value) => {
            let value = diagnostics.whole(INSTANCES, Some(value))?;
            Some(diagnostics.clamped(INSTANCES, value, 0..=MAX_WORKERS))
        }
    }
}

/// Returns the workers of one instance, and the field that sets them.
fn workers(raw: &RawSpec, diagnostics: &mut Diagnostics) -> Option<(u32, &'static str)> {
    let per_instance = match (&raw.workers_per_job_instance, &raw.worker_per_job_instance) {
        (Some(value), misspelt) => {
            if let Some(misspelt) = misspelt {
                diagnostics.warn(
                    MISSPELT_WORKERS,
                    Some(&misspelt.to_string()),
                    "is a misspelling and ignored because workersPerJobInstance is given",
                    "remove it",
                );
            }
            Some((value, WORKERS))
        }
        (None, Some(value)) => {
            diagnostics.warn(
                MISSPELT_WORKERS,
                Some(&value.to_string()),
                "is read as workersPerJobInstance",
                "spell it workersPerJobInstance",
            );
            Some((value, MISSPELT_WORKERS))
        }
        (None, None) => None,
    };
    let replicas = raw.workers.as_ref().and_then(|workers| workers.replicas.as_ref());
    let replicas = replicas.map(|value| (value, REPLICAS));
    match (per_instance, replicas) {
        (None, None) => Some((1, WORKERS)),
        (Some(given), None) | (None, Some(given)) => Some((count(given, diagnostics)?, given.1)),
        (Some(given), Some(replicas)) => {
            let (one, other) = (count(given, diagnostics), count(replicas, diagnostics));
            let (one, other) = (one?, other?);
            if one == 1 {
                return Some((other, REPLICAS));
            }
            if other != 1 && other != one {
                diagnostics.forbid(
                    REPLICAS,
                    Some(&other.to_string()),
                    format!(
                        "{} sets {one} workers for each instance and takes precedence",
                        field_name(given.1)
                    ),
                    format!("write {one} here too, or leave one of the two out"),
                );
            }
            Some((one, given.1))
        }
    }
}

pub(super) fn count((value, field): (&IntOrString, &str), diagnostics: &mut Diagnostics) -> Option<u32> {
    let value = diagnostics.whole(field, Some(value))?;
    diagnostics.within(field, value, 1..=MAX_WORKERS)
}

fn field_name(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, name)| name)
}

/// Rejects reconfigurable partitions that need GW-links, which they cannot use (V-IPU user guide,
/// "Partitions").
pub(super) fn check_reconfigurable(reconfigurable: bool, size: Option<&Size>, diagnostics: &mut Diagnostics) {
    let larger = size.is_some_and(|size| size.partition.size > IpuCount::LINK_DOMAIN);
    if reconfigurable && larger {
        diagnostics.refuse(
            "spec.reconfigurable",
            Some("true"),
            format!(
                "a partition of more than {} IPUs uses GW-links, which a reconfigurable one cannot",
                IpuCount::LINK_DOMAIN
            ),
            "remove it, or ask for fewer IPUs",
        );
    }
}
