//! The removal of files of runs that have ended.

use std::path::Path;

use ipu_proxy_client::{ClientError, HoldState, PartitionDocument, RepairDocument};

use super::{FoundFile, SlurmFacts, cannot_release, partition_of};
use crate::agent::context::Context;
use crate::failure::Failure;
use crate::proxy::release_options;
use crate::run_file;

/// Removes the files of runs that have ended and have no partition any more. After the loss of the ledger,
/// only the file of a run names the owner of a quarantined partition. So it stays until the proxy has
/// compared its ledger with the controllers of its directory. `listed` are the partitions before this pass.
pub(super) async fn remove_files(
    context: &Context,
    facts: &SlurmFacts<'_>,
    listed: &[PartitionDocument],
    files: &[FoundFile],
    problems: &mut Vec<String>,
) {
    let is_dead = |found: &&FoundFile| {
        let may_have_hook = found.file.active().is_none() && facts.may_have_hook(found.job_id);
        let mut starts = found.file.known_starts();
        !may_have_hook && starts.all(|start| facts.is_dead(&start, false))
    };
    let exists = |found: &&FoundFile| run_file::exists(&found.directory, &found.name);
    let ended: Vec<&FoundFile> = files.iter().filter(is_dead).filter(exists).collect();
    if ended.is_empty() {
        return;
    }
    let repaired = match context.proxy.repair().await {
        Ok(repaired) => Some(repaired),
        // The token is one of a namespace, which may release no quarantined partition either.
        Err(error) if error.problem().is_some_and(|problem| problem.status == 403) => None,
        Err(error) => return problems.push(Failure::from(error).0),
    };
    for found in ended {
        if repaired
            .as_ref()
            .is_some_and(|repaired| is_unknown(context, repaired, &found.directory))
        {
            continue;
        }
        match has_partition(context, listed, found).await {
            Ok(true) => {}
            Ok(false) => {
                let FoundFile { directory, name, .. } = found;
                if let Err(error) = run_file::remove_own(directory, name, &found.file) {
                    problems.push(format!("cannot remove {}/{name}: {error}", directory.display()));
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
}

/// Returns whether a controller of a directory did not answer the proxy: it may list a partition later.
fn is_unknown(context: &Context, repaired: &RepairDocument, directory: &Path) -> bool {
    let mut models = context.conf.models();
    models.any(|(_, model)| {
        let address = model.api_address();
        let is_silent = repaired
            .unavailable
            .iter()
            .any(|unavailable| unavailable.controller.as_str() == address);
        is_silent && Path::new(model.ipuof_dir()) == directory
    })
}

/// Releases what the proxy has found of a run meanwhile. Returns whether a release is under way.
async fn has_partition(
    context: &Context,
    listed: &[PartitionDocument],
    found: &FoundFile,
) -> Result<bool, String> {
    for start in found.file.known_starts() {
        let Some(id) = partition_of(context, &start) else {
            continue;
        };
        // Released above, unless there is a problem.
        if listed.iter().any(|partition| partition.id == id) {
            return Ok(true);
        }
        let deleted = context
            .proxy
            .delete(&id, &release_options(&context.conf, &start, None))
            .await
            .map_err(|error: ClientError| cannot_release(&id, error))?;
        if deleted.state != HoldState::Gone {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
