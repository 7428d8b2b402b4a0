//! Partitions that job scripts made themselves, as scripts for Graphcore's Slurm do. Nothing releases one
//! after its job.

use std::path::Path;

use ipu_proxy_client::ControllerList;

use crate::failure::Failure;
use crate::render_command::Report;
use crate::slurm_commands::Slurm;

/// The beginnings of the names in such scripts, before the job id.
const NAME_PREFIXES: [&str; 2] = ["slurm_", "p"];

/// A partition with the id of a job in its name.
#[derive(Debug, PartialEq, Eq)]
struct JobPartition {
    id: String,
    size: u32,
    controller: String,
    job: u32,
}

/// Warns of each partition of a job script whose job has ended. A proxy or a slurmctld that does not answer
/// is not a finding.
pub(super) fn check(report: &mut Report, directory: &Path) {
    let conf = &report.conf;
    let found = crate::block_on(async {
        let proxy = crate::proxy::connect(conf)?;
        let slurm = Slurm::find(directory);
        let mut ended = Vec::new();
        for partition in job_partitions(&proxy.controllers().await?) {
            let job = slurm.job(partition.job).await?;
            if job.is_none_or(|job| job.state.is_finished()) {
                ended.push(partition);
            }
        }
        Ok::<_, Failure>(ended)
    });
    for JobPartition {
        id,
        size,
        controller,
        job,
    } in found.unwrap_or_default()
    {
        report.warning(format!(
            "partition {id} at {controller} holds {size} IPUs, and job {job}, whose script may have made it, has \
             ended: if no process uses it, remove it with vipu remove partition {id}, and let jobs request IPUs \
             from Slurm"
        ));
    }
}

/// Returns the partitions that the proxy did not make and whose name has a job id.
fn job_partitions(list: &ControllerList) -> Vec<JobPartition> {
    let all = list.controllers.iter().flat_map(|status| {
        let foreign = status.foreign.iter();
        foreign.filter_map(|partition| {
            let id = partition.id.to_string();
            let job = NAME_PREFIXES.iter().find_map(|beginning| {
                let number = id.strip_prefix(beginning)?;
                number.parse().ok().filter(|_| !number.starts_with('+'))
            })?;
            Some(JobPartition {
                job,
                size: partition.size,
                controller: status.controller.name.to_string(),
                id,
            })
        })
    });
    all.collect()
}
