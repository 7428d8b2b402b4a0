//! IPUs and model replicas of one instance, in the current form and the alpha form.

use alloc::format;
use alloc::string::{String, ToString as _};

use super::counts::count;
use super::diagnostics::Diagnostics;
use crate::job::limits::Limits;
use crate::job::raw::RawSpec;
use crate::units::IpuCount;

const IPUS: &str = "spec.ipusPerJobInstance";
const MODEL_REPLICAS_PER_WORKER: &str = "spec.modelReplicasPerWorker";
const MODEL_REPLICAS: &str = "spec.modelReplicas";
const IPUS_PER_MODEL_REPLICA: &str = "spec.ipusPerModelReplica";

/// IPUs of one instance, and its total model replicas in the alpha form.
pub(super) struct IpuRequest {
    pub(super) size: IpuCount,
    pub(super) replicas: Option<u32>,
}

/// Parses the IPUs, in the form of seed 000 §6.6 or the alpha form of seed 001 §6.5.
pub(super) fn parse(raw: &RawSpec, limits: &Limits, diagnostics: &mut Diagnostics) -> Option<IpuRequest> {
    let alpha = [
        (MODEL_REPLICAS, &raw.model_replicas),
        (IPUS_PER_MODEL_REPLICA, &raw.ipus_per_model_replica),
    ];
    let Some(given) = &raw.ipus_per_job_instance else {
        return alpha_ipus(raw, limits, diagnostics);
    };
    for (field, value) in alpha {
        if let Some(value) = value {
            diagnostics.warn(
                field,
                Some(&value.to_string()),
                "belongs to the alpha form and is ignored because ipusPerJobInstance is given",
                "remove it, or write modelReplicasPerWorker",
            );
        }
    }
    let value = diagnostics.whole(IPUS, Some(given))?;
    let size = power_of_two(IPUS, &given.to_string(), "must be", value, limits, diagnostics)?;
    Some(IpuRequest { size, replicas: None })
}

/// Parses the alpha form, `modelReplicas` × `ipusPerModelReplica`, as the IPUs of one instance.
fn alpha_ipus(raw: &RawSpec, limits: &Limits, diagnostics: &mut Diagnostics) -> Option<IpuRequest> {
    let (replicas, each) = match (&raw.model_replicas, &raw.ipus_per_model_replica) {
        (None, None) => {
            diagnostics.refuse(
                IPUS,
                None,
                "every job says how many IPUs one instance needs",
                "add ipusPerJobInstance: a power of two",
            );
            return None;
        }
        (Some(_), None) | (None, Some(_)) => {
            diagnostics.refuse(
                IPUS,
                None,
                "the alpha form needs both modelReplicas and ipusPerModelReplica",
                "write ipusPerJobInstance instead of either",
            );
            return None;
        }
        (Some(replicas), Some(each)) => (
            count((replicas, MODEL_REPLICAS), diagnostics),
            count((each, IPUS_PER_MODEL_REPLICA), diagnostics),
        ),
    };
    let (replicas, each) = (replicas?, each?);
    let product = i64::from(replicas) * i64::from(each);
    let displayed = format!("{replicas} × {each}");
    let rule = format!("modelReplicas × ipusPerModelReplica is {product}, and that must be");
    let size = power_of_two(MODEL_REPLICAS, &displayed, &rule, product, limits, diagnostics)?;
    diagnostics.warn(
        MODEL_REPLICAS,
        Some(&displayed),
        format!("the alpha form is read as one instance of {product} IPUs"),
        format!("write jobInstances: 1 and ipusPerJobInstance: \"{product}\""),
    );
    Some(IpuRequest {
        size,
        replicas: Some(replicas),
    })
}

fn power_of_two(
    field: &str,
    displayed: &str,
    rule: &str,
    value: i64,
    limits: &Limits,
    diagnostics: &mut Diagnostics,
) -> Option<IpuCount> {
    let max = limits.max_ipus();
    let rule = format!("{rule} a power of two from 1 to {max}");
    let Some(size) = u32::try_from(value)
        .ok()
        .and_then(|value| IpuCount::try_from(value).ok())
    else {
        diagnostics.refuse(field, Some(displayed), rule, suggest_sizes(value, max));
        return None;
    };
    if size > max {
        let fix = format!("use at most {max}, or raise the limit of this installation");
        diagnostics.forbid(field, Some(displayed), rule, fix);
    }
    Some(size)
}

/// Suggests the allowed sizes on both sides of `value`.
fn suggest_sizes(value: i64, max: IpuCount) -> String {
    let max = i64::from(max.get());
    if value <= 1 {
        return "use 1".into();
    }
    if value >= max {
        return format!("use {max}");
    }
    let below = 1_i64 << value.ilog2();
    format!("use {below} or {}", below * 2)
}

/// Returns the model replicas of one instance over all of its GCDs, which PopRun compares with the
/// partition's number.
pub(super) fn replicas(
    raw: &RawSpec,
    ipus: u32,
    workers: u32,
    alpha: Option<u32>,
    diagnostics: &mut Diagnostics,
) -> Option<u32> {
    let Some(given) = &raw.model_replicas_per_worker else {
        return Some(alpha_replicas(workers, alpha, diagnostics));
    };
    let each = count((given, MODEL_REPLICAS_PER_WORKER), diagnostics)?;
    let total = u64::from(each) * u64::from(workers);
    let Some(total) = u32::try_from(total).ok().filter(|total| *total <= ipus) else {
        diagnostics.refuse(
            MODEL_REPLICAS_PER_WORKER,
            Some(&given.to_string()),
            format!("{workers} workers of {each} model replicas are {total}, and each needs one of the instance's {ipus} IPUs"),
            format!("use at most {}", ipus / workers),
        );
        return None;
    };
    if !ipus.is_multiple_of(total) {
        diagnostics.warn(
            MODEL_REPLICAS_PER_WORKER,
            Some(&given.to_string()),
            format!("{total} model replicas do not divide the instance's {ipus} IPUs, so some stay idle"),
            "use a power of two",
        );
    }
    Some(total)
}

fn alpha_replicas(workers: u32, alpha: Option<u32>, diagnostics: &mut Diagnostics) -> u32 {
    match alpha {
        None => workers,
        Some(total) if total.is_multiple_of(workers) => total,
        Some(total) => {
            diagnostics.warn(
                MODEL_REPLICAS,
                Some(&total.to_string()),
                format!("cannot be shared out evenly to {workers} workers; the partition is made for {workers} model replicas"),
                "use a multiple of the workers",
            );
            workers
        }
    }
}
