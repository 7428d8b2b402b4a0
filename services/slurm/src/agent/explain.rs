//! AdminComment of jobs that pend for IPUs.

use std::cmp::Reverse;

use ipu_proxy_client::{ControllerStatus, PartitionDocument};
use ipu_slurm::conf::ModelConf;
use ipu_slurm::text::{Holder, Shortage, admin_comment, may_replace, shortage};
use ipu_slurm::{AdminComment, JobState, SlurmJob};

use super::context::Context;
use super::withhold::controller_of;
use crate::failure::Failure;
use crate::partition::holder_of_partition;

/// Maximum number of jobs of a pass, by priority: each is a call of slurmctld or two.
const MAX_JOBS: usize = 50;

/// Writes AdminComment of the jobs that pend for IPUs. A comment of an administrator is kept.
pub(super) async fn explain(context: &Context) -> Result<(), Failure> {
    let pending = context.slurm.pending_for_licenses().await?;
    if pending.is_empty() {
        return Ok(());
    }
    let controllers = context.proxy.controllers().await?.controllers;
    let partitions = context.proxy.partitions().await?;
    let mut first_failure = None;
    for id in pending.into_iter().take(MAX_JOBS) {
        // A job that cannot be read, or has started since, costs the others nothing.
        let job = match context.slurm.job(id).await {
            Ok(Some(job)) if job.state == JobState::Pending && may_replace(&job.admin_comment) => job,
            Ok(_) => continue,
            Err(error) => {
                first_failure.get_or_insert(error);
                continue;
            }
        };
        let Some(sentence) = sentence(context, &job, &controllers, &partitions) else {
            continue;
        };
        let text = admin_comment(&sentence);
        if job.admin_comment == AdminComment::Text(text.clone()) {
            continue;
        }
        let Some(address) = job.scontrol_id() else {
            continue;
        };
        if let Err(error) = context.slurm.set_admin_comment(&address, &text).await {
            first_failure.get_or_insert(error);
        }
    }
    first_failure.map_or(Ok(()), |error| Err(error.into()))
}

/// Returns what a job waits for; none if it requests no IPUs, or the controller does not answer.
fn sentence(
    context: &Context,
    job: &SlurmJob,
    controllers: &[ControllerStatus],
    partitions: &[PartitionDocument],
) -> Option<String> {
    let licenses = job.license_list().ok()?;
    let mut models = licenses
        .items()
        .iter()
        .filter_map(|license| Some((license, context.conf.model(license.name())?)));
    let (license, model) = models.next()?;
    let status = controller_of(controllers, model)?;
    Some(shortage(&Shortage {
        model: license.name().to_owned(),
        ipus: license.count(),
        free: status.free?,
        largest: status.largest_block.unwrap_or(0),
        holders: holders(model, partitions),
    }))
}

/// Returns the holders of IPUs of a model, those with the most first.
fn holders(model: &ModelConf, partitions: &[PartitionDocument]) -> Vec<Holder> {
    let address = model.api_address();
    let mut holders: Vec<Holder> = partitions
        .iter()
        .filter(|partition| partition.state.holds())
        .filter(|partition| {
            let controller = partition.controller.as_ref();
            controller.is_some_and(|controller| controller.name.as_str() == address)
        })
        .map(holder_of_partition)
        .collect();
    holders.sort_by_key(|holder| Reverse(holder.ipus));
    holders
}
