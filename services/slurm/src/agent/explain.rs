//! AdminComment of jobs that pend for IPUs.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use ipu_proxy_client::{ControllerStatus, PartitionDocument};
use ipu_slurm::conf::ModelConf;
use ipu_slurm::text::{ADMIN_COMMENT_PREFIX, Holder, Shortage, admin_comment, may_replace, shortage};
use ipu_slurm::{JobState, LicenseCounts, SlurmJob};

use super::context::Context;
use super::withhold::controller_of;
use crate::failure::Failure;
use crate::partition::holder_of_partition;
use crate::slurm_commands::{PendingJob, may_wait_for_licenses};

/// Maximum number of jobs of a pass, by priority: each takes one or two calls to slurmctld.
const MAX_JOBS: usize = 50;
/// The beginning of a sentence about a wait, which is stale when the job pends for another reason.
const WAIT_PREFIX: &str = "waits for ";

/// The jobs whose AdminComment may be about a wait for IPUs; none before the first pass.
#[derive(Debug, Default)]
pub(super) struct ExplainedJobs(Option<BTreeSet<u32>>);

impl ExplainedJobs {
    /// Returns the jobs that may wait for licenses, and those that do so no longer. The first pass does not
    /// know which comments an earlier agent wrote.
    fn split(&mut self, pending: &[PendingJob]) -> (Vec<u32>, Vec<u32>) {
        let known = self.0.get_or_insert_with(|| {
            let licensed = pending.iter().filter(|job| job.has_licenses);
            licensed.map(|job| job.id).collect()
        });
        let waiting = pending.iter().filter(|job| job.may_wait);
        let waiting: Vec<u32> = waiting.map(|job| job.id).take(MAX_JOBS).collect();
        let others = known.iter().copied().filter(|id| !waiting.contains(id));
        let others = others.take(MAX_JOBS).collect();
        (waiting, others)
    }

    fn insert(&mut self, id: u32) {
        self.0.get_or_insert_default().insert(id);
    }

    fn remove(&mut self, id: u32) {
        self.0.get_or_insert_default().remove(&id);
    }
}

/// Writes AdminComment of the jobs that wait for IPUs, and removes it from those that do so no longer. A
/// comment of an administrator is kept.
pub(super) async fn explain(context: &Context, explained: &mut ExplainedJobs) -> Result<(), Failure> {
    let pending = context.slurm.pending_jobs().await?;
    let (waiting, others) = explained.split(&pending);
    let mut facts = None;
    if !waiting.is_empty() {
        facts = Some(Facts {
            controllers: context.proxy.controllers().await?.controllers,
            partitions: context.proxy.partitions().await?,
            licenses: context.slurm.licenses().await?,
        });
    }
    let mut first_failure = None;
    for id in waiting.into_iter().chain(others) {
        // A job that cannot be read costs the others nothing.
        let job = match context.slurm.job(id).await {
            Ok(Some(job)) if job.state == JobState::Pending && may_replace(job.admin_comment.as_deref()) => {
                job
            }
            // It has started, and its hook writes the comment.
            Ok(_) => {
                explained.remove(id);
                continue;
            }
            Err(error) => {
                first_failure.get_or_insert(error);
                continue;
            }
        };
        let wait = match &facts {
            _ if !may_wait_for_licenses(&job.reason) => Wait::Other,
            Some(facts) => facts.wait_of(context, &job),
            None => Wait::Unknown,
        };
        let text = match wait {
            Wait::Ipus(sentence) => admin_comment(&sentence),
            Wait::Unknown => continue,
            Wait::Other if job.admin_comment.as_deref().is_some_and(is_about_wait) => String::new(),
            Wait::Other => {
                explained.remove(id);
                continue;
            }
        };
        explained.insert(id);
        if job.admin_comment.as_ref() == Some(&text) {
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

/// Returns whether a comment is about a wait for IPUs. Others of ours, such as the reason of a hold, stay.
fn is_about_wait(comment: &str) -> bool {
    let sentence = comment.strip_prefix(ADMIN_COMMENT_PREFIX);
    sentence.is_some_and(|sentence| sentence.starts_with(WAIT_PREFIX))
}

/// The cause of a wait.
#[derive(Debug, PartialEq, Eq)]
enum Wait {
    /// IPUs, with the sentence.
    Ipus(String),
    /// Anything else.
    Other,
    /// The free IPUs or the licenses are unknown.
    Unknown,
}

/// The facts of a pass.
struct Facts {
    controllers: Vec<ControllerStatus>,
    partitions: Vec<PartitionDocument>,
    licenses: Vec<LicenseCounts>,
}

impl Facts {
    /// Returns what a job that may wait for licenses waits for.
    fn wait_of(&self, context: &Context, job: &SlurmJob) -> Wait {
        let licenses = job.license_list();
        let mut models = licenses
            .items()
            .iter()
            .filter_map(|license| Some((license, context.conf.model(license.name())?)));
        let Some((license, model)) = models.next() else {
            return Wait::Other;
        };
        let status = controller_of(&self.controllers, model);
        let Some((status, free)) = status.and_then(|status| Some((status, status.free?))) else {
            return Wait::Unknown;
        };
        let counts = self.licenses.iter().find(|counts| counts.name == license.name());
        let largest = status.largest_block.unwrap_or(0);
        match usable(license.count(), counts, free, largest) {
            Some((free, largest)) => Wait::Ipus(shortage(&Shortage {
                model: license.name().to_owned(),
                ipus: license.count(),
                free,
                largest,
                holders: holders(model, &self.partitions),
            })),
            None => Wait::Other,
        }
    }
}

/// Returns the free IPUs and the largest partition that a job can get, which are limited by the licenses: a
/// job that starts has licenses before IPUs. None for a job whose license is available, so that it waits for
/// something else.
fn usable(ipus: u32, counts: Option<&LicenseCounts>, free: u32, largest: u32) -> Option<(u32, u32)> {
    let Some(counts) = counts else {
        return Some((free, largest));
    };
    let available = counts.free.saturating_sub(counts.reserved);
    (available < ipus).then(|| (free.min(available), largest.min(available)))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(id: u32, may_wait: bool, has_licenses: bool) -> PendingJob {
        PendingJob {
            id,
            may_wait,
            has_licenses,
        }
    }

    #[test]
    fn a_job_that_no_longer_waits_for_licenses_is_seen_once_more() {
        let mut explained = ExplainedJobs::default();
        // An earlier agent may have written the comment of job 2.
        let first = [
            pending(1, true, true),
            pending(2, false, true),
            pending(3, false, false),
        ];
        assert_eq!(explained.split(&first), (vec![1], vec![2]));
        explained.insert(1);
        explained.remove(2);
        let second = [pending(1, false, true), pending(4, false, true)];
        assert_eq!(explained.split(&second), (vec![], vec![1]));
        explained.remove(1);
        assert_eq!(explained.split(&second), (vec![], vec![]));
    }

    #[test]
    fn only_a_comment_about_a_wait_is_stale() {
        assert!(is_about_wait(
            "vipu: waits for 4 IPUs of pod64: 0 free, largest partition 0"
        ));
        for other in ["vipu: no IPUs within 600 s", "waits for Ada", ""] {
            assert!(!is_about_wait(other), "{other}");
        }
    }

    #[test]
    fn the_licenses_limit_what_a_job_can_get() {
        let line = "LicenseName=pod64 Total=64 Used=32 Free=32 Reserved=24 Remote=no";
        let counts = LicenseCounts::parse_list(line);
        let usable = |ipus| usable(ipus, counts.first(), 40, 32);
        assert_eq!(usable(16), Some((8, 8)));
        assert_eq!(usable(8), None, "it waits for something else");
        assert_eq!(super::usable(8, None, 40, 32), Some((40, 32)));
    }
}
