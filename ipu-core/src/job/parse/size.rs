//! How much: instances, IPUs, workers (one GCD each) and model replicas.

use alloc::format;
use alloc::string::{String, ToString as _};

use super::findings::Findings;
use crate::job::limits::Limits;
use crate::job::raw::{IntOrString, RawSpec};
use crate::partition::PartitionSpec;
use crate::units::IpuCount;

/// The most workers that a job can have at all: each needs an IPU of its own, and no documented system has more.
/// It also keeps every index and product of a job far from overflow.
const MAX_WORKERS: u32 = IpuCount::MAX.get();

const INSTANCES: &str = "spec.jobInstances";
const IPUS: &str = "spec.ipusPerJobInstance";
const WORKERS: &str = "spec.workersPerJobInstance";
const MISSPELT_WORKERS: &str = "spec.workerPerJobInstance";
const REPLICAS: &str = "spec.workers.replicas";
const MODEL_REPLICAS_PER_WORKER: &str = "spec.modelReplicasPerWorker";
const MODEL_REPLICAS: &str = "spec.modelReplicas";
const IPUS_PER_MODEL_REPLICA: &str = "spec.ipusPerModelReplica";

/// How many processes a job has.
#[derive(Clone, Copy)]
pub(super) struct Many {
    pub(super) instances: u32,
    /// Of one instance.
    pub(super) workers: u32,
}

impl Default for Many {
    fn default() -> Self {
        Self {
            instances: 1,
            workers: 1,
        }
    }
}

/// The size of a job.
pub(super) struct Size {
    pub(super) many: Many,
    pub(super) partition: PartitionSpec,
}

/// The size that `raw` asks for. Sources: seed 000 §6.6 and the custom resource 1.2.0; the alpha form of seed 001 §6.5.
pub(super) fn parse(raw: &RawSpec, limits: &Limits, findings: &mut Findings) -> Option<Size> {
    let instances = instances(raw, findings);
    let workers = workers(raw, findings);
    let asked = ipus(raw, limits, findings);
    let (instances, (workers, source), asked) = (instances?, workers?, asked?);
    let ipus = asked.size.get();
    if !ipus.is_multiple_of(workers) {
        findings.refuse(
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
        findings.refuse(
            INSTANCES,
            Some(&instances.to_string()),
            format!("{instances} instances of {workers} workers are more than {MAX_WORKERS} workers, which no system has IPUs for"),
            format!("use at most {}", MAX_WORKERS / workers),
        );
        return None;
    }
    let replicas = replicas(raw, ipus, workers, asked.replicas, findings)?;
    Some(Size {
        many: Many { instances, workers },
        partition: PartitionSpec {
            size: asked.size,
            gcds: workers,
            replicas,
            reconfigurable: false,
            allocation: None,
        },
    })
}

fn instances(raw: &RawSpec, findings: &mut Findings) -> Option<u32> {
    match &raw.job_instances {
        None => Some(1),
        Some(value) => {
            let value = findings.whole(INSTANCES, Some(value))?;
            Some(findings.clamped(INSTANCES, value, 0..=MAX_WORKERS))
        }
    }
}

/// The workers of one instance, and the field that says so.
fn workers(raw: &RawSpec, findings: &mut Findings) -> Option<(u32, &'static str)> {
    let per_instance = match (&raw.workers_per_job_instance, &raw.worker_per_job_instance) {
        (Some(value), misspelt) => {
            if let Some(misspelt) = misspelt {
                findings.warn(
                    MISSPELT_WORKERS,
                    Some(&misspelt.to_string()),
                    "is a misspelling and ignored because workersPerJobInstance is given",
                    "remove it",
                );
            }
            Some((value, WORKERS))
        }
        (None, Some(value)) => {
            findings.warn(
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
        (Some(given), None) | (None, Some(given)) => Some((count(given, findings)?, given.1)),
        (Some(given), Some(replicas)) => {
            let (one, other) = (count(given, findings), count(replicas, findings));
            let (one, other) = (one?, other?);
            if one == 1 {
                return Some((other, REPLICAS));
            }
            if other != 1 && other != one {
                findings.forbid(
                    REPLICAS,
                    Some(&other.to_string()),
                    format!(
                        "{} says {one} workers for each instance, which decides",
                        field_name(given.1)
                    ),
                    format!("write {one} here too, or leave one of the two out"),
                );
            }
            Some((one, given.1))
        }
    }
}

fn count((value, field): (&IntOrString, &str), findings: &mut Findings) -> Option<u32> {
    let value = findings.whole(field, Some(value))?;
    findings.within(field, value, 1..=MAX_WORKERS)
}

fn field_name(path: &str) -> &str {
    path.rsplit_once('.').map_or(path, |(_, name)| name)
}

/// IPUs of one instance, and the model replicas that the alpha form gives for all of them.
struct Asked {
    size: IpuCount,
    replicas: Option<u32>,
}

fn ipus(raw: &RawSpec, limits: &Limits, findings: &mut Findings) -> Option<Asked> {
    let alpha = [
        (MODEL_REPLICAS, &raw.model_replicas),
        (IPUS_PER_MODEL_REPLICA, &raw.ipus_per_model_replica),
    ];
    let Some(given) = &raw.ipus_per_job_instance else {
        return alpha_ipus(raw, limits, findings);
    };
    for (field, value) in alpha {
        if let Some(value) = value {
            findings.warn(
                field,
                Some(&value.to_string()),
                "belongs to the alpha form and is ignored because ipusPerJobInstance is given",
                "remove it, or write modelReplicasPerWorker",
            );
        }
    }
    let value = findings.whole(IPUS, Some(given))?;
    let size = power_of_two(IPUS, &given.to_string(), "must be", value, limits, findings)?;
    Some(Asked { size, replicas: None })
}

/// `modelReplicas` × `ipusPerModelReplica`: one instance of all of them.
fn alpha_ipus(raw: &RawSpec, limits: &Limits, findings: &mut Findings) -> Option<Asked> {
    let (replicas, each) = match (&raw.model_replicas, &raw.ipus_per_model_replica) {
        (None, None) => {
            findings.refuse(
                IPUS,
                None,
                "every job says how many IPUs one instance needs",
                "add ipusPerJobInstance: a power of two",
            );
            return None;
        }
        (Some(_), None) | (None, Some(_)) => {
            findings.refuse(
                IPUS,
                None,
                "the alpha form needs both modelReplicas and ipusPerModelReplica",
                "write ipusPerJobInstance instead of either",
            );
            return None;
        }
        (Some(replicas), Some(each)) => (
            count((replicas, MODEL_REPLICAS), findings),
            count((each, IPUS_PER_MODEL_REPLICA), findings),
        ),
    };
    let (replicas, each) = (replicas?, each?);
    let product = i64::from(replicas) * i64::from(each);
    let shown = format!("{replicas} × {each}");
    let rule = format!("modelReplicas × ipusPerModelReplica is {product}, and that must be");
    let size = power_of_two(MODEL_REPLICAS, &shown, &rule, product, limits, findings)?;
    findings.warn(
        MODEL_REPLICAS,
        Some(&shown),
        format!("the alpha form is read as one instance of {product} IPUs"),
        format!("write jobInstances: 1 and ipusPerJobInstance: \"{product}\""),
    );
    Some(Asked {
        size,
        replicas: Some(replicas),
    })
}

fn power_of_two(
    field: &str,
    shown: &str,
    rule: &str,
    value: i64,
    limits: &Limits,
    findings: &mut Findings,
) -> Option<IpuCount> {
    let most = limits.max_ipus();
    let rule = format!("{rule} a power of two from 1 to {most}");
    let Some(size) = u32::try_from(value)
        .ok()
        .and_then(|value| IpuCount::try_from(value).ok())
    else {
        findings.refuse(field, Some(shown), rule, neighbours(value, most));
        return None;
    };
    if size > most {
        let fix = format!("use at most {most}, or raise the limit of this installation");
        findings.forbid(field, Some(shown), rule, fix);
    }
    Some(size)
}

/// The allowed sizes on both sides of `value`.
fn neighbours(value: i64, most: IpuCount) -> String {
    let most = i64::from(most.get());
    if value <= 1 {
        return "use 1".into();
    }
    if value >= most {
        return format!("use {most}");
    }
    let below = 1_i64 << value.ilog2();
    format!("use {below} or {}", below * 2)
}

/// Model replicas of one instance over all of its GCDs: what PopRun compares with the partition's number.
fn replicas(
    raw: &RawSpec,
    ipus: u32,
    workers: u32,
    alpha: Option<u32>,
    findings: &mut Findings,
) -> Option<u32> {
    let Some(given) = &raw.model_replicas_per_worker else {
        return Some(alpha_replicas(workers, alpha, findings));
    };
    let each = count((given, MODEL_REPLICAS_PER_WORKER), findings)?;
    let total = u64::from(each) * u64::from(workers);
    let Some(total) = u32::try_from(total).ok().filter(|total| *total <= ipus) else {
        findings.refuse(
            MODEL_REPLICAS_PER_WORKER,
            Some(&given.to_string()),
            format!("{workers} workers of {each} model replicas are {total}, and each needs one of the instance's {ipus} IPUs"),
            format!("use at most {}", ipus / workers),
        );
        return None;
    };
    if !ipus.is_multiple_of(total) {
        findings.warn(
            MODEL_REPLICAS_PER_WORKER,
            Some(&given.to_string()),
            format!("{total} model replicas do not divide the instance's {ipus} IPUs, so some stay idle"),
            "use a power of two",
        );
    }
    Some(total)
}

fn alpha_replicas(workers: u32, alpha: Option<u32>, findings: &mut Findings) -> u32 {
    match alpha {
        None => workers,
        Some(total) if total.is_multiple_of(workers) => total,
        Some(total) => {
            findings.warn(
                MODEL_REPLICAS,
                Some(&total.to_string()),
                format!("cannot be shared out evenly to {workers} workers; the partition is made for {workers} model replicas"),
                "use a multiple of the workers",
            );
            workers
        }
    }
}

/// GW-links cannot be used by reconfigurable partitions (V-IPU user guide, "Partitions").
pub(super) fn check_reconfigurable(reconfigurable: bool, size: Option<&Size>, findings: &mut Findings) {
    let larger = size.is_some_and(|size| size.partition.size > IpuCount::LINK_DOMAIN);
    if reconfigurable && larger {
        findings.refuse(
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
