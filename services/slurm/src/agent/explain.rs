//! AdminComment of jobs that pend for IPUs.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ipu_proxy_client::{ControllerStatus, PartitionDocument, UnrecordedPartition};
use ipu_slurm::conf::{LicenseList, ModelConf};
use ipu_slurm::text::{ADMIN_COMMENT_PREFIX, Holder, Shortage, admin_comment, may_replace, shortage};
use ipu_slurm::{JobState, LicenseCounts};

use super::context::Context;
use super::withhold::controller_of;
use crate::failure::Failure;
use crate::partition::{holder_of_foreign, holder_of_partition};
use crate::slurm_commands::{PendingJob, may_wait_for_licenses};

/// Maximum number of jobs of a pass, by priority: each takes one or two calls to slurmctld.
const MAX_JOBS: usize = 50;
/// The licenses that waiting jobs of a higher priority get first.
type Claims = BTreeMap<String, u32>;

/// The beginning of a sentence about a wait, which is stale when the job pends for another reason.
const WAIT_PREFIX: &str = "waits for ";

/// The AdminComments about a wait for IPUs by job, as the last passes have left them; none before the first
/// pass. A job that no longer waits has an empty one.
#[derive(Debug, Default)]
pub(super) struct ExplainedJobs {
    comments: Option<BTreeMap<u32, String>>,
    /// The number of passes that still follow a change of the ledger.
    passes_of_change: u8,
}

impl ExplainedJobs {
    /// Notes a change of the ledger. The hook of a released partition may need longer than the next pass to
    /// return the licenses.
    pub(super) const fn follow_change(&mut self) {
        self.passes_of_change = 2;
    }

    /// Returns the jobs that may wait for licenses, and those that do so no longer. The first pass does not
    /// know which comments an earlier agent wrote.
    fn split<'a>(&mut self, pending: &'a [PendingJob]) -> (Vec<&'a PendingJob>, Vec<u32>) {
        let is_first = self.comments.is_none();
        let known = self.comments.get_or_insert_default();
        let waiting = pending.iter().filter(|job| job.may_wait);
        let waiting: Vec<&PendingJob> = waiting.take(MAX_JOBS).collect();
        let licensed = pending.iter().filter(|job| is_first && !job.licenses.is_empty());
        let others = known.keys().copied().chain(licensed.map(|job| job.id));
        let others = others.filter(|id| waiting.iter().all(|job| job.id != *id));
        let others = others.take(MAX_JOBS).collect();
        (waiting, others)
    }

    /// Returns whether the last pass has left this comment.
    fn has(&self, id: u32, text: &str) -> bool {
        self.comments
            .as_ref()
            .and_then(|known| known.get(&id))
            .is_some_and(|known| known == text)
    }

    fn insert(&mut self, id: u32, text: String) {
        self.comments.get_or_insert_default().insert(id, text);
    }

    fn remove(&mut self, id: u32) {
        self.comments.get_or_insert_default().remove(&id);
    }
}

/// Writes AdminComment of the jobs that wait for IPUs, and removes it from those that do so no longer. A
/// comment of an administrator is kept. After a change of the ledger, an update makes slurmctld look for jobs
/// if the licenses of one are available.
pub(super) async fn explain(context: &Context, explained: &mut ExplainedJobs) -> Result<(), Failure> {
    let follows_change = explained.passes_of_change > 0;
    explained.passes_of_change = explained.passes_of_change.saturating_sub(1);
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
    let (mut changed, mut overlooked) = (Vec::new(), None);
    let mut claims = Claims::new();
    for job in waiting {
        let licenses = LicenseList::parse("Licenses", &job.licenses);
        let claimed = claims.clone();
        let wait = facts
            .as_ref()
            .map(|facts| facts.wait_of(context, &licenses, &claimed));
        if wait == Some(Wait::Other) {
            // It starts before the jobs behind it.
            for license in licenses.items() {
                let claim: &mut u32 = claims.entry(license.name().to_owned()).or_default();
                *claim = claim.saturating_add(license.count());
            }
            if follows_change {
                overlooked.get_or_insert(job.id);
            }
        }
        let text = wait.and_then(Wait::into_comment);
        if overlooked == Some(job.id) || !text.is_some_and(|text| explained.has(job.id, &text)) {
            changed.push((job.id, claimed));
        }
    }
    let others = others.into_iter().map(|id| (id, Claims::new()));
    let mut first_failure = None;
    for (id, claimed) in changed.into_iter().chain(others) {
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
        let may_wait = may_wait_for_licenses(&job.reason);
        let wait = match &facts {
            _ if !may_wait => Wait::Other,
            Some(facts) => facts.wait_of(context, &job.license_list(), &claimed),
            None => Wait::Unknown,
        };
        let Some(text) = wait.into_comment() else {
            continue;
        };
        let present = job.admin_comment.as_deref();
        let is_stale = present.is_some_and(is_about_wait);
        let new = match present {
            Some(kept) if text.is_empty() && !is_stale => kept,
            _ => &text,
        };
        if present.unwrap_or_default() != new || overlooked == Some(id) {
            if let Some(address) = job.scontrol_id()
                && let Err(error) = context.slurm.set_admin_comment(&address, new).await
            {
                first_failure.get_or_insert(error);
                continue;
            }
        } else if !may_wait {
            explained.remove(id);
            continue;
        }
        explained.insert(id, text);
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

impl Wait {
    /// Returns AdminComment, which is empty for another wait; none if it stays as it is.
    fn into_comment(self) -> Option<String> {
        match self {
            Self::Ipus(sentence) => Some(admin_comment(&sentence)),
            Self::Other => Some(String::new()),
            Self::Unknown => None,
        }
    }
}

/// The facts of a pass.
struct Facts {
    controllers: Vec<ControllerStatus>,
    partitions: Vec<PartitionDocument>,
    licenses: Vec<LicenseCounts>,
}

impl Facts {
    /// Returns what a job with these licenses that may wait for them waits for, behind jobs with `claims`.
    fn wait_of(&self, context: &Context, licenses: &LicenseList, claims: &Claims) -> Wait {
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
        let claimed = claims.get(license.name()).copied().unwrap_or_default();
        match usable(license.count(), counts, claimed, (free, largest)) {
            Some((free, largest)) => Wait::Ipus(shortage(&Shortage {
                model: license.name().to_owned(),
                ipus: license.count(),
                free,
                largest,
                holders: holders(model, &self.partitions, &status.foreign),
            })),
            None => Wait::Other,
        }
    }
}

/// Returns the free IPUs and the largest partition that a job can get, which are limited by the licenses that
/// jobs before it leave: a job that starts has licenses before IPUs. None for a job whose license is
/// available, so that it waits for something else.
fn usable(
    ipus: u32,
    counts: Option<&LicenseCounts>,
    claimed: u32,
    (free, largest): (u32, u32),
) -> Option<(u32, u32)> {
    let Some(counts) = counts else {
        return Some((free, largest));
    };
    let available = counts
        .free
        .saturating_sub(counts.reserved)
        .saturating_sub(claimed);
    (available < ipus).then(|| (free.min(available), largest.min(available)))
}

/// Returns the holders of IPUs of a model, those with the most first. `foreign` are partitions of its
/// controller that the ledger does not record.
fn holders(
    model: &ModelConf,
    partitions: &[PartitionDocument],
    foreign: &[UnrecordedPartition],
) -> Vec<Holder> {
    let address = model.api_address();
    let mut holders: Vec<Holder> = partitions
        .iter()
        .filter(|partition| partition.state.holds())
        .filter(|partition| {
            let controller = partition.controller.as_ref();
            controller.is_some_and(|controller| controller.name.as_str() == address)
        })
        .map(holder_of_partition)
        .chain(foreign.iter().map(holder_of_foreign))
        .collect();
    holders.sort_by_key(|holder| Reverse(holder.ipus));
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(id: u32, may_wait: bool, licenses: &str) -> PendingJob {
        PendingJob {
            id,
            may_wait,
            licenses: licenses.to_owned(),
        }
    }

    fn split(explained: &mut ExplainedJobs, pending: &[PendingJob]) -> (Vec<u32>, Vec<u32>) {
        let (waiting, others) = explained.split(pending);
        (waiting.iter().map(|job| job.id).collect(), others)
    }

    #[test]
    fn a_job_that_no_longer_waits_for_licenses_is_seen_once_more() {
        let mut explained = ExplainedJobs::default();
        // An earlier agent may have written the comment of job 2.
        let first = [
            pending(1, true, "pod64:4"),
            pending(2, false, "pod64:4"),
            pending(3, false, ""),
        ];
        assert_eq!(split(&mut explained, &first), (vec![1], vec![2]));
        explained.insert(1, "vipu: waits for Ada".into());
        assert!(explained.has(1, "vipu: waits for Ada") && !explained.has(1, ""));
        explained.remove(2);
        let second = [pending(1, false, "pod64:4"), pending(4, false, "pod64:4")];
        assert_eq!(split(&mut explained, &second), (vec![], vec![1]));
        explained.remove(1);
        assert_eq!(split(&mut explained, &second), (vec![], vec![]));
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
    fn partitions_of_other_programs_are_holders() {
        let text = "ApiHost=pod\nIpuofDir=/ipuof\n";
        let conf = ipu_slurm::conf::ConfFiles::parse(("vipu.conf", text), &[]).unwrap();
        let foreign = [("slurm_28", 4), ("user", 16)]
            .map(|(id, ipus)| UnrecordedPartition::new(ipu_core::PartitionId::new(id).unwrap(), ipus));
        let sentence = shortage(&Shortage {
            model: "pod64".to_owned(),
            ipus: 64,
            free: 44,
            largest: 32,
            holders: holders(conf.model("vipu").unwrap(), &[], &foreign),
        });
        assert!(
            sentence.ends_with("; held by partition user (16), partition slurm_28 (4)"),
            "{sentence}"
        );
    }

    #[test]
    fn the_licenses_limit_what_a_job_can_get() {
        let line = "LicenseName=pod64 Total=64 Used=32 Free=32 Reserved=24 Remote=no";
        let counts = LicenseCounts::parse_list(line);
        let usable_behind = |ipus, claimed| usable(ipus, counts.first(), claimed, (40, 32));
        let usable = |ipus| usable_behind(ipus, 0);
        assert_eq!(usable(16), Some((8, 8)));
        assert_eq!(usable(8), None, "it waits for something else");
        assert_eq!(usable_behind(4, 4), None);
        assert_eq!(usable_behind(8, 4), Some((4, 4)), "a job before it gets 4");
        assert_eq!(super::usable(8, None, 0, (40, 32)), Some((40, 32)));
    }
}
